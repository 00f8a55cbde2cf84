"""One rank of gloo: makes the all_reduce calls that it is told on standard input, and says how long each took.

A line is a name, bytes and how many calls; the answer is nanoseconds of each call. The calls before those are not counted.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

WARM_UP = 2

torch.set_num_threads(1)
dist.init_process_group("gloo")
size, data = -1, None
for line in sys.stdin:
    _, bytes_, calls = line.split()
    if size != int(bytes_):
        size, data = int(bytes_), None
        data = torch.zeros(size // 4)
    times = []
    for call in range(WARM_UP + int(calls)):
        begun = time.perf_counter_ns()
        dist.all_reduce(data)
        times.append(time.perf_counter_ns() - begun)
    dist.barrier()
    print(*times[WARM_UP:], flush=True)
dist.destroy_process_group()

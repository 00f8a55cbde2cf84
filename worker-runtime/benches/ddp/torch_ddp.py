"""One rank of PyTorch's DDP over gloo: takes the steps that it is told on standard input, and says how long each took.

A line is a name, the batch over all ranks and how many steps; the answer is nanoseconds of each step. With `restart` as argument
it fails after its third step in its first life, and in its second one it is done after the first step.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZES = [1000, 512, 512, 2]
SAMPLES = 1024

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def numbers(count, first):
    at = (torch.arange(count, dtype=torch.int64) + first) * 2654435761 % 2**32
    return at.double() / (2**32 - 1)


def model():
    layers = []
    for inputs, outputs in zip(SIZES, SIZES[1:]):
        layer = nn.Linear(inputs, outputs)
        with torch.no_grad():
            weights = (numbers(inputs * outputs, 7) - 0.5) * 2 * inputs**-0.5
            layer.weight.copy_(weights.float().view(outputs, inputs))
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


data = (numbers(SAMPLES * SIZES[0], 1) - 0.5).float().view(SAMPLES, SIZES[0])
classes = torch.arange(SAMPLES) % SIZES[3]
ddp = DistributedDataParallel(model())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
taken = 0


def step(batch):
    global taken
    share = batch // world
    first = taken % (SAMPLES // batch) * batch + rank * share
    optimizer.zero_grad()
    loss = criterion(ddp(data[first : first + share]), classes[first : first + share])
    loss.backward()
    optimizer.step()
    taken += 1
    return loss


def restart():
    step(30)
    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0:
        if rank == 0:
            print("step", time.time_ns(), flush=True)
        # A rank that leaves first would be a lost peer to the other.
        dist.barrier()
        return
    step(30)
    step(30)
    if rank == 0:
        print("failed", time.time_ns(), flush=True)
        # Without the destructors, which abort while the other rank still talks.
        os._exit(1)
    while True:
        step(30)


def serve():
    loss = None
    for line in sys.stdin:
        name, batch, steps = line.split()
        if name == "loss":
            print(int(loss.item() * 1e9), flush=True)
            continue
        times = []
        for _ in range(int(steps)):
            begun = time.perf_counter_ns()
            loss = step(int(batch))
            times.append(time.perf_counter_ns() - begun)
        print(*times, flush=True)


restart() if "restart" in sys.argv else serve()
dist.destroy_process_group()

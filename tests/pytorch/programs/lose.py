"""Adds up over gloo until the rank on one host fails, in the first generation of its node: the others lose it in the midst
of a sum.

With --record the failures are written to error files, as torch's own programs do; without it they are only printed.
"""

import argparse
import os
import socket

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def main(host: str) -> None:
    dist.init_process_group("gloo")
    rank, restarts = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(f"attempt rank={rank} restarts={restarts}", flush=True)
    for step in range(30):
        if step == 20 and socket.gethostname() == host and restarts == "0":
            raise ValueError("bad column 7")
        dist.all_reduce(torch.ones(1000))
    dist.barrier()
    dist.destroy_process_group()
    print(f"finished rank={rank}", flush=True)


parser = argparse.ArgumentParser()
parser.add_argument("--fail", metavar="HOST")
parser.add_argument("--record", action="store_true")
options = parser.parse_args()
(record(main) if options.record else main)(options.fail)

"""Adds up the ranks over gloo, and tells the sum; with --fail, the rank on a host fails in its first life.

Launchers count lives in their own ways, so that a folder keeps the marks of those that were.
"""

import argparse
import os
import socket
import sys
import time

import torch
import torch.distributed as dist


def total(value: int) -> int:
    tensor = torch.full((1000,), value, dtype=torch.int64)
    dist.all_reduce(tensor)
    assert bool((tensor == tensor[0]).all()), tensor
    return int(tensor[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", metavar="HOST")
    parser.add_argument("--lives", metavar="FOLDER")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    right = world * (world + 1) // 2
    for _ in range(10):
        found = total(rank + 1)
        if found != right:
            sys.exit(f"rank {rank}: the sum is {found}, not {right}")
    print(f"reduced rank={rank} world={world} total={found}", flush=True)
    if options.lives is not None:
        mark = os.path.join(options.lives, str(rank))
        if not os.path.exists(mark):
            os.mkdir(mark)
            dist.barrier()
            if socket.gethostname() == options.fail:
                sys.exit(5)
            time.sleep(600)
    dist.barrier()
    dist.destroy_process_group()
    print(f"finished rank={rank}", flush=True)


main()

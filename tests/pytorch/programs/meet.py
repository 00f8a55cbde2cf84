"""Adds up the ranks over gloo, and tells the sum; with --fail, the rank on the first host fails in its first generation,
that on the second one in its second generation, and so on.

Launchers count generations in their own ways, so that a folder keeps the marks of those that were.
"""

import argparse
import os
import socket
import sys
import time

import torch
import torch.distributed as dist


# PyTorch 2.4 deadlocks in `destroy_process_group` if a tensor of a collective lives in gloo alone by then: the group waits,
# with Python's lock, for a thread that takes the lock to free the tensor.
tensors = []


def total(value: int) -> int:
    tensor = torch.full((1000,), value, dtype=torch.int64)
    tensors.append(tensor)
    dist.all_reduce(tensor)
    assert bool((tensor == tensor[0]).all()), tensor
    return int(tensor[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", metavar="HOST", action="append", default=[])
    parser.add_argument("--marks", metavar="FOLDER")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    right = world * (world + 1) // 2
    for _ in range(10):
        found = total(rank + 1)
        if found != right:
            sys.exit(f"rank {rank}: the sum is {found}, not {right}")
    agent_store = os.environ["TORCHELASTIC_USE_AGENT_STORE"]
    print(f"reduced rank={rank} world={world} total={found} agent_store={agent_store}", flush=True)
    for generation, host in enumerate(options.fail):
        mark = os.path.join(options.marks, f"{generation}-{rank}")
        if not os.path.exists(mark):
            os.mkdir(mark)
            dist.barrier()
            if socket.gethostname() == host:
                sys.exit(5)
            time.sleep(600)
    dist.barrier()
    dist.destroy_process_group()
    print(f"finished rank={rank}", flush=True)


main()

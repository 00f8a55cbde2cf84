"""Rank 1 ends with 0 before the others are done, without a message to its group. What rank 0 does then is its argument."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
if rank == 1:
    os._exit(0)
if rank == 0 and sys.argv[1] == "raise":
    # Its threads would abort the interpreter's end.
    dist.destroy_process_group()
    raise ValueError("the loss is nan")
dist.all_reduce(torch.ones(4))
print("the sum of a rank that is gone", flush=True)

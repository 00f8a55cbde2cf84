"""A program as torch's documentation writes it: `@record` around `main`. Rank 1 fails at its third step.

    recorded.py raise       with an exception, while rank 0 is busy elsewhere
    recorded.py segfault    with a crash, of which rank 0 learns by an exception of its own, in a collective
"""

import os
import resource
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def train_step(step: int, failure: str) -> None:
    if step == 3 and dist.get_rank() == 1:
        if failure == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        # Gloo's threads end with the group. One that still frees a tensor while Python ends aborts the process ("terminate called
        # without an active exception"), under any launcher.
        dist.destroy_process_group()
        raise RuntimeError(f"the loss is nan at step {step}")
    if step == 3 and failure == "raise":
        signal.pause()
    dist.all_reduce(torch.ones(1))


@record
def main() -> None:
    # A crash leaves no core file behind.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    dist.init_process_group("gloo")
    for step in range(1, 10):
        train_step(step, sys.argv[1])


if __name__ == "__main__":
    main()

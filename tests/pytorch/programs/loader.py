"""Each rank reads its data through a DataLoader that forks two processes of its own.

    loader.py           sums the whole data set
    loader.py fail      rank 1 is killed in the middle, while every reader is stuck in an item that never comes
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

ITEMS = 32
BATCH = 4
LAST_STEP = 2


class Numbers(Dataset):
    """The numbers from 1; in the failing job those of later batches never come."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        while self.fails and index >= BATCH * LAST_STEP:
            signal.pause()
        return torch.tensor(float(index + 1))


def tell(_reader: int) -> None:
    # `print` would write the line's end apart, and another process may write in between.
    sys.stdout.write(f"reader pid={os.getpid()} rank={os.environ['RANK']}\n")
    sys.stdout.flush()


def main() -> None:
    fails = sys.argv[1:] == ["fail"]
    dist.init_process_group("gloo")
    data = Numbers(fails)
    loader = DataLoader(
        data, batch_size=BATCH, num_workers=2, multiprocessing_context="fork", worker_init_fn=tell
    )
    total = torch.zeros(1)
    for step, numbers in enumerate(loader, start=1):
        part = numbers.sum() * (dist.get_rank() + 1)
        dist.all_reduce(part)
        total += part
        if fails and step == LAST_STEP and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    if dist.get_rank() == 0:
        print(f"total {total.item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

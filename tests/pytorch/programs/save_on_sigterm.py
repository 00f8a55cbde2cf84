"""Saves a checkpoint on SIGTERM. The checkpoint has one more step in it, for which the data loaders are needed.

    save_on_sigterm.py FOLDER
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset

PROCESSES = 4
# More than the loader's processes make ready in advance.
BATCHES_PER_STEP = 50


class Endless(IterableDataset):
    """Ones without an end."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.ones(1)


def tell(text: str) -> None:
    # `print` would write the line's end apart, and another process may write in between.
    sys.stdout.write(f"{text} rank={os.environ['RANK']}\n")
    sys.stdout.flush()


def main() -> None:
    checkpoint = Path(sys.argv[1]) / f"rank{os.environ['RANK']}.pt"
    loader = DataLoader(Endless(), batch_size=4, num_workers=PROCESSES, multiprocessing_context="fork")
    batches = iter(loader)
    is_last = False

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal is_last
        is_last = True

    # The loader's processes, which are there by now, have no handler.
    signal.signal(signal.SIGTERM, on_signal)
    total = torch.zeros(1)
    tell("ready")
    while True:
        saves = is_last
        for _ in range(BATCHES_PER_STEP):
            total += next(batches).sum()
        if saves:
            torch.save({"total": total}, checkpoint)
            tell("saved")
            sys.exit(0)


if __name__ == "__main__":
    main()

"""A job that stops in the middle: rankrun says which rank is missing where, and starts all ranks again.

    rankrun --nproc-per-node 2 --hang-timeout 5 --max-restarts 1 examples/pytorch/hang.py

Only the first attempt of rank 1 hangs; `--how` says in which way.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import threading
import time

import torch
import torch.distributed as dist

LONG = 3600


class Heartbeat:
    """Sends one line after each step: `STEP [section=NAME] [limit=SECONDS]`. A launcher that does not read delays nothing."""

    def __init__(self):
        try:
            self.descriptor = os.open(os.environ["RANKRUN_HEARTBEAT"], os.O_WRONLY | os.O_NONBLOCK)
        except (KeyError, OSError):
            self.descriptor = os.open(os.devnull, os.O_WRONLY)

    def send(self, line):
        with contextlib.suppress(OSError):
            os.write(self.descriptor, f"{line}\n".encode())

    def close(self):
        os.close(self.descriptor)


def sleep():
    time.sleep(LONG)


def sleep_in_c():
    """As an extension module that does not release the GIL."""
    ctypes.PyDLL(None).sleep(LONG)


def spin():
    while True:
        pass


def wait_for_lock():
    lock = threading.Lock()
    with lock:
        lock.acquire()


def load_batch():
    """Waits for a worker of its data loader."""

    class Stuck(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            time.sleep(LONG)

    next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=1)))


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def leave():
    os._exit(0)


def call_other_collective():
    dist.broadcast(torch.ones(4), 0)


def call_with_other_size():
    dist.all_reduce(torch.ones(5))


HANGS = {
    "sleep": sleep,
    "c-sleep": sleep_in_c,
    "spin": spin,
    "lock": wait_for_lock,
    "loader": load_batch,
    "stop": stop,
    "exit": leave,
    "desync": call_other_collective,
    "sizes": call_with_other_size,
}
# Nothing hangs in these: a slow start, a checkpoint, an evaluation on rank 0, and a program that shows no more steps.
SLOW = ["slow-start", "checkpoint", "evaluate", "quiet"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=[*HANGS, *SLOW], default="sleep")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0, help="seconds of each step")
    parser.add_argument("--slow", type=float, default=6, help="seconds of what is only slow")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    middle, is_odd = args.steps // 2, rank == 1 and attempt == 0
    with contextlib.closing(Heartbeat()) as heartbeat:
        if args.how == "slow-start" and is_odd:
            time.sleep(args.slow)
        for step in range(1, args.steps + 1):
            if step == middle and is_odd and args.how in HANGS:
                HANGS[args.how]()
            if step == middle and args.how == "checkpoint":
                heartbeat.send(f"{step} section=checkpoint limit=600")
                time.sleep(args.slow)
            if step == middle and args.how == "evaluate":
                if rank == 0:
                    heartbeat.send(f"{step} section=evaluate limit=600")
                    time.sleep(args.slow)
                dist.barrier()
            time.sleep(args.pause)
            dist.all_reduce(torch.ones(4))
            if args.how != "quiet" or step < middle:
                heartbeat.send(step)
        print(f"rank {rank} is done in attempt {attempt}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

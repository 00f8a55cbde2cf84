"""A job that stops in the middle: rankrun says which rank is missing where, and starts all ranks again.

    rankrun --nproc-per-node 2 --hang-timeout 5 --max-restarts 1 examples/pytorch/hang.py

Only the first attempt hangs. `--how desync` has rank 1 call another collective, and `--how sizes` one of another size.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist


def open_heartbeat():
    """A file for one line after each step: `STEP [section=NAME] [limit=SECONDS]`."""
    return open(os.environ.get("RANKRUN_HEARTBEAT") or os.devnull, "w", buffering=1)


def call_wrong_collective(how):
    if how == "sleep":
        print("rank 1 sleeps", flush=True)
        time.sleep(3600)
    if how == "desync":
        dist.broadcast(torch.ones(4), 0)
    if how == "sizes":
        dist.all_reduce(torch.ones(5))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["sleep", "desync", "sizes", "slow-start"], default="sleep")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    heartbeat = open_heartbeat()
    if args.how == "slow-start" and rank == 1:
        time.sleep(6)
    for step in range(1, args.steps + 1):
        if step == args.steps // 2 and rank == 1 and attempt == 0 and args.how != "slow-start":
            call_wrong_collective(args.how)
        dist.all_reduce(torch.ones(4))
        print(step, file=heartbeat)
    print(f"rank {rank} is done in attempt {attempt}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

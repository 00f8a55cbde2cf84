"""Trains a small classifier with DistributedDataParallel over gloo.

Start it with any launcher that sets torch's environment variables:

    rankrun  --standalone --nproc-per-node 4 examples/pytorch/ddp.py
    torchrun --standalone --nproc-per-node 4 examples/pytorch/ddp.py

With --checkpoint it saves its state every few steps and goes on from there after a restart; --fail-at lets one rank
fail once, to see that happen (start it with --max-restarts 1).
"""

import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROWS = 1024
FEATURES = 20
CLASSES = 4
BATCH = 64


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="DDP training over gloo with checkpoint and resume")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps in all (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of data and weights (default: 0)")
    parser.add_argument("--checkpoint", metavar="FILE", help="save the state here, and resume from it")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--fail-at", type=int, metavar="STEP", help="let a rank fail before this step, once")
    parser.add_argument("--fail-rank", type=int, default=1, metavar="RANK")
    parser.add_argument("--fail-how", choices=["exit", "kill"], default="exit", help="with code 17, or by SIGKILL")
    return parser.parse_args()


def make_data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random points, labelled by a random linear map: the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(ROWS, FEATURES, generator=generator)
    teacher = torch.randn(FEATURES, CLASSES, generator=generator)
    return inputs, (inputs @ teacher).argmax(dim=1)


def load(path: str | None, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restores the state, if there is one, and returns the step to go on with."""
    if path is None or not os.path.exists(path):
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save(path: str, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Writes beside, then renames: a reader sees the old state or the new one, never half of it."""
    beside = f"{path}.new"
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, beside)
    os.replace(beside, path)


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    torch.manual_seed(args.seed)
    plain = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, CLASSES))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    first_step = load(args.checkpoint, plain, optimizer)
    model = DistributedDataParallel(plain)
    inputs, labels = make_data(args.seed)
    if rank == 0:
        print(f"world size {world_size}, restart {restarts}, from step {first_step}", flush=True)

    for step in range(first_step, args.steps):
        if step == args.fail_at and rank == args.fail_rank and restarts == 0:
            print(f"rank {rank} fails before step {step}", flush=True)
            if args.fail_how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit(17)
        # Each rank takes every world_size-th row of the step's batch.
        rows = torch.arange(step * BATCH + rank, (step + 1) * BATCH, world_size) % ROWS
        loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.checkpoint and (step + 1) % args.checkpoint_every == 0 and rank == 0:
            save(args.checkpoint, step + 1, plain, optimizer)

    if rank == 0:
        with torch.no_grad():
            outputs = plain(inputs)
        loss = nn.functional.cross_entropy(outputs, labels).item()
        accuracy = (outputs.argmax(dim=1) == labels).float().mean().item()
        print(f"after {args.steps} steps: loss {loss:.9f}, accuracy {accuracy:.4f}", flush=True)
    # One of gloo's threads that still frees a gradient while Python ends aborts the process ("terminate called without an
    # active exception"), under any launcher. The barrier gives it time, which suffices on all but a loaded machine.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains over gloo with a checkpoint, and says what the same steps give in one process that never fails.

It averages gradients and makes the steps by hand: DistributedDataParallel and torch.optim import the compiler, which takes as
long as all else that a short job does. `examples/pytorch/ddp.py` has both, and the same options but for `--fail-how`.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist

ROWS = 1024
FEATURES = 20
CLASSES = 4
BATCH = 64
RATE = 0.1
MOMENTUM = 0.9

State = dict[str, torch.Tensor]


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, FEATURES, generator=generator)
    teacher = torch.randn(FEATURES, CLASSES, generator=generator)
    return inputs, (inputs @ teacher).argmax(dim=1)


def make_state() -> State:
    weights = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(1))
    return {"weights": weights, "momenta": torch.zeros_like(weights)}


def loss_of(state: State, rows: torch.Tensor) -> torch.Tensor:
    inputs, labels = make_data()
    return torch.nn.functional.cross_entropy(inputs[rows] @ state["weights"], labels[rows])


def train_step(state: State, step: int, rank: int, world_size: int) -> torch.Tensor:
    """Each rank takes every world_size-th row of the step's batch. Gives the gradient."""
    rows = torch.arange(step * BATCH + rank, (step + 1) * BATCH, world_size) % ROWS
    weights = state["weights"].requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(state, rows), weights)
    if world_size > 1:
        dist.all_reduce(gradient)
    momenta = MOMENTUM * state["momenta"] + gradient / world_size
    state.update(weights=weights.detach() - RATE * momenta, momenta=momenta)
    return gradient


def load(path: str) -> tuple[State, int]:
    """The state, and the step to go on with."""
    if not os.path.exists(path):
        return make_state(), 0
    saved = torch.load(path, weights_only=True)
    return saved["state"], saved["step"]


def save(path: str, state: State, step: int) -> None:
    """Writes beside, then renames: a reader sees the old state or the new one, never half of it."""
    torch.save({"state": state, "step": step}, f"{path}.new")
    os.replace(f"{path}.new", path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--checkpoint", metavar="FILE")
    parser.add_argument("--checkpoint-every", type=int, metavar="STEPS")
    parser.add_argument("--fail-at", type=int, metavar="STEP")
    parser.add_argument("--fail-rank", type=int, metavar="RANK")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    state, first_step = load(args.checkpoint)
    if rank == 0:
        print(f"world size {world_size}, restart {restarts}, from step {first_step}", flush=True)
    # PyTorch 2.4 deadlocks in `destroy_process_group` if gloo alone has a tensor by then (see meet.py).
    gradients = []
    for step in range(first_step, args.steps):
        if step == args.fail_at and rank == args.fail_rank and restarts == 0:
            sys.exit(17)
        gradients.append(train_step(state, step, rank, world_size))
        if (step + 1) % args.checkpoint_every == 0 and rank == 0:
            save(args.checkpoint, state, step + 1)
    dist.destroy_process_group()

    if rank == 0:
        alone = make_state()
        for step in range(args.steps):
            train_step(alone, step, 0, 1)
        losses = (loss_of(model, torch.arange(ROWS)).item() for model in (state, alone))
        print("loss {:.9f}, alone {:.9f}".format(*losses), flush=True)


if __name__ == "__main__":
    main()

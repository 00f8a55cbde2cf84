"""Trains a model that FSDP shards over the ranks, and keeps it with torch.distributed.checkpoint.

    sharded_checkpoint.py FOLDER FAIL_AT        rank 1 fails before that step, once; then the group goes on from FOLDER
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = 10
SAVE_AFTER = 5
ROWS = 16


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
    return inputs, inputs.sum(dim=1, keepdim=True)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: slice) -> None:
    inputs, targets = make_data()
    loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def loss_of(model: nn.Module) -> float:
    inputs, targets = make_data()
    return nn.functional.mse_loss(model(inputs), targets).item()


def loss_alone() -> float:
    """Where one process ends that shards nothing and is never disturbed."""
    model = make_model()
    optimizer = make_optimizer(model)
    for _ in range(STEPS):
        train_step(model, optimizer, slice(None))
    return loss_of(model)


def save(folder: str, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    weights, momenta = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": momenta, "step": step}, checkpoint_id=folder)


def load(folder: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restores the state, if there is one, and returns the step to go on with."""
    if not os.path.exists(os.path.join(folder, ".metadata")):
        return 0
    weights, momenta = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": momenta, "step": 0}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["step"]


def main() -> None:
    folder, fail_at = sys.argv[1], int(sys.argv[2])
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = make_model()
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    optimizer = make_optimizer(model)
    first = load(folder, model, optimizer)
    if rank == 0:
        print(f"restart {restarts}, from step {first}", flush=True)
    for step in range(first, STEPS):
        if step == fail_at and rank == 1 and restarts == 0:
            sys.exit(9)
        train_step(model, optimizer, slice(rank, None, world_size))
        if step + 1 == SAVE_AFTER:
            save(folder, model, optimizer, step + 1)
    loss = loss_of(model)
    if rank == 0:
        print(f"ended with loss {loss:.9f}, alone {loss_alone():.9f}", flush=True)
    dist.destroy_process_group()
    # FSDP and its mesh hold the group, so that gloo's threads live on. One that still frees a tensor while Python ends aborts the
    # process ("terminate called without an active exception"), under any launcher.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

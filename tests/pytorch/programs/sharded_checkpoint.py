"""Trains a model that FSDP shards over the ranks, and keeps it with torch.distributed.checkpoint.

    sharded_checkpoint.py FOLDER [FAIL_AT]      rank 1 fails before that step, once; then the group goes on from FOLDER
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


def main() -> None:
    folder = sys.argv[1]
    fail_at = int(sys.argv[2]) if len(sys.argv) > 2 else None
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    first = 0
    if os.path.exists(os.path.join(folder, ".metadata")):
        weights, momenta = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": momenta, "step": 0}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        first = state["step"]
    if rank == 0:
        print(f"restart {restarts}, from step {first}", flush=True)

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, 4, generator=generator)
    targets = inputs.sum(dim=1, keepdim=True)
    for step in range(first, STEPS):
        if step == fail_at and rank == 1 and restarts == 0:
            sys.exit(9)
        loss = nn.functional.mse_loss(model(inputs[rank::world_size]), targets[rank::world_size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step + 1 == SAVE_AFTER:
            weights, momenta = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": momenta, "step": step + 1}, checkpoint_id=folder)

    mean = nn.functional.mse_loss(model(inputs), targets).detach()
    if rank == 0:
        print(f"ended with loss {mean.item():.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

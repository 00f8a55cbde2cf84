"""A DeepSpeed training as people write it: `--local_rank` is an argument, ZeRO is off, the optimizer is PyTorch's."""

import argparse
import os

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--steps", type=int, default=20)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()

# DeepSpeed would compile its collectives in shared memory here; without them it takes gloo's.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
config = {"train_micro_batch_size_per_gpu": 16, "zero_optimization": {"stage": 0}}
engine, _, _, _ = deepspeed.initialize(args=args, model=model, optimizer=optimizer, config=config)

torch.manual_seed(1 + engine.global_rank)
for step in range(args.steps):
    inputs = torch.randn(16, 8)
    loss = torch.nn.functional.mse_loss(engine(inputs), inputs.sum(1, keepdim=True))
    engine.backward(loss)
    engine.step()
total = sum(float(parameter.detach().sum()) for parameter in model.parameters())
print(
    f"rank {engine.global_rank} of {engine.world_size}, argument {args.local_rank}: loss {loss.item():.4f}, sum {total:.4f}",
    flush=True,
)
torch.distributed.destroy_process_group()
# A model of DDP keeps gloo's threads for ever. One that still frees a tensor while Python ends aborts the process ("terminate
# called without an active exception"), under any launcher.
os._exit(0)

"""A training loop with `accelerate.Accelerator`, without a word about its launcher."""

import os
import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.arange(32.0).reshape(8, 4) / 32
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for _ in range(20):
    for batch, wanted in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), wanted)
        accelerator.backward(loss)
        optimizer.step()
losses = accelerator.gather(loss.detach().reshape(1))
accelerator.print(
    f"{accelerator.distributed_type.value} of {accelerator.num_processes} on {accelerator.device.type}, "
    f"{accelerator.mixed_precision}: loss {losses.mean().item():.6f}"
)
accelerator.end_training()
# A model of DDP keeps gloo's threads for ever. One that still frees a tensor while Python ends aborts the process ("terminate
# called without an active exception"), under any launcher.
sys.stdout.flush()
os._exit(0)

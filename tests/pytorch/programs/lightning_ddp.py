"""A Lightning `Trainer` with the strategy "ddp" on two CPU ranks that someone else has started."""

import logging
import os
import sys

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """One linear layer that learns the sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        (inputs,) = batch
        return nn.functional.mse_loss(self.layer(inputs), inputs.sum(dim=1, keepdim=True))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    lightning.seed_everything(0, verbose=False)
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    model = Regression()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        default_root_dir=sys.argv[1],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(inputs), batch_size=8))
    environment = trainer.strategy.cluster_environment
    if trainer.is_global_zero:
        with torch.no_grad():
            loss = nn.functional.mse_loss(model.layer(inputs), inputs.sum(dim=1, keepdim=True)).item()
        place = f"{type(environment).__name__}, world size {trainer.world_size}"
        print(f"{place}: loss {loss:.9f}, steps {trainer.global_step}", flush=True)
    # A model of DDP keeps gloo's threads for ever. One that still frees a tensor while Python ends aborts the process ("terminate
    # called without an active exception"), under any launcher.
    os._exit(0)


if __name__ == "__main__":
    main()

"""PyTorch's tutorial "Data Parallelism", with the shapes of the Rust example `data_parallel`.

    python examples/pytorch/data_parallel.py
    python examples/pytorch/data_parallel.py --device-ids cpu:0,cpu:1

Without a launcher both print the same lines; those of the Rust example also name rank, device and process. On CPUs torch's
DataParallel runs the module as it is, so the script has a split of its own for them.
"""

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RandomDataset(Dataset):
    def __init__(self, features: int, rows: int) -> None:
        self.data = torch.randn(rows, features)

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.data[row]

    def __len__(self) -> int:
        return len(self.data)


class Model(nn.Module):
    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, outputs)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output = self.linear(input)
        print(f"In Model: input size {list(input.size())}, output size {list(output.size())}")
        return output


class CpuDataParallel(nn.Module):
    """What nn.DataParallel does on GPUs: replicas, a chunk of the batch for each, and their outputs put together."""

    def __init__(self, module: nn.Module, count: int) -> None:
        super().__init__()
        self.replicas = nn.ModuleList(copy.deepcopy(module) for _ in range(count))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        parts = torch.chunk(batch, len(self.replicas))
        return torch.cat([replica(part) for replica, part in zip(self.replicas, parts)])


def main() -> None:
    parser = argparse.ArgumentParser(description="a batch on several devices of one process")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--batch", type=int, default=30)
    parser.add_argument("--features", type=int, default=1000)
    parser.add_argument("--outputs", type=int, default=2)
    parser.add_argument("--device-ids", help="such as cuda:1,cuda:0 or cpu:0,cpu:1 (default: all GPUs, or the CPU)")
    args = parser.parse_args()

    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    names = args.device_ids.split(",") if args.device_ids else gpus or ["cpu:0"]
    devices = [torch.device(name) for name in names]
    kind = devices[0].type

    model = Model(args.features, args.outputs)
    if len(devices) > 1:
        print(f"Let's use {len(devices)} {'GPUs' if kind == 'cuda' else 'CPU devices'}!")
    if kind == "cuda":
        model = nn.DataParallel(model, device_ids=devices)
    else:
        model = CpuDataParallel(model, len(devices))
    model.to(devices[0])

    for batch in DataLoader(RandomDataset(args.features, args.rows), batch_size=args.batch, shuffle=True):
        input = batch.to(devices[0])
        output = model(input)
        print(f"Outside: input size {list(input.size())}, output size {list(output.size())}")


if __name__ == "__main__":
    main()

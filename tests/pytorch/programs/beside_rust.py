"""A Python rank in a job with even ranks in Rust (`fixtures/beside_torch.rs`): both meet on one store."""

import faulthandler
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.utils import store as elastic

PATIENCE = 120.0


def values(rank: int) -> torch.Tensor:
    """What a rank gives: every value is rounded, so that only the same bits are equal."""
    return torch.full((1000,), rank + 1.0) / torch.arange(1, 1001, dtype=torch.float32)


def total_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Element by element, in the order of the ranks."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


def exchange(store: dist.Store, name: str, own: torch.Tensor) -> list[torch.Tensor]:
    """Says it to all ranks, and hears it of all."""
    store.set(f"{name}/{RANK}", bytes(own.view(torch.uint8).tolist()))
    found = store.multi_get([f"{name}/{rank}" for rank in range(WORLD)])
    return [torch.frombuffer(bytearray(value), dtype=torch.float32) for value in found]


def main() -> None:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    tcp = dist.TCPStore(address, port, WORLD, is_master=False, timeout=timedelta(seconds=PATIENCE))
    store = dist.PrefixStore("beside", tcp)

    heard = exchange(store, "value", values(RANK))
    assert all(torch.equal(tensor, values(rank)) for rank, tensor in enumerate(heard)), "a value"
    total = total_of(heard)
    assert all(torch.equal(tensor, total) for tensor in exchange(store, "sum", total)), "a sum"

    # A group of the Python ranks, on the store that the Rust ranks' group uses.
    dist.init_process_group("gloo", store=dist.PrefixStore("python", tcp), rank=RANK // 2, world_size=WORLD // 2)
    reduced = values(RANK)
    dist.all_reduce(reduced)
    dist.destroy_process_group()
    for rank, tensor in enumerate(exchange(store, "reduced", reduced)):
        kind = [values(other) for other in range(rank % 2, WORLD, 2)]
        assert torch.equal(tensor, total_of(kind)), f"the sum of rank {rank}'s kind"

    store.add("count", RANK + 1)
    elastic.barrier(store, WORLD, "counted", PATIENCE)
    assert store.add("count", 0) == WORLD * (WORLD + 1) // 2, "the count"
    winner = store.compare_set("winner", "", str(RANK))
    elastic.barrier(store, WORLD, "won", PATIENCE)
    assert store.get("winner") == winner, "the winner"
    bits = int.from_bytes(bytes(total[999:].view(torch.uint8).tolist()), "little")
    # `print` would write the line's end apart, and the other ranks may write in between.
    sys.stdout.write(f"agreed rank={RANK} winner={winner.decode()} bits={bits:08x}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    main()

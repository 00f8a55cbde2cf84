"""Uses the agent's store directly, as libraries beside torch's process groups do: keys, counters, barriers."""

import os
import sys

import torch.distributed as dist
from torch.distributed.elastic.utils import store as elastic

PATIENCE = 60.0


def give_up_waiting(store: dist.Store, rank: int, world_size: int) -> str | None:
    """Rank 1 stays away from a barrier: what is rank 0 told?"""
    if rank == 1:
        store.wait(["given up"])
        return None
    try:
        told = "nothing"
        elastic.barrier(store, world_size, "lonely", 1.0, rank, lambda number: f"rank {number}", 1.0)
    except dist.DistStoreError as error:
        told = str(error)
    store.set("given up", "")
    return told


def facts(rank: int, world_size: int) -> dict[str, object]:
    assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # Every rank is a client: the agent serves.
    tcp = dist.TCPStore(address, port, world_size, is_master=False)
    found = {}
    if rank == 0:
        found["keys of others"] = sorted(key for key in tcp.list_keys() if not key.startswith("user/"))
    store = dist.PrefixStore("user", tcp)
    elastic.barrier(store, world_size, "first", PATIENCE)
    found["gathered"] = elastic.synchronize(store, f"from {rank}".encode(), rank, world_size, "data", PATIENCE)
    found["again"] = elastic.synchronize(store, b"x" * (rank + 1), rank, world_size, "more", PATIENCE)
    store.add("count", rank + 10)
    elastic.barrier(store, world_size, "second", PATIENCE, rank, str)
    found["count"] = store.get("count")
    found["through the bare store"] = tcp.get("user/count")
    found["keys"] = sorted(store.check([key]) for key in ("count", "absent"))
    found["lonely"] = give_up_waiting(store, rank, world_size)
    # The one that torch itself would use for a process group.
    other, _, _ = next(dist.rendezvous("env://"))
    found["env://"] = other.get("user/count")
    elastic.barrier(store, world_size, "last", PATIENCE)
    return found


def main() -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for name, value in facts(rank, world_size).items():
        # `print` would write the line's end apart, and the other rank may write in between.
        sys.stdout.write(f"fact {rank} {name}: {value}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

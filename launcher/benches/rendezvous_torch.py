"""Torch's own rendezvous for the bench: reads how many agents, answers what a first and a next round of them took.

Agents are threads, each with a `TCPStore` client and a `DynamicRendezvousHandler` of its own. The address exchange is a
part of `next_rendezvous`, the exchange of ranks is done as torch's agent does it. Times are in milliseconds.
"""

import datetime
import json
import sys
import threading
import time
import uuid

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

LIMIT = datetime.timedelta(seconds=120)


def exchange(info):
    """What `SimpleElasticAgent._assign_worker_ranks` does in the store."""
    store, rank, size = info.store, info.rank, info.world_size
    prefix = "torchelastic/role_info/"
    said = {"role": "default", "rank": rank, "local_world_size": 1}
    store.set(f"{prefix}{rank}", json.dumps(said))
    if rank == 0:
        keys = [f"{prefix}{other}" for other in range(size)]
        store.multi_get(keys)
        assigned = [f"torchelastic/assigned_ranks/{other}" for other in range(size)]
        store.multi_set(assigned, [json.dumps([other, size, other, size]) for other in range(size)])
    store.get(f"torchelastic/assigned_ranks/{rank}")


def together(handlers):
    """One round of all; how long it took."""

    def one(handler):
        exchange(handler.next_rendezvous())

    threads = [threading.Thread(target=one, args=(handler,)) for handler in handlers]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.monotonic() - start) * 1000


def job(count):
    """A job of so many agents: its first round and the next."""
    run_id = str(uuid.uuid4())
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    start = time.monotonic()
    handlers = []
    for _ in range(count):
        store = TCPStore("localhost", server.port, is_master=False, wait_for_workers=False, timeout=LIMIT)
        backend = C10dRendezvousBackend(store, run_id)
        handlers.append(
            DynamicRendezvousHandler.from_backend(run_id, store, backend, count, count, local_addr="localhost")
        )
    connected = (time.monotonic() - start) * 1000
    fresh = connected + together(handlers)
    following = together(handlers)
    handlers[0].shutdown()
    for handler in handlers:
        handler._stop_heartbeats()
    return fresh, following


def main():
    """One job for each line."""
    for line in sys.stdin:
        fresh, following = job(int(line))
        print(f"{fresh:.3f} {following:.3f}", flush=True)


main()

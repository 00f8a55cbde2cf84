"""One of two gloo workers that know their store only from the environment, as a launcher's workers do."""

import faulthandler
from datetime import timedelta

import torch
import torch.distributed as dist

faulthandler.dump_traceback_later(120, exit=True)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
assert size == 2

tensor = torch.tensor([rank + 1.0])
dist.all_reduce(tensor)
assert tensor.item() == 3.0
dist.barrier()
dist.monitored_barrier()
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": 0}, {"rank": 1}]

group = dist.new_group([0, 1])
dist.all_reduce(tensor, group=group)
assert tensor.item() == 6.0

store = dist.distributed_c10d._get_default_store()
addresses = [key for key in store.list_keys() if "cpu//" in key]
assert len(addresses) == 4, store.list_keys()
if rank == 0:
    store.queue_push("work", "item")
else:
    assert store.queue_pop("work") == b"item"
try:
    store.wait(["never set"], timedelta(milliseconds=100))
except dist.DistStoreError:
    pass
else:
    raise AssertionError("a wait for nothing ended well")
store.set(f"after the timeout {rank}", "usable")
assert store.get(f"after the timeout {1 - rank}") == b"usable"
dist.destroy_process_group()
print(f"rank {rank} done")

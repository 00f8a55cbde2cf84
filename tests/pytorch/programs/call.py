"""Calls a function on the next rank over torch's RPC (TensorPipe), and tells what it answered."""

import os

import torch.distributed.rpc as rpc


def double(value: int) -> int:
    return 2 * value


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world)
    found = rpc.rpc_sync(f"worker{(rank + 1) % world}", double, args=(rank + 1,))
    rpc.shutdown()
    interface = os.environ.get("TP_SOCKET_IFNAME", "none")
    print(f"called world={world} answer={found}", flush=True)
    print(f"finished rank={rank} interface={interface}", flush=True)


main()

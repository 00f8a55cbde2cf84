"""Records what the flight recorder of real gloo jobs says, for the tests of the reader.

Run it with a Python that has torch 2.15: `python record.py`. It writes `SCENARIO-RANK.json` beside itself, and of the
scenario `missing` also `missing-RANK.pickle`, as a dump file has it.
"""

import http.client
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time

RANKS = 3


def train(rank, scenario, folder, collectives_begin):
    import torch
    import torch.distributed as dist

    server = torch._C._distributed_c10d._WorkerServer(os.path.join(folder, f"{rank}.sock"))
    store = dist.FileStore(os.path.join(folder, "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    pair = dist.new_group([0, 1])
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if rank < 2:
        dist.broadcast(torch.ones(2), 0, group=pair)
    dist.barrier()
    collectives_begin.wait()
    if scenario == "missing":
        threading.Timer(2, dump, [rank]).start()
    if scenario == "missing" and rank == 2:
        time.sleep(600)
    if scenario == "subgroup":
        if rank == 0:
            dist.all_reduce(torch.ones(4), group=pair)
        time.sleep(600)
    if scenario == "names" and rank == 1:
        dist.broadcast(torch.ones(4), 2)
    if scenario == "sizes" and rank == 1:
        dist.all_reduce(torch.ones(5))
    if scenario != "done":
        dist.all_reduce(torch.ones(4))
    time.sleep(600)
    del server


def dump(rank):
    from torch._C._distributed_c10d import _dump_fr_trace

    with open(own_path(f"missing-{rank}.pickle"), "wb") as file:
        file.write(_dump_fr_trace(includeCollectives=True, includeStackTraces=True, onlyActive=False))


def own_path(name):
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), name)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=5)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def trace(path):
    connection = UnixConnection(path)
    connection.request("POST", "/handler/fr_trace_json?backend=gloo")
    return connection.getresponse().read()


def record(scenario):
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        begin = context.Barrier(RANKS + 1)
        jobs = [context.Process(target=train, args=(rank, scenario, folder, begin)) for rank in range(RANKS)]
        for job in jobs:
            job.start()
        begin.wait()
        time.sleep(6)
        for rank in range(RANKS):
            text = trace(os.path.join(folder, f"{rank}.sock"))
            json.loads(text)
            with open(own_path(f"{scenario}-{rank}.json"), "wb") as file:
                file.write(text)
        for job in jobs:
            job.kill()
            job.join()


if __name__ == "__main__":
    for scenario in sys.argv[1:] or ["missing", "names", "sizes", "subgroup", "done"]:
        record(scenario)

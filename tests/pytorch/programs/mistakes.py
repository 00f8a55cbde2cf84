"""Mistakes with PyTorch that end a job: `mistakes.py MISTAKE [ARGUMENT]`."""

import datetime
import os
import socket
import sys
import time

import torch
import torch.distributed as dist


class AtTheEnd:
    """Lives until Python takes the script's names away, and then tells the other rank."""

    def __del__(self, mkdir=os.mkdir, path=sys.argv[-1], sleep=time.sleep):
        mkdir(path)
        # The abort of gloo's thread ends it.
        sleep(1000)


mistake = sys.argv[1]
if mistake == "no-destroy":
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        # Gloo's thread calls `print` once the other rank has come, and Python is at its end by then.
        dist.all_reduce(torch.ones(1), async_op=True).get_future().then(print)
        end = AtTheEnd()
    else:
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
        dist.all_reduce(torch.ones(1))
        time.sleep(1000)
elif mistake == "nccl":
    dist.init_process_group("nccl")
elif mistake == "port":
    port = int(sys.argv[2])
    if os.environ["RANK"] == "1":
        time.sleep(1000)
    listener = socket.socket()
    listener.bind(("", port))
    listener.listen()
    os.environ["MASTER_PORT"] = str(port)
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
    dist.init_process_group("gloo")
elif mistake == "meet":
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    dist.all_reduce(torch.ones(1))

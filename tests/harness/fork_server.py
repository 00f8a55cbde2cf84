"""Starts PyTorch's torchrun many times with one import of PyTorch, which is most of what a start costs.

Standard input is a socket of the test process (tests/harness/fork_server.rs):
- A launch is the number of arguments, the working directory, the arguments and the environment, with a NUL between them,
  and three descriptors. This process forks, and answers the pid. The child becomes torchrun, with the descriptors as its
  standard streams.
- A pid asks for the wait status of that child, which has ended.
This process ends with the test process.
"""

import gc
import os
import runpy
import signal
import socket
import sys

import torch.distributed.run  # noqa: F401


def serve():
    """Answers requests; returns a launch in the child that is to run it."""
    requests = socket.socket(fileno=0)
    while True:
        request, streams, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not request:
            os._exit(0)
        if not streams:
            _, status = os.waitpid(int(request), 0)
            requests.send(b"%d" % status)
            continue
        pid = os.fork()
        if pid == 0:
            requests.detach()
            return request.split(b"\0"), streams
        for stream in streams:
            os.close(stream)
        requests.send(b"%d" % pid)


# What Python and PyTorch have added to the environment, they add to that of a torchrun too.
with open("/proc/self/environ", "rb") as given:
    names = {variable.partition(b"=")[0] for variable in given.read().split(b"\0")}
added = {name: value for name, value in os.environb.items() if name not in names}
interrupt_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
# A collection in a child would copy all pages of the imported modules.
gc.freeze()

(count, folder, *rest), streams = serve()

signal.signal(signal.SIGINT, interrupt_handler)
for number, stream in enumerate(streams):
    os.dup2(stream, number)
    os.close(stream)
os.chdir(folder)
os.environb.clear()
os.environb.update(variable.split(b"=", 1) for variable in rest[int(count) :])
os.environb.update(added)
sys.argv = [os.fsdecode(argument) for argument in rest[: int(count)]]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")

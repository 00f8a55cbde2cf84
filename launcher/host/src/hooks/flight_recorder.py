# Lets the launcher ask PyTorch's flight recorder in this process which collectives it has called.
#
# The launcher writes this file and sitecustomize.py into one file, whose last step calls `start_flight_recorder`. It
# waits for the import of `torch.distributed`, which it neither causes nor delays, and then starts the server of
# PyTorch's control plane on the socket in RANKRUN_FLIGHT_RECORDER. The server has threads of its own without the GIL.
import os
import sys


def start_flight_recorder():
    path = os.environ.pop("RANKRUN_FLIGHT_RECORDER", None)
    if path and "torch.distributed" not in sys.modules:
        sys.meta_path.insert(0, _Finder(path))


class _Finder:
    """Finds `torch.distributed` as the other finders do, and has its loader start the server behind it."""

    def __init__(self, path):
        self.path = path
        self.pid = os.getpid()

    def find_spec(self, name, path=None, target=None):
        # The socket is that of the worker, and not of a process that it has forked.
        if name != "torch.distributed" or os.getpid() != self.pid:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                _wrap(spec.loader, self.path)
                return spec
        return None


def _wrap(loader, path):
    exec_module = getattr(loader, "exec_module", None)
    if exec_module is None:
        return

    def exec_and_start(module):
        del loader.exec_module
        exec_module(module)
        _start(path)

    try:
        # The loader is made for this one import.
        loader.exec_module = exec_and_start
    except AttributeError:
        pass


def _start(path):
    """A program without a recorder runs as before."""
    try:
        import ctypes

        from torch._C._distributed_c10d import _WorkerServer

        if os.path.lexists(path):
            os.unlink(path)
        server = _WorkerServer(path)
        # Its end would write lines to stderr: it ends with the process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    except Exception:
        pass

# Lets the launcher ask PyTorch's flight recorder in this process which collectives it has called.
#
# The launcher writes this file and sitecustomize.py into one file, whose last step calls `start_flight_recorder`. It
# waits for the import of `torch.distributed`, which it neither causes nor delays, and then starts the server of
# PyTorch's control plane on the socket in RANKRUN_FLIGHT_RECORDER. The server has threads of its own without the GIL.
# Before the import it gives the recorder's variables the names that older versions of PyTorch know.
import os
import sys

_OLD_NAMES = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_ON_TIMEOUT": "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}


def start_flight_recorder():
    path = os.environ.pop("RANKRUN_FLIGHT_RECORDER", None)
    is_needed = path or any(name in os.environ for name in _OLD_NAMES)
    if is_needed and "torch.distributed" not in sys.modules:
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
        _set_old_names()
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                if self.path:
                    _wrap(spec.loader, self.path)
                return spec
        return None


def _set_old_names():
    """PyTorch 2.15 warns of the old names, so it does not get them."""
    try:
        version = sys.modules["torch.version"].__version__
        if tuple(int(number) for number in version.split(".")[:2]) < (2, 15):
            for name, old in _OLD_NAMES.items():
                if name in os.environ:
                    os.environ.setdefault(old, os.environ[name])
    except Exception:
        pass


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

# Python runs this file before the worker's program, since the launcher put its folder first in PYTHONPATH.
# It leaves no trace of itself, lets the launcher ask for the stacks of this process, and runs the sitecustomize
# that would have run without it. `rankrun --no-hooks` switches it off.
import os
import sys


def _hide():
    """Takes this folder out of sys.path and PYTHONPATH, so that children do not get it, and this module out of sys.modules."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)
    first, separator, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if first and os.path.abspath(first) == folder:
        if separator:
            os.environ["PYTHONPATH"] = rest
        else:
            del os.environ["PYTHONPATH"]
    sys.modules.pop("sitecustomize", None)


def _arm_stacks():
    """On a signal of the launcher, writes the stacks of all threads to a file in memory that the launcher reads."""
    description = os.environ.pop("RANKRUN_STACKS", "")
    if not description:
        return
    descriptor, inode, signal = (int(number) for number in description.split(":"))
    # A wrapper may have closed the descriptor, and another file may have its number.
    if os.fstat(descriptor).st_ino != inode:
        return
    os.set_inheritable(descriptor, False)
    import faulthandler
    import signal as signals

    # What faulthandler restores when Python ends: a request that comes then must not kill. No child inherits it, since
    # the kernel gives a caught signal its default action at exec.
    signals.signal(signal, signals.SIG_IGN)
    # The handler is C: it answers also where the program waits in C and holds the GIL.
    faulthandler.register(signal, file=descriptor, all_threads=True, chain=False)


# Each works where the ones before have failed.
for _step in (_hide, _arm_stacks, start_flight_recorder):
    try:
        _step()
    except Exception:
        # A worker without stacks is better than a worker that does not start.
        pass

# Without another sitecustomize this raises ImportError, which the site module takes for "there is none".
import sitecustomize  # noqa: E402,F401

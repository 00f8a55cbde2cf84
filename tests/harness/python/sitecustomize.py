"""Python imports this first where `PYTHONPATH` has its folder (`Launch::with_torch`).

PyTorch's modules make a million objects that live as long as the process. Looking for garbage among them, while they are
imported and at the end, is a quarter of what a short program costs.
"""

import atexit
import gc

gc.set_threshold(1_000_000)
atexit.register(gc.freeze)

"""The first attempt of rank 1 hangs inside a timer of PyTorch."""

import os
import time

from torch.distributed.elastic import timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with timer.expires(after=60):
    pass
if (rank, attempt) == ("1", "0"):
    with timer.expires(after=0.5):
        time.sleep(3600)
if attempt == "0":
    time.sleep(3600)
print(f"rank {rank} is done in attempt {attempt}", flush=True)

"""Runs the real `accelerate launch` for each line of standard input, with one import of PyTorch for all of them.

A line is a JSON object with the words behind `launch` and the environment. The child of a fork becomes `accelerate`; its
exit status is printed, one line for each.
"""

import json
import os
import sys
import traceback
import types

import accelerate.commands.launch as launch
import accelerate.utils.launch as preparation
import torch.distributed.run  # noqa: F401

# Neither is installed here; both only decide whether accelerate refuses.
launch.is_deepspeed_available = lambda: True
preparation.is_fp8_available = lambda: True
for name in ("deepspeed", "deepspeed.launcher", "deepspeed.launcher.runner"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["deepspeed.launcher.runner"].DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"


def run(words: list[str]) -> int:
    """The exit status of `accelerate launch` with these words."""
    sys.argv = ["accelerate-launch", *words]
    try:
        launch.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


for line in sys.stdin.read().splitlines():
    case = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.clear()
        os.environ.update(case["environment"])
        status = run(case["words"])
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

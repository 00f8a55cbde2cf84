"""The real `accelerate launch` for `real_launcher`. One line after the other, since accelerate looks whether a port is in use."""

import sys
import types

import accelerate.commands.launch as launch
import accelerate.utils.launch as preparation
import torch.distributed.run  # noqa: F401
from real_launcher import serve

# The first takes seconds to import, the second is not installed; both only decide whether accelerate refuses.
launch.is_deepspeed_available = lambda: True
preparation.is_fp8_available = lambda: True
for name in ("deepspeed", "deepspeed.launcher", "deepspeed.launcher.runner"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["deepspeed.launcher.runner"].DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"


def run(words: list[str]) -> None:
    sys.argv = ["accelerate-launch", *words]
    launch.main()


serve(run, set_by_import={}, are_side_by_side=False)

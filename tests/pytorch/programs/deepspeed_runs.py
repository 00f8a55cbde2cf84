"""The real `deepspeed` for `real_launcher`, all lines side by side. The launcher of the node, which `deepspeed` starts as a Python
of its own, is a fork too.
"""

import os

before = dict(os.environ)

import subprocess
import sys
import types

from deepspeed.launcher import launch, runner
from real_launcher import fork, serve, wait

NODE_LAUNCHER = [sys.executable, "-u", "-m", "deepspeed.launcher.launch"]


class NodeLauncher:
    """What `deepspeed` uses of `subprocess.Popen`."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        words = command[len(NODE_LAUNCHER) :]
        assert command == NODE_LAUNCHER + words, command

        def run() -> None:
            sys.argv = [launch.__file__, *words]
            launch.main()

        self.pid = fork(run, env)

    def wait(self) -> None:
        self.returncode = wait(self.pid)


runner.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": NodeLauncher})
changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
serve(runner.main, set_by_import=changed, are_side_by_side=True)

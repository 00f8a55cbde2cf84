"""Runs a real launcher for command lines of a test, with one import of PyTorch for all of them.

A line of standard input is a JSON object: the words of the launchers that run at the same time, and their environment. Each
launcher is the child of a fork. A line of standard output has the exit statuses of one line.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable

LIMIT_IN_SECONDS = 120


def status_of(run: Callable[[], None]) -> int:
    """The exit status of a Python program."""
    try:
        run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def fork(run: Callable[[], None], environment: dict[str, str]) -> int:
    """The pid of a child with this environment."""
    child = os.fork()
    if child != 0:
        return child
    # One that waits for another launcher would wait for long.
    signal.alarm(LIMIT_IN_SECONDS)
    os.environ.clear()
    os.environ.update(environment)
    status = status_of(run)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def serve(run: Callable[[list[str]], None], set_by_import: dict[str, str], are_side_by_side: bool) -> None:
    """`run` is the launcher with these words."""
    answers = os.fdopen(os.dup(1), "w")
    # What a launcher prints is for a reader of the test's failure.
    os.dup2(2, 1)

    def start(line: str) -> list[int]:
        case = json.loads(line)
        environment = {**set_by_import, **case["environment"]}
        return [fork(lambda words=words: run(words), environment) for words in case["launchers"]]

    lines = sys.stdin.read().splitlines()
    started = [start(line) for line in lines] if are_side_by_side else (start(line) for line in lines)
    for children in started:
        print(json.dumps([wait(child) for child in children]), file=answers, flush=True)

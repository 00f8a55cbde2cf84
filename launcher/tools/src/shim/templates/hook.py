"""Runs rankrun where this environment's torchrun is started. Written by `rankrun shim on`; `off` takes it away."""

import os
import sys

PREFIX = @PREFIX@
TORCHRUN = @TORCHRUN@
RANKRUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torchrun")


def take_over():
    """Becomes rankrun if this interpreter was started as torchrun and the user does not want PyTorch's own."""
    switched_off = os.environ.get("RANKRUN_SHIM") == "off"
    # An environment that is built on this one (`--system-site-packages`) has a torchrun of its own.
    if switched_off or sys.flags.inspect or not is_same(sys.prefix, PREFIX) or not is_torchrun():
        return
    environment = dict(os.environ)
    if sys.executable:
        environment["RANKRUN_SHIM_PYTHON"] = sys.executable
    try:
        os.execve(RANKRUN, [RANKRUN] + sys.argv[1:], environment)
    except FileNotFoundError:
        pass  # rankrun was uninstalled: PyTorch's own torchrun goes on.
    except OSError as error:
        sys.stderr.write("rankrun shim: cannot run `%s`: %s; this is PyTorch's own torchrun\n" % (RANKRUN, error))


def is_torchrun():
    """While `site` runs, `sys.argv` has all but the module's name, which stands right in front of the rest."""
    if sys.argv[0] == "-m":
        word = words_of_command_line()[-len(sys.argv)]
        # As in `-um torch.distributed.run` or `-umtorch.distributed.run`: no other letter is an `m`.
        module = word.partition("m")[2] if word.startswith("-") else word
        return module == "torch.distributed.run"
    return is_script_of_torch(sys.argv[0])


def words_of_command_line():
    """All words, the interpreter's options included; Python knows them from 3.10 on."""
    words = getattr(sys, "orig_argv", None)
    if words is None:
        with open("/proc/self/cmdline", "rb") as command_line:
            words = [os.fsdecode(word) for word in command_line.read().split(b"\0")[:-1]]
    return words


def is_script_of_torch(path):
    """Whether it is this environment's `bin/torchrun`, and not replaced by another program."""
    if not is_same(path, TORCHRUN):
        return False
    with open(path, "rb") as script:
        text = script.read(@LONGEST@)
    return text.startswith(b"#!") and any(sign in text for sign in @SIGNS@)


def is_same(path, other):
    """Whether both are the same file or folder, links followed."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False

"""Runs rankrun where a launcher of this environment is started. Written by `rankrun shim on`; `off` takes it away."""

import os
import sys

PREFIX = @PREFIX@
# The file, the module that its original calls, and the first argument of a launch.
SCRIPTS = (
@SCRIPTS@)


def take_over():
    """Becomes rankrun if this interpreter was started as a launcher and the user does not want the original."""
    switched_off = os.environ.get("RANKRUN_SHIM") == "off"
    # An environment that is built on this one (`--system-site-packages`) has launchers of its own.
    if switched_off or sys.flags.inspect or not is_same(sys.prefix, PREFIX):
        return
    name = name_of_launcher()
    if name is None:
        return
    environment = dict(os.environ)
    if sys.executable:
        environment["RANKRUN_SHIM_PYTHON"] = sys.executable
    rankrun = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    try:
        os.execve(rankrun, [rankrun] + sys.argv[1:], environment)
    except FileNotFoundError:
        pass  # This script is not replaced, or rankrun was uninstalled: the original goes on.
    except OSError as error:
        sys.stderr.write("rankrun shim: cannot run `%s`: %s; this is the original `%s`\n" % (rankrun, error, name))


def name_of_launcher():
    """The name of the script that this call launches with; None for any other call."""
    if sys.argv[0] == "-m":
        return "torchrun" if module_of_call() == "torch.distributed.run" else None
    for path, module, subcommand in SCRIPTS:
        if is_same(sys.argv[0], path):
            is_launch = subcommand is None or sys.argv[1:2] == [subcommand]
            return os.fsdecode(os.path.basename(path)) if is_launch and is_of_installer(path, module) else None
    return None


def module_of_call():
    """While `site` runs, `sys.argv` has all but the module's name, which stands right in front of the rest."""
    word = words_of_command_line()[-len(sys.argv)]
    # As in `-um torch.distributed.run` or `-umtorch.distributed.run`: no other letter is an `m`.
    return word.partition("m")[2] if word.startswith("-") else word


def words_of_command_line():
    """All words, the interpreter's options included; Python knows them from 3.10 on."""
    words = getattr(sys, "orig_argv", None)
    if words is None:
        with open("/proc/self/cmdline", "rb") as command_line:
            words = [os.fsdecode(word) for word in command_line.read().split(b"\0")[:-1]]
    return words


def is_of_installer(path, module):
    """Whether the file was not replaced by another program."""
    with open(path, "rb") as script:
        text = script.read(@LONGEST@)
    return text.startswith(b"#!") and (module in text or b"@ENTRY_POINT@" in text)


def is_same(path, other):
    """Whether both are the same file or folder, links followed."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False

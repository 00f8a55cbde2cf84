import os
import sys

# The working folder must not lend its modules.
sys.path[:] = [folder for folder in sys.path if folder]
answer = [sys.executable, sys.prefix, "%d.%d" % sys.version_info[:2]]
if sys.version_info >= (3, 8):
    import importlib.metadata
    import importlib.util
    import sysconfig

    def install_of(package):
        found = importlib.util.find_spec(package)
        folder = os.path.dirname(found.origin) if found and found.origin else ""
        try:
            version = importlib.metadata.version(package) if folder else ""
        except importlib.metadata.PackageNotFoundError:
            version = ""
        return [folder, version or ""]

    # The packages of the launchers; the first is PyTorch.
    installs = [install_of(package) for package in sys.argv[1:]]
    torch = installs[0][0]
    # `pip install --user` has folders of its own.
    of_user = torch and os.path.dirname(torch) == sysconfig.get_path("purelib", "posix_user")
    scheme = ["posix_user"] if of_user else []
    answer += [sysconfig.get_path(name, *scheme) for name in ("scripts", "purelib")]
    answer += sum(installs, [])
sys.stdout.buffer.write(b"\0".join(os.fsencode(word) for word in answer))

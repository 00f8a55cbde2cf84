"""Writes what a worker gets, its command, arguments, environment and CPUs, into a file of the folder SHOW_FOLDER."""

import json
import os
import sys

shown = {
    "command": sys.orig_argv,
    "argv": sys.argv,
    "environment": dict(os.environ),
    "cpus": sorted(os.sched_getaffinity(0)),
}
print("shown:", *sys.argv[1:], flush=True)
# `accelerate launch` gives a single process no rank.
with open(os.path.join(os.environ["SHOW_FOLDER"], os.environ.get("RANK", "0") + ".json"), "w") as file:
    json.dump(shown, file)

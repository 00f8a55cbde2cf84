"""Writes what this worker was given, as JSON, to a file of its rank in the folder SHOW_FOLDER."""

import json
import os
import sys

given = {"command": sys.orig_argv, "argv": sys.argv, "environment": dict(os.environ)}
with open(os.path.join(os.environ["SHOW_FOLDER"], os.environ["RANK"] + ".json"), "w") as file:
    json.dump(given, file)
print("worker", os.environ["RANK"], "was shown")

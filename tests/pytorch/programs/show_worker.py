"""Writes what a worker gets, its arguments and its environment, into a file of the folder SHOW_FOLDER."""

import json
import os
import sys

with open(os.path.join(os.environ["SHOW_FOLDER"], f"{os.getpid()}.json"), "w") as shown:
    json.dump([sys.argv, dict(os.environ)], shown)

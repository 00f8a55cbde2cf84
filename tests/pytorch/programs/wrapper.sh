#!/usr/bin/env bash
# What people wrap around a training program: a limit, a folder for each rank, a line of log, then Python as a child.
#
#   wrapper.sh WORD…        says what it and Python were given
#   wrapper.sh fail         rank 1's Python exits with 5; the other's waits for what never comes
set -euo pipefail
ulimit -c 0

echo "told shell $RANK of $WORLD_SIZE: $*"
mine="$TMPDIR/rank$LOCAL_RANK"
mkdir -p "$mine"
cd "$mine"
"$PYTHON_EXEC" - "$@" <<'PYTHON'
import os, signal, sys

rank = os.environ["RANK"]
print(f"told python {rank} of {os.environ['WORLD_SIZE']}: {sys.argv[1:]} in {os.path.basename(os.getcwd())}", flush=True)
if sys.argv[1:] == ["fail"]:
    if rank == "1":
        sys.exit(5)
    signal.pause()
PYTHON
echo "told shell $RANK: done"

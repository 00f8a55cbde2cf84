"""Reads states of a rendezvous as an agent of torch does, one base64 text per line, and writes each again.

What is read is looked at as torch's rendezvous looks at it, so that a value that only seems right fails here.
"""

import pickle
import sys
from base64 import b64decode, b64encode
from datetime import datetime, timedelta, timezone

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState


def check(state):
    assert type(state) is _RendezvousState
    assert list(vars(state)) == list(vars(_RendezvousState())), vars(state)
    assert type(state.round) is int and state.round >= 0
    assert type(state.complete) is bool and type(state.closed) is bool
    assert type(state.wait_list) is set and type(state.redundancy_list) is set
    now = datetime.now(timezone.utc)
    assert state.deadline is None or state.deadline - now < timedelta.max
    for rank in state.participants.values():
        assert type(rank) is int
    for time in state.last_heartbeats.values():
        assert time.tzinfo is timezone.utc and time - now < timedelta.max
    for node in [*state.participants, *state.wait_list, *state.redundancy_list, *state.last_heartbeats]:
        assert node == _NodeDesc(node.addr, node.pid, node.local_id)
        assert repr(node) == f"{node.addr}_{node.pid}_{node.local_id}"
    sorted(state.participants)


for line in sys.stdin.buffer:
    state = pickle.loads(b64decode(line.strip(), validate=True))
    check(state)
    print(b64encode(pickle.dumps(state)).decode())

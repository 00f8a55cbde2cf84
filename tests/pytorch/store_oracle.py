"""Drives every operation of torch's store clients against one server and prints what came back as JSON.

    store_oracle.py serve        torch's own server, fresh: prints its port, ends with stdin
    store_oracle.py drive PORT   everything that must be the same on every server, one line per fact
    store_oracle.py better PORT  what torch's own server gets wrong

Nothing in the output depends on time, addresses or scheduling, so two servers agree when the texts are equal.
"""

import faulthandler
import json
import multiprocessing
import re
import sys
import threading
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import _store_based_barrier

HOST = "127.0.0.1"
SHORT = timedelta(milliseconds=200)
LONG = timedelta(seconds=60)
MIB = 1024 * 1024


def client(port, **options):
    options = {"wait_for_workers": False, "timeout": LONG} | options
    return dist.TCPStore(HOST, port, is_master=False, **options)


def outcome(call):
    """What a call returned, or how it failed, without anything that differs from run to run."""
    try:
        value = call()
    except Exception as error:
        text = str(error).split("Exception raised from")[0].strip()
        # What a lost connection is called depends on when the loss is seen.
        if isinstance(error, dist.DistNetworkError):
            text = "the connection is lost"
        return f"{type(error).__name__}: {re.sub(r'0x[0-9a-f]+', 'ADDRESS', text)}"
    return show(value)


def show(value):
    if isinstance(value, bytes):
        text = value.decode("latin-1")
        return text if len(text) < 100 else f"{len(text)} bytes, all {sorted(set(text))}"
    if isinstance(value, (list, tuple)):
        return [show(item) for item in value]
    return value if isinstance(value, (int, str, bool, type(None))) else type(value).__name__


def concurrently(*calls):
    """Runs the calls each in a thread of its own and returns their outcomes."""
    results = [None] * len(calls)

    def run(index):
        results[index] = outcome(calls[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class Facts:
    def __init__(self):
        self.lines = []

    def __call__(self, name, call):
        self.lines.append([name, outcome(call)])


def values(fact, port):
    store = client(port)
    fact("set", lambda: store.set("a", "1"))
    fact("get", lambda: store.get("a"))
    fact("set again", lambda: (store.set("a", "2"), store.get("a"))[1])
    for name, text in {"empty": "", "zero": "a\0b", "unicode": "h\u00e9\u20ac", "8 MiB": "x" * (8 * MIB)}.items():
        fact(f"value {name}", lambda: (store.set("v", text), store.get("v"))[1])
        fact(f"key {name}", lambda: (store.set(text[:4096], "k"), store.get(text[:4096]))[1])
    fact("get absent", lambda: timed(store, SHORT, lambda: store.get("absent")))
    fact("after the timeout", lambda: store.get("a"))

    fact("add new", lambda: store.add("n", 5))
    fact("add negative", lambda: store.add("n", -7))
    fact("get number", lambda: store.get("n"))
    for text in ["12abc", " +5", "9223372036854775807", "-9223372036854775808"]:
        fact(f"add to {text}", lambda: (store.set("t", text), store.add("t", 1))[1])

    fact("append new", lambda: (store.append("ap", "ab"), store.get("ap"))[1])
    fact("append more", lambda: (store.append("ap", "cd"), store.get("ap"))[1])
    fact("append beyond 8 MiB", lambda: (store.append("v", "x" * MIB), store.get("v"))[1])

    fact("compare_set absent, expected", lambda: store.compare_set("c", "x", "new"))
    fact("compare_set absent, stored nothing", lambda: store.check(["c"]))
    fact("compare_set absent, empty", lambda: store.compare_set("c", "", "first"))
    fact("compare_set other", lambda: store.compare_set("c", "x", "new"))
    fact("compare_set equal", lambda: store.compare_set("c", "first", "second"))
    fact("compare_set result", lambda: store.get("c"))

    fact("multi_set", lambda: store.multi_set(["m1", "m2"], ["one", "two"]))
    fact("multi_get", lambda: store.multi_get(["m2", "m1", "m2"]))
    fact("multi_get none", lambda: store.multi_get([]))
    fact("multi_get absent", lambda: timed(store, SHORT, lambda: store.multi_get(["m1", "absent"])))

    fact("check", lambda: store.check(["a", "n"]))
    fact("check absent", lambda: store.check(["a", "absent"]))
    fact("check none", lambda: store.check([]))
    fact("delete", lambda: store.delete_key("m1"))
    fact("delete absent", lambda: store.delete_key("m1"))
    fact("num_keys", store.num_keys)
    fact("list_keys", lambda: sorted(show(key)[:20] for key in store.list_keys()))
    fact("has_extended_api", store.has_extended_api)
    fact("timeout", lambda: str(store.timeout))
    fact("host", lambda: store.host)
    fact("port", lambda: store.port == port)


def timed(store, timeout, call):
    store.set_timeout(timeout)
    try:
        return call()
    finally:
        store.set_timeout(LONG)


def waits(fact, port):
    store, other = client(port), client(port)
    store.set("here", "1")
    fact("wait present", lambda: store.wait(["here", "here"]))
    fact("wait none", lambda: store.wait([]))
    fact("wait timeout", lambda: store.wait(["w absent"], SHORT))
    fact("wait timeout, one of two", lambda: store.wait(["here", "w absent"], SHORT))
    fact("wait usable after", lambda: store.get("here"))
    fact("wait for set", lambda: concurrently(lambda: store.wait(["w1"], LONG), lambda: other.set("w1", "1")))
    fact("wait for add", lambda: concurrently(lambda: store.wait(["w2"], LONG), lambda: other.add("w2", 1)))
    fact("wait for append", lambda: concurrently(lambda: store.wait(["w3"], LONG), lambda: other.append("w3", "")))
    fact(
        "wait for compare_set",
        lambda: concurrently(lambda: store.wait(["w4"], LONG), lambda: other.compare_set("w4", "", "1")),
    )
    fact(
        "wait for multi_set",
        lambda: concurrently(
            lambda: store.wait(["w5", "here", "w6", "w5"], LONG), lambda: other.multi_set(["w5", "w6"], ["1", "2"])
        ),
    )
    fact("get waits", lambda: concurrently(lambda: store.get("w7"), lambda: other.set("w7", "late")))
    fact("delete, then wait", lambda: (store.delete_key("w7"), store.wait(["w7"], SHORT)))
    fact("wait again", lambda: concurrently(lambda: store.get("w7"), lambda: other.set("w7", "later")))

    def crossing(number):
        """A wait that ends about when its key comes: its answer and its cancellation may cross."""
        key = f"crossing {number}"
        concurrently(lambda: store.wait([key], timedelta(milliseconds=1 + number % 3)), lambda: other.set(key, "1"))
        return store.add("crossings", 1) == number + 1 and store.get(key) == b"1"

    fact("answers and cancels crossing", lambda: all(crossing(number) for number in range(100)))


def queues(fact, port):
    store, other = client(port), client(port)
    fact("queue_len absent", lambda: store.queue_len("q"))
    fact("queue_push", lambda: [store.queue_push("q", text) for text in ["1", "", "3"]])
    fact("queue_len", lambda: store.queue_len("q"))
    fact("queue is checked", lambda: store.check(["q"]))
    fact("queue is waited for", lambda: store.wait(["q"], LONG))
    fact("queue_pop", lambda: [store.queue_pop("q"), store.queue_pop("q", False), store.queue_pop("q")])
    fact("queue_pop empty", lambda: store.queue_pop("q", False))
    fact("queue_pop timeout", lambda: timed(store, SHORT, lambda: store.queue_pop("q")))
    fact("queue_len after", lambda: store.queue_len("q"))
    fact("queue_pop waits", lambda: concurrently(lambda: store.queue_pop("q"), lambda: other.queue_push("q", "late")))
    fact("queue is no key", lambda: (store.queue_push("q", "x"), store.delete_key("q"), store.queue_len("q"))[1:])

    takers = [client(port) for _ in range(4)]
    numbers = [str(number) for number in range(40)]

    def pop(taker):
        # Between the wait and the pop of one client another may take the value.
        while True:
            try:
                return int(taker.queue_pop("shared"))
            except dist.QueueEmptyError:
                continue

    def take(taker):
        return [pop(taker) for _ in range(10)]

    taken = concurrently(
        *(lambda taker=taker: take(taker) for taker in takers),
        lambda: [store.queue_push("shared", number) for number in numbers],
    )
    fact("each pushed value is popped once", lambda: sorted(sum(taken[:4], [])) == sorted(map(int, numbers)))


def barriers(fact, port):
    stores = [client(port) for _ in range(3)]
    fact("barrier", lambda: concurrently(*(lambda store=store: store.barrier("b", 3) for store in stores)))
    fact("barrier late", lambda: stores[0].barrier("b", 3))
    fact("barrier is a counter", lambda: stores[0].get("b"))
    fact("barrier timeout", lambda: stores[0].barrier("b2", 2, SHORT))
    fact("barrier counts ranks that left", lambda: stores[1].barrier("b2", 2, SHORT))
    fact("barrier of one", lambda: stores[0].barrier("b3", 1))
    # Whichever comes first: a barrier that finds the number is open, one that waits is released.
    released = [lambda: stores[0].barrier("b4", 9, LONG), lambda: stores[1].set("b4", "100")]
    fact("barrier released by set", lambda: concurrently(*released))
    prefixed = [dist.PrefixStore("pb", store) for store in stores]
    fact("barrier with prefix", lambda: concurrently(*(lambda s=s: s.barrier("b", 3) for s in prefixed)))
    fact(
        "store_based_barrier",
        lambda: concurrently(
            *(
                lambda rank=rank, store=store: _store_based_barrier(rank, store, "group", 3, LONG)
                for rank, store in enumerate(prefixed)
            )
        ),
    )


def prefixes(fact, port):
    store = client(port)
    outer = dist.PrefixStore("outer", store)
    inner = dist.PrefixStore("inner", outer)
    fact("prefix set", lambda: (inner.set("k", "v"), store.get("outer/inner/k"), outer.get("inner/k"))[1:])
    fact("prefix add", lambda: (inner.add("n", 2), store.get("outer/inner/n"))[1])
    fact("prefix append", lambda: (inner.append("k", "w"), inner.get("k"))[1])
    fact("prefix compare_set", lambda: inner.compare_set("k", "vw", "x"))
    fact("prefix multi", lambda: (inner.multi_set(["p", "q"], ["1", "2"]), inner.multi_get(["q", "p"]))[1])
    fact("prefix check", lambda: [inner.check(["k"]), store.check(["k2"])])
    fact("prefix wait", lambda: inner.wait(["k", "p"], LONG))
    fact("prefix wait timeout", lambda: inner.wait(["nothing"], SHORT))
    fact("prefix queue", lambda: (inner.queue_push("z", "1"), inner.queue_len("z"), store.queue_pop("outer/inner/z"))[1:])
    fact("prefix delete", lambda: [inner.delete_key("p"), inner.delete_key("p")])
    fact("prefix list_keys", lambda: [sorted(s.list_keys()) for s in (outer, inner)])
    fact("prefix num_keys", lambda: inner.num_keys() == store.num_keys())
    fact("prefix clone", lambda: inner.clone().get("k"))
    fact("prefix underlying", lambda: type(inner._underlying_non_prefix_store).__name__)


def connections(fact, port):
    store = client(port)
    store.set("shared", "1")
    copy = store.clone()
    fact("clone", lambda: [copy.get("shared"), copy.add("cloned", 1), store.add("cloned", 1)])
    del store
    fact("clone outlives", lambda: copy.get("shared"))
    fact("world size", lambda: client(port, world_size=3, wait_for_workers=True).add("init2", 1))

    for name, break_it in {
        "add to text": lambda s: (s.set("text", "hello"), s.add("text", 1)),
        "add to nothing": lambda s: (s.set("text", ""), s.add("text", 1)),
        "add out of range": lambda s: (s.set("text", "9" * 30), s.add("text", 1)),
        "key too long": lambda s: s.get("k" * 8193),
        "value too long": lambda s: (s.set("k", "v" * (8 * MIB + 1)), s.get("k")),
        "too many keys": lambda s: s.check(["k"] * 131073),
    }.items():
        broken = client(port)
        fact(f"{name}: closed", lambda: break_it(broken))
        fact(f"{name}: stays closed", lambda: broken.add("x", 1))
        fact(f"{name}: others are served", lambda: copy.get("shared"))
    fact("longest key", lambda: (copy.set("k" * 8191, "v"), copy.get("k" * 8191))[1])
    fact("most keys", lambda: copy.check(["shared"] * 131072))


MANY = 64
PER_PROCESS = 4
PROCESSES = 4


def one_of_many(port, rank):
    store = client(port)
    prefixed = dist.PrefixStore("many", store)
    _store_based_barrier(rank, prefixed, "many", MANY, LONG)
    prefixed.set(f"rank {rank}", f"value {rank}")
    everything = prefixed.multi_get([f"rank {peer}" for peer in range(MANY)])
    store.add("many sum", rank)
    store.queue_push("many queue", str(rank))
    store.barrier("many barrier", MANY, LONG)
    return [
        everything == [f"value {peer}".encode() for peer in range(MANY)],
        int(store.get("many sum")),
        int(store.queue_pop("many queue")),
    ]


def many_in_process(port, first, go, results):
    go.wait()
    ranks = range(first, first + PER_PROCESS)
    results.put(concurrently(*(lambda rank=rank: one_of_many(port, rank) for rank in ranks)))


def many(port):
    """64 clients at once: threads of this process, and other processes."""
    # Forked before anything has connected, so that no connection or lock is shared.
    context = multiprocessing.get_context("fork")
    go, results = context.Event(), context.Queue()
    threads = MANY - PROCESSES * PER_PROCESS
    processes = [
        context.Process(target=many_in_process, args=(port, threads + index * PER_PROCESS, go, results))
        for index in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    go.set()
    seen = concurrently(*(lambda rank=rank: one_of_many(port, rank) for rank in range(threads)))
    for _ in processes:
        seen += results.get()
    for process in processes:
        process.join()
    return [["64 at once: all see all", all(result[0] is True for result in seen)],
            ["64 at once: one sum", sorted({result[1] for result in seen})],
            ["64 at once: each value is popped once", sorted(result[2] for result in seen) == list(range(MANY))]]


def drive(port):
    fact = Facts()
    fact.lines += many(port)
    for scenario in (values, waits, queues, barriers, prefixes, connections):
        scenario(fact, port)
    return fact.lines


def better(port):
    fact = Facts()
    store, other = client(port), client(port)
    store.queue_push("q", "1")
    fact(
        "a wait for a filled queue and a key ends with the key",
        lambda: concurrently(
            lambda: store.wait(["q", "k"], timedelta(seconds=3)),
            lambda: [store_is_waiting(other), other.set("k", "1")],
        )[0],
    )
    fact(
        "a compare_set that stores nothing wakes no waiter",
        lambda: concurrently(
            lambda: store.wait(["absent"], timedelta(seconds=1)),
            lambda: [store_is_waiting(other), other.compare_set("absent", "x", "y")],
        )[0],
    )
    return fact.lines


def store_is_waiting(other):
    """Gives the wait beside this call the time to reach the server; a wait that comes later only proves less."""
    outcome(lambda: other.wait(["never"], timedelta(milliseconds=300)))


def serve():
    server = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(240, exit=True)
    if sys.argv[1] == "serve":
        serve()
    else:
        for line in {"drive": drive, "better": better}[sys.argv[1]](int(sys.argv[2])):
            print(json.dumps(line))

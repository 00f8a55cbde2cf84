"""Operations per second of stores with PyTorch's client, for the bench: `ROUNDS NAME=COMMAND...`.

A command prints its port and ends with its input. torch's own server is measured beside them. A `set` has no answer, so
that each client ends its sets with a `get`. A `get` is two requests, an `add` is one.
"""

import datetime
import multiprocessing
import os
import statistics
import subprocess
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

from torch.distributed import TCPStore

LIMIT = datetime.timedelta(seconds=300)
CLIENTS = [1, 16, 64]
OPERATIONS = {"set": 480_000, "get": 48_000, "add": 48_000}


def client(port, rank, count, commands, results):
    store = TCPStore("127.0.0.1", port, None, False, timeout=LIMIT, wait_for_workers=False)
    key, counter, value = f"/worker/rank/{rank}", f"/worker/count/{rank}", "v" * 64
    calls = {
        "set": lambda: store.set(key, value),
        "get": lambda: store.get(key),
        "add": lambda: store.add(counter, 1),
    }
    store.set(key, value)
    results.put(None)
    while (command := commands.get()) is not None:
        kind, begin = command
        call = calls[kind]
        time.sleep(max(0, begin - time.monotonic()))
        begin = time.monotonic()
        for _ in range(OPERATIONS[kind] // count):
            call()
        if kind == "set":
            store.get(key)
        results.put((begin, time.monotonic()))
    os._exit(0)


class Program:
    """A server that is a program of its own."""

    def __init__(self, command):
        self.process = subprocess.Popen(command.split(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.port, self.pid = int(self.process.stdout.readline()), self.process.pid

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


class Torch:
    """torch's own server, in a process of its own."""

    def __init__(self):
        self.pipe, other_end = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=self.serve, args=(other_end,))
        self.process.start()
        self.port, self.pid = self.pipe.recv(), self.process.pid

    @staticmethod
    def serve(pipe):
        store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        pipe.send(store.port)
        pipe.recv()
        os._exit(0)

    def stop(self):
        self.pipe.send(None)
        self.process.join()


class Team:
    """Clients of one server."""

    def __init__(self, server, count):
        self.server, self.count = server, count
        self.results = multiprocessing.SimpleQueue()
        self.commands = [multiprocessing.SimpleQueue() for _ in range(count)]
        self.processes = [
            multiprocessing.Process(target=client, args=(server.port, rank, count, queue, self.results))
            for rank, queue in enumerate(self.commands)
        ]
        for process in self.processes:
            process.start()
        for _ in self.processes:
            self.results.get()

    def measure(self, kind):
        """Operations per second, and microseconds of the server's processor time for one."""
        before, begin = processor_time(self.server.pid), time.monotonic() + 0.05 + 0.002 * self.count
        for commands in self.commands:
            commands.put((kind, begin))
        begins, ends = zip(*(self.results.get() for _ in self.processes))
        operations = OPERATIONS[kind] // self.count * self.count
        cost = (processor_time(self.server.pid) - before) / operations
        return operations / (max(ends) - min(begins)), cost * 1e6

    def stop(self):
        for commands in self.commands:
            commands.put(None)
        for process in self.processes:
            process.join()


def processor_time(pid):
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def row(count, kind, teams, rounds):
    measured = {name: [] for name in teams}
    for number in range(rounds):
        names = list(teams) if number % 2 else list(reversed(teams))
        for name in names:
            measured[name].append(teams[name].measure(kind))
    cells = []
    torch = statistics.median(rate for rate, _ in measured["torch"])
    for name in teams:
        rate = statistics.median(rate for rate, _ in measured[name])
        cost = statistics.median(cost for _, cost in measured[name])
        cells.append(f"{rate / 1000:.0f} ({rate / torch:.2f}, {cost:.2f})")
    print(f"| {count} | {kind} | {' | '.join(cells)} |", flush=True)


def main():
    rounds = int(sys.argv[1])
    servers = {"torch": Torch()}
    for word in sys.argv[2:]:
        name, command = word.split("=", 1)
        servers[name] = Program(command)
    print("thousands of operations per second (how many times torch's, microseconds of the server's processor time)\n")
    print(f"| clients | operation | {' | '.join(servers)} |")
    print(f"| ---: | --- |{' ---: |' * len(servers)}", flush=True)
    for count in CLIENTS:
        teams = {name: Team(server, count) for name, server in servers.items()}
        for kind in OPERATIONS:
            row(count, kind, teams, rounds)
        for team in teams.values():
            team.stop()
    for server in servers.values():
        server.stop()


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    main()

"""The users of the benchmark of a crowded server: one who does the worst, and one who asks and submits meanwhile."""

import contextlib
import json
import os
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from pwd import struct_passwd
from typing import Any, Final, NamedTuple

CONNECTIONS: Final = 64
LARGEST: Final = 16 << 20
ASKED, SUBMITTED = 120, 12
PATIENCE_S: Final = 20.0
LONGEST_S: Final = 60.0
PAUSE_S: Final = 0.2
HEAD = "{} {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n"


def write(method: str, target: str, body: bytes = b"") -> bytes:
    return HEAD.format(method, f"/v1/{target}", len(body)).encode() + body


def make_job(name: str) -> dict[str, Any]:
    trainer = {"name": "trainer", "command": ["sleep", "3600"]}
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": [1, 2, 3, 4]},
            "training": {"iterations": 1000},
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "template": {"spec": {"containers": [trainer]}},
        },
    }


def write_jobs(target: str, prefix: str, count: int) -> bytes:
    items = [make_job(f"{prefix}-{number}") for number in range(count)]
    return write("POST", target, json.dumps({"kind": "DLJobList", "items": items}).encode())


def write_dense(length: int, values: int) -> bytes:
    """A list of empty lists: of all JSON it costs the reader the most for its length."""
    begin, end = b'{"kind": "DLJobList", "items": [[]', b"]}"
    body = begin + b",[]" * min(values // 2, (length - len(begin + end)) // 3)
    return write("POST", "jobs", body + b" " * (length - len(body + end)) + end)


class Door:
    """The socket of the server. Each way to ask returns the status of the answer, or 0 without one."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    @contextlib.contextmanager
    def _open(self, request: bytes) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as connection:
            limit = struct.pack("ll", int(PATIENCE_S), 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            connection.connect(self._path)
            connection.settimeout(PATIENCE_S)
            # A refusal can come before all of the request has gone.
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(request)
            yield connection

    def read(self, request: bytes) -> bytes:
        """Return all of the answer."""
        answer = bytearray()
        with contextlib.suppress(OSError), self._open(request) as connection:
            while block := connection.recv(1 << 18):
                answer += block
        return bytes(answer)

    def ask(self, request: bytes) -> int:
        return int(self.read(request)[9:12] or 0)

    def leave(self, request: bytes) -> int:
        """Read nothing, and go."""
        with contextlib.suppress(OSError), self._open(request):
            time.sleep(PAUSE_S)
        return 0

    def trickle(self, request: bytes) -> int:
        """Send all but the last bytes, and of these one at a time."""
        with contextlib.suppress(OSError), self._open(request[:-50]) as connection:
            for byte in request[-50:]:
                connection.sendall(bytes([byte]))
                time.sleep(PAUSE_S)
        return 0

    def follow(self, request: bytes) -> int:
        """Wait for an Event, and for the change after the last one that a list knows."""
        version = re.search(rb'"resourceVersion": "(\d+\.\d+)"', self.read(request))
        known = version[1].decode() if version else "0.0"
        self.ask(write("GET", "events?seconds=1&since=1000000"))
        return self.ask(write("GET", f"jobs?seconds=1&watch={known}"))


class Attack(NamedTuple):
    act: Callable[[Door, bytes], int]
    requests: tuple[bytes, ...] = ()
    """The connections take turns."""
    connections: int = CONNECTIONS
    jobs: int = 900
    """The attacker submits them first. Those of several attacks and a plan together are within the limit of a user."""


def list_attacks() -> dict[str, Attack]:
    jobs, large = write("GET", "jobs"), write_dense(LARGEST, LARGEST)
    unended = (large[:-1], write("GET", "jobs")[:-1])
    return {
        "none": Attack(Door.ask, connections=0, jobs=0),
        "plans": Attack(Door.ask, (write_jobs("plan", "bomb", 900),), 50, jobs=50),
        "jobs": Attack(Door.ask, connections=0),
        "bodies": Attack(Door.ask, (large, write_dense(4 << 20, 260_000))),
        "lists": Attack(Door.ask, (jobs,)),
        "unread": Attack(Door.leave, (jobs, write("GET", "record?since=0"))),
        "half-open": Attack(Door.trickle, unended),
        "follows": Attack(Door.follow, (jobs,)),
    }


NAMES: Final = ("none", "plans", "jobs", "bodies", "lists", "unread", "half-open", "follows")


def become(user: struct_passwd) -> None:
    os.setgroups([])
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)


def attack(user: struct_passwd, door: Door, how: Attack, pipe: Connection) -> None:
    """Use all connections until the pipe says otherwise; report the number of answers by their status."""
    become(user)
    door.ask(write_jobs("jobs", f"own-{how.jobs}", how.jobs))
    pipe.send("ready")
    counts: Counter[int] = Counter()
    ended = threading.Event()

    def repeat(number: int) -> None:
        while not ended.is_set():
            counts[how.act(door, how.requests[number % len(how.requests)])] += 1

    for number in range(how.connections):
        threading.Thread(target=repeat, args=(number,), daemon=True).start()
    pipe.recv()
    pipe.send(dict(counts))
    os._exit(0)


def time_answers(user: struct_passwd, door: Door, name: str, pipe: Connection) -> None:
    """Ask and submit in turn; report the seconds of each, and the statuses."""
    become(user)
    seconds: dict[str, list[float]] = {"about": [], "submit": []}
    statuses: Counter[int] = Counter()

    def ask(what: str, request: bytes) -> None:
        began = time.monotonic()
        statuses[door.ask(request)] += 1
        seconds[what].append(time.monotonic() - began)

    # A server that takes seconds for each answer is not asked all.
    end = time.monotonic() + LONGEST_S
    for number in range(SUBMITTED):
        ask("submit", write_jobs("jobs", f"{name}-{number}", 1))
        for _ in range(ASKED // SUBMITTED):
            if time.monotonic() < end:
                ask("about", write("GET", "about"))
                time.sleep(PAUSE_S / 4)
        if time.monotonic() > end:
            break
    pipe.send((seconds, dict(statuses)))

"""
A training without a framework that changes live, for tests of the SideCar's half.

``python live_trainers.py TOKEN FOLDER [manner …]``. It speaks the board of docs/protocol.md, keeps a
journal in FOLDER, and locks a file there for its GPU. Its ranks meet by files in the folder of the
board. Manners, of which those with a rank mean the old rank of a process:

never        it never registers
fail=RANK    this rank cannot make the new group
hang=RANK    this rank stops at its next boundary after a change is pending
late         processes that join get ready only when FOLDER has a file "go"
crash        processes that join end with status 3
stay         processes that leave ignore SIGTERM and never exit
child        each process has a child, which outlives a process that leaves
"""

# ruff: noqa: T201 - its output is what it is for
# ruff: noqa: PTH110, PTH123 - pathlib would be most of what a start costs
from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

HEADER = struct.Struct("=4sIqqqq")
ENTRY = struct.Struct("=8q")
PID, CAPABLE, SEEN, STEP, JOINED, JOINED_STEP, PAUSE, FAILED = range(8)
STEP_SECONDS = 0.01


class Board:
    def __init__(self) -> None:
        self.folder = os.environ["DLJOB_LIVE"]
        self._file = os.open(f"{self.folder}/board", os.O_RDWR)
        self._map = mmap.mmap(self._file, 0)
        self._slot = int(os.environ["DLJOB_LIVE_SLOT"])

    def header(self) -> tuple[int, ...]:
        return HEADER.unpack_from(self._map)[2:]

    def entries(self) -> list[tuple[int, ...]]:
        return [ENTRY.unpack_from(self._map, 64 + 64 * slot) for slot in range(256)]

    def say(self, field: int, value: int) -> None:
        struct.pack_into("=q", self._map, 64 + 64 * self._slot + 8 * field, value)

    def agree(self, at: int) -> None:
        struct.pack_into("=q", self._map, 16, at)

    def set_bytes(self, count: int) -> None:
        struct.pack_into("=q", self._map, 32, count)

    def fail(self, number: int, why: str) -> None:
        with open(f"{self.folder}/failed-{self._slot}", "w") as file:
            file.write(why)
        self.say(FAILED, number)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


class Trainer:
    def __init__(self, folder: str, manners: list[str]) -> None:
        self.folder, self.manners = folder, manners
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.number = int(os.environ["DLJOB_GENERATION"])
        """The generation, or the latest trial."""
        self.joins = int(os.environ.get("DLJOB_JOINS", "0"))
        self.step, self.ended_at = 0, 0.0
        self.seen = 0

    def tell(self, text: str) -> None:
        journal = os.open(f"{self.folder}/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(journal, f"{text}\n".encode())
        os.close(journal)

    def take_gpu(self) -> None:
        gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ["LOCAL_RANK"])]
        gpu = f"{os.environ.get('CHAOS_NODE', '')}{gpu}"
        lock = os.open(f"{self.folder}/gpu-{gpu}", os.O_RDWR | os.O_CREAT)
        os.set_inheritable(lock, True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.tell(f"TWICE {gpu}")
        self.tell(f"began {self.number} rank {self.rank} of {self.world} on {gpu}")

    def train(self) -> None:
        self.take_gpu()
        if "child" in self.manners and os.fork() == 0:
            signal.pause()
        if "never" in self.manners:
            signal.pause()
        board = Board()
        board.say(PID, os.getpid())
        board.say(JOINED_STEP, -1)
        if self.joins:
            self.join(board)
        else:
            self.meet(board, self.number)
            board.say(JOINED, self.number)
        board.say(CAPABLE, 1)
        while True:
            time.sleep(STEP_SECONDS)
            self.step += 1
            self.ended_at = time.monotonic()
            if self.rank == 0:
                print(f"step {self.step}", flush=True)
            self.pass_boundary(board)

    def join(self, board: Board) -> None:
        if "crash" in self.manners:
            sys.exit(3)
        while "late" in self.manners and not os.path.exists(f"{self.folder}/go"):
            time.sleep(STEP_SECONDS)
        board.say(CAPABLE, 1)
        at = -1
        while at < 0:
            time.sleep(0.002)
            pending, at, withdrawn, _ = board.header()
            if withdrawn >= self.joins:
                sys.exit(0)
            if pending == self.joins:
                board.say(SEEN, self.joins)
        self.step, self.number = at, self.joins
        self.meet(board, self.number)
        board.say(STEP, self.step)
        board.say(JOINED, self.number)
        board.say(JOINED_STEP, self.step)

    def pass_boundary(self, board: Board) -> None:
        board.say(STEP, self.step)
        pending = board.header()[0]
        if not pending or pending == self.number:
            return
        if f"hang={self.rank}" in self.manners:
            signal.pause()
        with board.locked():
            pending, at, _, _ = board.header()
            if not pending:
                return
            if self.seen != pending:
                self.seen = pending
                board.say(SEEN, pending)
            self.agree(board)
        if at == self.step:
            self.change(board, pending)

    def agree(self, board: Board) -> None:
        """Set the step of the change if all have acknowledged it."""
        pending, at, _, _ = board.header()
        joining = sum(rank < 0 for rank in self.read(pending)["members"])
        ready = [entry for entry in board.entries() if entry[SEEN] == pending]
        if at < 0 and len(ready) == self.world + joining:
            board.agree(1 + max(entry[STEP] for entry in ready))

    def read(self, number: int) -> dict[str, Any]:
        with open(f"{os.environ['DLJOB_LIVE']}/change-{number}.json") as file:
            change: dict[str, Any] = json.load(file)
        return change

    def change(self, board: Board, number: int) -> None:
        change = self.read(number)
        if f"fail={self.rank}" in self.manners:
            board.fail(number, "RuntimeError: the group cannot be made")
            sys.exit(1)
        if self.rank not in change["members"]:
            board.say(JOINED, -number)
            self.tell(f"left {number} rank {self.rank}")
            if "stay" in self.manners:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                signal.pause()
            os._exit(0)
        self.rank, self.world = change["members"].index(self.rank), len(change["members"])
        self.number = number
        self.meet(board, number)
        board.say(PAUSE, int((time.monotonic() - self.ended_at) * 1e6))
        board.set_bytes(1234)
        board.say(JOINED, change["generation"])
        board.say(JOINED_STEP, self.step)

    def meet(self, board: Board, number: int) -> None:
        """Wait for all members of a number."""
        store = f"{board.folder}/store-{number}"
        open(f"{store}.{self.rank}", "w").close()
        while not all(os.path.exists(f"{store}.{rank}") for rank in range(self.world)):
            time.sleep(0.001)
        self.tell(f"joined {number} rank {self.rank} of {self.world} at {self.step}")


if __name__ == "__main__":
    Trainer(sys.argv[2], sys.argv[3:]).train()

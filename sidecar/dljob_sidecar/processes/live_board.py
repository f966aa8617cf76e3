"""
The memory in which the SideCar and the training agree on a live change, and the files next to it.

Each start has a folder of its own (``DLJOB_LIVE``) with the file ``board``, which the training maps into
its memory: a header, which the SideCar writes, and a slot for each process, which that process writes.
:mod:`dljob.training` has the other half; both follow ``docs/protocol.md``.

The SideCar reads the file and does not map it, because a training that cuts it short would end a
process that has mapped it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

FOLDER, SLOT = "DLJOB_LIVE", "DLJOB_LIVE_SLOT"
GENERATION, JOINS = "DLJOB_GENERATION", "DLJOB_JOINS"
"""The variables of each process; the last one only of a process that joins others."""

MAGIC = b"DLJ1"
SLOTS = 256
HEADER = struct.Struct("=4sIqqqq")
ENTRY = struct.Struct("=8q")
BEGIN = 64
NOT_AGREED = -1
LONGEST_REASON = 1000
PLACES = ("/dev/shm", "/tmp")  # noqa: S108 - the folder in it belongs to the SideCar alone


class Header(NamedTuple):
    """The change that is under way."""

    pending: int
    """The generation to which a change is under way, a negative number of a trial, or 0."""
    at: int
    """The step after which it takes place; -1 while the processes have not agreed."""
    withdrawn: int
    """The newest number that was withdrawn."""
    state_bytes: int = 0
    """The size of the state that was sent to the processes that joined last."""


class Entry(NamedTuple):
    """The slot of one process."""

    pid: int = 0
    capable: int = 0
    """1 once it has registered; a process that joins waits from then on."""
    seen: int = 0
    step: int = 0
    joined: int = 0
    """The generation of whose members it became one last; that of the change, negative, once it has left."""
    joined_step: int = 0
    """The step of its latest change, which it writes last; -1 before the first."""
    pause_us: int = 0
    failed: int = 0

    @property
    def is_capable(self) -> bool:
        """True if it has registered its state and passes boundaries."""
        return self.capable > 0 and self.step > 0


class Board:
    """The file of one start; only its processes know its folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder
        # Another SideCar of this job that sees the same place, such as one with the memory of the machine, leaves it alone.
        self._own = _open_folder(folder)
        fcntl.flock(self._own, fcntl.LOCK_SH)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(folder / "board", flags, 0o600)
        empty = HEADER.pack(MAGIC, SLOTS, 0, NOT_AGREED, 0, 0).ljust(BEGIN, b"\0")
        os.pwrite(self._file, empty + bytes(ENTRY.size * SLOTS), 0)

    def read(self) -> Header:
        text = os.pread(self._file, HEADER.size, 0)
        # A training that cuts its own board short agrees on nothing.
        return (
            Header(*HEADER.unpack(text)[2:])
            if len(text) == HEADER.size
            else Header(0, NOT_AGREED, 0)
        )

    def entry(self, slot: int) -> Entry:
        text = os.pread(self._file, ENTRY.size, BEGIN + ENTRY.size * slot)
        return Entry(*ENTRY.unpack(text)) if len(text) == ENTRY.size else Entry()

    def clear(self, slot: int) -> None:
        """Forget an ended process, so another one can have its slot."""
        os.pwrite(self._file, bytes(ENTRY.size), BEGIN + ENTRY.size * slot)
        with contextlib.suppress(OSError):
            self._reason_of(slot).unlink()

    def write(self, *, pending: int, withdrawn: int) -> None:
        """Write the header; only under the lock."""
        header = HEADER.pack(MAGIC, SLOTS, pending, NOT_AGREED, withdrawn, 0)
        os.pwrite(self._file, header, 0)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the processes; raises BlockingIOError if one of them holds it."""
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def announce(self, number: int, change: Mapping[str, Any]) -> None:
        """Write the file of a change, which its processes read once it is pending."""
        unnamed = self.folder / f"change-{number}.tmp"
        unnamed.write_text(json.dumps(change), encoding="ascii")
        unnamed.rename(self.folder / f"change-{number}.json")

    def read_reason(self, slot: int) -> str:
        """Return why a change failed in a process; empty if it did not say."""
        with contextlib.suppress(OSError):
            file = os.open(self._reason_of(slot), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return os.read(file, LONGEST_REASON).decode(errors="replace").strip()
            finally:
                os.close(file)
        return ""

    def _reason_of(self, slot: int) -> Path:
        return self.folder / f"failed-{slot}"

    def close(self) -> None:
        os.close(self._file)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._own)


class Boards:
    """Makes the board of each start, and removes those of SideCars of this name that were killed."""

    def __init__(self, mark: str, *, places: tuple[str, ...] = PLACES) -> None:
        """``mark`` names this start of the container, and after the first dot its job."""
        incarnation, _, name = mark.partition(".")
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
        self._prefix, self._own = f"dljob-live-{digest}-", incarnation
        self._places = places
        self._count = 0

    def make(self) -> Board | None:
        """Return a new board; None if no place for it can be written."""
        self._count += 1
        for place in self._places:
            if self._count == 1:
                self._sweep(Path(place))
            try:
                return Board(Path(place) / f"{self._prefix}{self._own}-{self._count}")
            except OSError as error:
                log.info("no live changes with a board in %s: %s", place, error)
        return None

    def _sweep(self, place: Path) -> None:
        for left in place.glob(f"{self._prefix}*"):
            with contextlib.suppress(OSError):
                if left.lstat().st_uid == os.geteuid():
                    _remove_unused(left)


def _open_folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove_unused(folder: Path) -> None:
    """Remove the folder of a SideCar that is gone; raises BlockingIOError if it lives."""
    file = _open_folder(folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(file)

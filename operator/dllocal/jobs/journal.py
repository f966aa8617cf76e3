"""
The journal beside the list of jobs: the second witness of what was decided.

SQLite detects no flipped bit in a page, takes a shortened write-ahead log for its end and a deleted file for a new
list. Each of that would give out GPUs that jobs still train on. So :mod:`dllocal.jobs.registry` writes every
transaction here as well, one line with a checksum, before it commits it. The first line is the whole list.

A line that was begun and not finished is the last one of a controller that was killed, and none was
acted upon. All else that does not fit its checksum is damage.
"""

import contextlib
import errno
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from dlcontrol.situation.clocks import Reading, Stamp

SHORTEST_BYTES = 8 << 20
"""A journal is not written afresh before it is that long, and three times as long as when it was new."""

Change = Mapping[str, Any]


class Row(NamedTuple):
    """A job as it is kept, all of it text that others read."""

    order: int
    document: str
    status: str
    cancelled: int = 0
    spec_generation: int = 1
    origin: str = ""
    """The submitter of the job; empty in lists of older versions."""


@dataclass(frozen=True)
class Kept:
    """All of the list of jobs."""

    revision: int = 0
    """Counts the transactions."""
    epoch: int = 0
    reading: Reading = Reading(Stamp("", 0.0), 0.0)
    """The reading of the controller's clock when it began."""
    rows: Mapping[str, Row] = field(default_factory=dict)
    cordons: Mapping[tuple[str, int], str] = field(default_factory=dict)

    def after(self, revision: int, changes: Iterable[Change]) -> "Kept":
        """Return what it is after a transaction; raises what a change that cannot be raises."""
        rows, cordons = dict(self.rows), dict(self.cordons)
        own: dict[str, Any] = {}
        for change in changes:
            match change["what"]:
                case "job":
                    rows[change["name"]] = Row(*change["row"])
                case "fields":
                    rows[change["name"]] = rows[change["name"]]._replace(**change["fields"])
                case "gone":
                    rows.pop(change["name"], None)
                case "cordon":
                    place = change["node"], change["gpu"]
                    cordons.pop(place, None)
                    if change["reason"]:
                        cordons[place] = change["reason"]
                case "leader":
                    boot, since_boot, at = change["reading"]
                    reading = Reading(Stamp(boot, since_boot), at)
                    own = {"epoch": change["epoch"], "reading": reading}
        return replace(self, revision=revision, rows=rows, cordons=cordons, **own)

    def changes(self) -> list[Change]:
        """Return the changes that make all of it from nothing."""
        return [
            leader(self.epoch, self.reading),
            *({"what": "job", "name": name, "row": list(row)} for name, row in self.rows.items()),
            *(cordon(*place, reason) for place, reason in self.cordons.items()),
        ]


def leader(epoch: int, reading: Reading) -> Change:
    """Another controller leads from now on."""
    return {"what": "leader", "epoch": epoch, "reading": [*reading.stamp, reading.at]}


def cordon(node: str, gpu: int, reason: str) -> Change:
    """A GPU is given to no job; with an empty reason that is over."""
    return {"what": "cordon", "node": node, "gpu": gpu, "reason": reason}


def change_of(name: str, **fields: Any) -> Change:
    """Some columns of a job are others from now on."""
    return {"what": "fields", "name": name, "fields": fields}


class Found(NamedTuple):
    """The contents of a journal."""

    kept: Kept | None = None
    """The list after its last whole line; none where not even the first is whole, or the file is missing."""
    damage: str = ""
    """Its damage, in words."""
    is_cut: bool = False
    """Whether its last line is not whole: a controller was killed at it, or the file was shortened."""
    exists: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether a list can be restored from it."""
        return self.kept is not None and not self.damage and not self.is_cut


def read(path: Path) -> Found:
    """Read a journal as far as it can be trusted. Raises :class:`OSError` where the disk does not let it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Found(exists=False)
    kept: Kept | None = None
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            kept = _follow(kept, line)
        except (ValueError, TypeError, KeyError, AttributeError):
            return Found(kept, f"line {number} does not fit its checksum")
    damage = "" if kept is not None else "its first line is not whole"
    return Found(kept, damage, is_cut=bool(rest))


def _follow(kept: Kept | None, line: bytes) -> Kept:
    checksum, _, text = line.partition(b" ")
    if checksum != _checksum(text):
        raise ValueError("another checksum")
    document = json.loads(text)
    revision = document["revision"]
    if document["whole"]:
        kept = Kept()
    elif kept is None or revision != kept.revision + 1:
        raise ValueError("no line that follows the one before it")
    return kept.after(revision, document["changes"])


def _checksum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:32].encode()


def _line(revision: int, changes: Iterable[Change], *, whole: bool) -> bytes:
    document = {"revision": revision, "whole": whole, "changes": list(changes)}
    text = json.dumps(document, separators=(",", ":")).encode()
    return b"%s %s\n" % (_checksum(text), text)


class Journal:
    """The journal of a controller, which appends to it; raises :class:`sqlite3.Error` as the list does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._length = 0
        self._longest = 0

    def write_afresh(self, kept: Kept) -> None:
        """Begin with all that there is, in one step: a crash leaves the former journal or the new one."""
        unnamed = self._path.with_name(f"{self._path.name}.new")
        line = _line(kept.revision, kept.changes(), whole=True)
        with _complaining():
            file = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write(file, line, 0)
                os.fsync(file)
                unnamed.replace(self._path)
            except BaseException:
                os.close(file)
                with contextlib.suppress(OSError):
                    unnamed.unlink()
                raise
        self.close()
        self._file, self._length = file, len(line)
        self._longest = max(SHORTEST_BYTES, 3 * len(line))

    @property
    def is_long(self) -> bool:
        """Whether it is time to write it afresh."""
        return self._length > self._longest

    def append(self, revision: int, changes: Iterable[Change]) -> None:
        """Write a transaction that is about to be committed."""
        assert self._file is not None
        line = _line(revision, changes, whole=False)
        with _complaining():
            try:
                _write(self._file, line, self._length)
            except OSError:
                self.take_back(self._length)
                raise
        self._length += len(line)

    @property
    def length(self) -> int:
        """How long it is; for :meth:`take_back`."""
        return self._length

    def take_back(self, length: int) -> None:
        """Forget a transaction that came to nothing."""
        assert self._file is not None
        self._length = length
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, length)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _write(file: int, data: bytes, place: int) -> None:
    while data:
        done = os.pwrite(file, data, place)
        data, place = data[done:], place + done


@contextlib.contextmanager
def _complaining() -> Iterator[None]:
    """Say what goes wrong as SQLite does, whose callers know what to do about it."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "database or disk is full" if is_full else f"its journal: {error.strerror}"
        raise sqlite3.OperationalError(why) from error

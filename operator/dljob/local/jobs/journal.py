"""
The journal of the list of jobs: every transaction as one line with a checksum, after the whole list as first line.

:mod:`dljob.local.jobs.jobs_file` writes each line before it commits the transaction. SQLite takes a write-ahead log that
was cut short for a complete one, and so returns to an earlier state of the list. SideCars and the folders of pods still
show which GPUs are in use then, but the journal alone shows that a job had completed: without it the training would
begin again (tests/attack/test_damaged_folders.py).

An unfinished last line belongs to a controller that was killed before it acted on the transaction. Any other line that
does not fit its checksum is damage.
"""

import contextlib
import errno
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dljob.local.jobs.cells import Cells, Change, Content

SHORTEST_BYTES = 8 << 20
"""The journal is rewritten when it is longer than this, and three times as long as after the last rewrite."""


class Found(NamedTuple):
    """The contents of a journal."""

    content: Content | None = None
    """The list after the last complete line; ``None`` without a complete first line."""
    damage: str = ""
    is_cut: bool = False
    """The last line is incomplete: a controller was killed while it wrote, or the file was shortened."""
    exists: bool = True

    @property
    def is_whole(self) -> bool:
        """Return whether a list can be restored from it."""
        return self.content is not None and not self.damage and not self.is_cut


def read(path: Path) -> Found:
    """Read a journal up to the first damaged line. Raises :class:`OSError`."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Found(exists=False)
    cells: Cells = {}
    revision, damage = None, ""
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            revision = _follow(cells, line, before=revision)
        except (ValueError, TypeError, KeyError, AttributeError):
            damage = f"line {number} does not fit its checksum"
            break
    if revision is None:
        return Found(damage=damage or "its first line is not whole", is_cut=bool(rest))
    return Found(Content(cells, revision), damage, is_cut=bool(rest))


def _follow(cells: Cells, line: bytes, *, before: int | None) -> int:
    """Apply a line to the cells; returns its revision."""
    checksum, _, text = line.partition(b" ")
    if checksum != _checksum(text):
        raise ValueError("another checksum")
    document = json.loads(text)
    revision = int(document["revision"])
    if document["whole"]:
        cells.clear()
    elif before is None or revision != before + 1:
        raise ValueError("the line does not follow the one before it")
    for name, column, value in document["cells"]:
        cells[name, column] = value
        if value is None:
            del cells[name, column]
    return revision


def _checksum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:32].encode()


def _line(revision: int, change: Change, *, whole: bool) -> bytes:
    cells = [[*key, value] for key, value in change.items()]
    document = {"revision": revision, "whole": whole, "cells": cells}
    text = json.dumps(document, separators=(",", ":")).encode()
    return b"%s %s\n" % (_checksum(text), text)


class Journal:
    """The journal of a controller, which appends to it; raises :class:`sqlite3.Error` as the list does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self.length = 0
        self._longest = 0

    def rewrite(self, content: Content) -> None:
        """Replace the journal by one line in one step: a crash leaves the former journal or the new one."""
        unnamed = self._path.with_name(f"{self._path.name}.new")
        line = _line(content.revision, content.cells, whole=True)
        with _as_sqlite_errors():
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
        self._file, self.length = file, len(line)
        self._longest = max(SHORTEST_BYTES, 3 * len(line))

    @property
    def is_long(self) -> bool:
        return self.length > self._longest

    def append(self, revision: int, change: Change) -> None:
        """Write a transaction that is about to be committed."""
        line = _line(revision, change, whole=False)
        with _as_sqlite_errors():
            _write(self._file, line, self.length)
        self.length += len(line)

    def truncate(self, length: int) -> None:
        """Remove a transaction that was not committed."""
        self.length = length
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, length)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _write(file: int, data: bytes, place: int) -> None:
    while data:
        done = os.pwrite(file, data, place)
        data, place = data[done:], place + done


@contextlib.contextmanager
def _as_sqlite_errors() -> Iterator[None]:
    """Raise errors as SQLite does, whose callers handle them."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "database or disk is full" if is_full else f"its journal: {error.strerror}"
        raise sqlite3.OperationalError(why) from error

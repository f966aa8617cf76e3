"""
Inspects the checkpoints of a job for one request: which are new, and what each of them lacks.

This module reads files and so runs in a file thread. :mod:`dljob_sidecar.checkpoints.confirming` adds
what the kernel and the clock show: which processes write, and how long the files rest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dljob_sidecar.checkpoints.checkpoint_files import Mark, Snapshot, take_snapshot
from dljob_sidecar.checkpoints.recognizing.formats import Finding, examine
from dljob_sidecar.checkpoints.recognizing.signs import (
    MAY_BE_EMPTY,
    Signs,
    is_within,
    normalise,
    resolve,
)
from dljob_sidecar.observing.shortages import find_full_disk
from dljob_wire.checkpoints import Checkpoint, Complete

TAIL_BYTES = 256
MOST_TAILS = 64
"""The number of recently written files whose last bytes are remembered."""
NOTHING_NEW = "there is nothing new"


@dataclass(frozen=True)
class Candidate:
    """A checkpoint with new files."""

    unit: str
    """The name below the path; empty if all files below the path are one checkpoint."""
    files: Mapping[str, Mark]
    """All files of the checkpoint, or only the new ones if all files below the path are one."""
    lack: str = ""
    """The missing part, in words; empty if none is visible."""
    is_proven: bool = False
    """True if the format of each file proves that the file is complete."""
    is_sealed: bool = False
    """True if a sign shows completion, so the files need not settle."""
    is_fresh: bool = False
    """True if none of its files existed at the first inspection."""

    @property
    def size(self) -> int:
        return sum(mark.size for mark in self.files.values())

    @property
    def written_ns(self) -> int:
        return max(mark.written_ns for mark in self.files.values())


@dataclass(frozen=True)
class Look:
    """The checkpoints at one moment, as far as files show them."""

    snapshot: Snapshot
    candidates: tuple[Candidate, ...] = ()
    """In the order of writing, the latest last."""
    lack: str = NOTHING_NEW
    """The missing part of each checkpoint, in words; empty if none is visible."""
    complete: Complete = Complete.AUTO
    """The sign that this inspection uses."""
    shortage: str = ""
    """The shortage of disk space at the checkpoints, in words."""
    before: Mapping[str, Mapping[str, Mark]] = field(default_factory=dict)
    """The checkpoints of the first inspection by their names below the path."""


class Inspector:
    """Inspects one path repeatedly and compares it with the first inspection."""

    def __init__(self, saving: Checkpoint, restless: frozenset[str] = frozenset()) -> None:
        self._saving, self._restless = saving, restless
        self._first: Snapshot | None = None
        self._before: Snapshot | None = None
        """The files of the first inspection, and files written between it and the request."""
        self._tails: dict[str, bytes] = {}
        self._findings: dict[tuple[str, Mark], Finding] = {}

    def inspect(self) -> Look:
        """Inspect the files; later inspections are compared with the first."""
        now = take_snapshot(self._saving.path, self._restless)
        if self._before is None:
            self._first = self._before = now
            self._tails = _read_tails(now)
            return Look(now, before=resolve(self._saving, (), known=now.files).group(now.files))
        return self._compare(now, self._before)

    def inspect_after_request(self, asked_ns: int) -> Look:
        """
        Inspect after the request, and count files written before the request as old.

        Trainings also save themselves without a request. A checkpoint between the first inspection
        and the request does not answer the request, because the training continues beyond it.
        """
        assert self._first is not None
        now = take_snapshot(self._saving.path, self._restless)
        news = now.news_after(self._first)
        early = {name: mark for name, mark in news.items() if mark.changed_ns < asked_ns}
        self._before = replace(self._first, files={**self._first.files, **early})
        return self._compare(now, self._before)

    def inspect_without_clock(self) -> Look:
        """Compare only with the first inspection, because the file server's clock may be late."""
        self._before = self._first
        return self.inspect()

    def _compare(self, now: Snapshot, before: Snapshot) -> Look:
        news = {
            name: mark
            for name, mark in now.news_after(before).items()
            if not self._is_appended(now.root, name, mark=mark, before=before.files.get(name))
        }
        signs = resolve(self._saving, news, known=now.files)
        units = signs.group(news)
        pointer = signs.sign.pointer
        if pointer in news:
            # The file that points at the latest checkpoint counts even with the name of a log.
            units.setdefault("", {})[pointer] = news[pointer]
        found = (self._judge(signs, unit, news=units[unit], now=now) for unit in sorted(units))
        candidates = tuple(sorted(found, key=lambda one: one.written_ns))
        is_waiting = bool(pointer) and pointer not in news
        lack = f"{pointer} has not been written yet" if is_waiting else ""
        return Look(
            now,
            _seal_succeeded(candidates) if signs.sign.settles else candidates,
            lack=lack if candidates else NOTHING_NEW,
            complete=signs.complete,
            shortage=find_full_disk(now.root),
        )

    def _is_appended(self, root: str, name: str, *, mark: Mark, before: Mark | None) -> bool:
        """Return True if the file has only grown at its end, as logs do."""
        tail = self._tails.get(name)
        if before is None or not tail or mark.inode != before.inode or mark.size <= before.size:
            return False
        return _read(f"{root}/{name}", before.size - len(tail), count=len(tail)) == tail

    def _judge(
        self, signs: Signs, unit: str, *, news: Mapping[str, Mark], now: Snapshot
    ) -> Candidate:
        assert self._before is not None
        files = {**news, **signs.group(now.files).get(unit, {})} if unit else news
        is_fresh = files.keys().isdisjoint(self._before.files)
        lack = self._find_missing(signs, unit, news=news, now=now) if signs.sign.marks else ""
        if lack:
            return Candidate(unit, files, lack, is_fresh=is_fresh)
        findings = {name: self._examine(now.root, name, mark=mark) for name, mark in files.items()}
        is_proven = all(one.is_proven for one in findings.values())
        has_sign = is_sealed(signs, unit, files=files, is_proven=is_proven)
        return Candidate(unit, files, find_fault(findings), is_proven, has_sign, is_fresh)

    def _find_missing(
        self, signs: Signs, unit: str, *, news: Mapping[str, Mark], now: Snapshot
    ) -> str:
        within = [name for name in now.files if is_within(name, unit)]
        missing = signs.missing(unit, within)
        if missing:
            return f"{unit or self._saving.path} has no {missing} yet"
        old = [mark for mark in signs.marks_of(unit, within) if mark not in news]
        return f"{old[0]} is older than the rest" if old else ""

    def _examine(self, root: str, name: str, *, mark: Mark) -> Finding:
        found = self._findings.get((name, mark))
        if found is None:
            found = self._findings[name, mark] = examine(f"{root}/{name}")
        return found


def find_fault(findings: Mapping[str, Finding]) -> str:
    """Return the fault of the first faulty file."""
    faults = (
        f"{name} {finding.fault}"
        for name, finding in sorted(findings.items())
        if finding.fault and not MAY_BE_EMPTY.search(name.rpartition("/")[2])
    )
    return next(faults, "")


def is_sealed(signs: Signs, unit: str, *, files: Mapping[str, Mark], is_proven: bool) -> bool:
    """Return True if a mark, pointer, rename or format shows that the checkpoint is complete."""
    if signs.sign.settles:
        return False
    has_marks = bool(signs.sign.marks) and set(files) != {unit}
    return is_proven or has_marks or bool(signs.sign.pointer) or signs.complete is Complete.RENAME


def _seal_succeeded(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Count a checkpoint as complete when the training writes the next one."""
    if not candidates:
        return ()
    *before, last = candidates
    return (
        *(
            replace(one, is_sealed=normalise(one.unit) == normalise(last.unit) != one.unit)
            for one in before
        ),
        last,
    )


def _read_tails(now: Snapshot) -> dict[str, bytes]:
    names = sorted(now.files, key=lambda name: now.files[name].written_ns)[-MOST_TAILS:]
    tails = {}
    for name in names:
        size = now.files[name].size
        count = min(size, TAIL_BYTES)
        tails[name] = _read(f"{now.root}/{name}", size - count, count=count)
    return tails


def _read(path: str, offset: int, *, count: int) -> bytes:
    """Return a part of a file; empty if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, count, offset)
    except OSError:
        return b""
    finally:
        os.close(descriptor)

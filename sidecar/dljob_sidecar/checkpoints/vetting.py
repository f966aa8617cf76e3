"""
Inspects the checkpoints before a start, and reports the ones that a kill or a full disk left torn.

Frameworks resume from the latest checkpoint, complete or not. With ``checkpoint.vet`` a torn
checkpoint is moved into a folder next to it, so the framework finds the previous one; a suspicious
one is moved only while another one is left. After an unreadable confirmed checkpoint, confirmations
of this job do not count (:mod:`dljob_sidecar.checkpoints.ledger`).
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dljob_sidecar.checkpoints.checkpoint_files import SET_ASIDE, Mark, Snapshot, take_snapshot
from dljob_sidecar.checkpoints.inspecting import find_fault
from dljob_sidecar.checkpoints.ledger import MOST_FAILED, Ledger, read_ledger, write_ledger
from dljob_sidecar.checkpoints.recognizing.formats import examine
from dljob_sidecar.checkpoints.recognizing.shapes import Shape, look_again, shape_of
from dljob_sidecar.checkpoints.recognizing.signs import (
    DIGITS,
    Signs,
    is_within,
    normalise,
    recognise,
    resolve,
)
from dljob_sidecar.observing.shortages import find_full_disk
from dljob_wire.checkpoints import Checkpoint, Complete

MOST_SET_ASIDE = 2
MOST_FRUITLESS = 2
"""The number of consecutive starts without a first step after which their checkpoint is blamed."""

UNREADABLE = "CheckpointUnreadable"
NOT_TRUSTED = "CheckpointsNotTrusted"
DISTRUST = (
    "a checkpoint of this job was confirmed and could not be read afterwards ({}), so that none of"
    " its confirmations is trusted any more"
)


@dataclass(frozen=True)
class Verdict:
    """The result of the check before a start."""

    ledger: Ledger = Ledger()
    resume: str = ""
    """The path of the latest complete checkpoint; empty if none is known by name."""
    unreadable: str = ""
    """The unreadable checkpoints and their treatment, in words."""

    @property
    def distrust(self) -> str:
        failed = self.ledger.failed
        return "" if self.ledger.is_trusted else DISTRUST.format(", ".join(failed) or "unknown")


@dataclass(frozen=True)
class Unit:
    """A checkpoint before a start."""

    name: str
    files: Mapping[str, Mark]
    torn: str
    """The evidence that the checkpoint is incomplete, in words."""
    is_certain: bool = True
    """False if the checkpoint only looks unlike the others."""


def vet(saving: Checkpoint, *, leads: bool, wanted: Callable[[], bool] = lambda: True) -> Verdict:
    """
    Find the torn checkpoints and the latest complete one; with ``saving.vet``, move the torn ones.

    Only the container of the job's first process records the findings; the other containers of the
    job read them before or after that. Nothing is changed once the result is no longer ``wanted``.
    """
    ledger = read_ledger(saving)
    now = take_snapshot(saving.path, ledger.restless)
    if not leads:
        # Reset the count, because only the container that counts the starts blames a checkpoint.
        ledger = replace(ledger, fruitless=0)
    if not now.is_whole or not wanted():
        # With too many files, a missing file may only be unlisted.
        return Verdict(ledger)
    signs = resolve(saving, (), known=now.files)
    is_guessed = saving.complete is Complete.AUTO and not signs.sign.settles
    units = _find_units(now, signs, ledger=ledger, is_guessed=is_guessed, vets=saving.vet)
    good = next((unit for unit in units if not unit.torn), None)
    torn = units[: units.index(good)] if good else units
    movable = [unit for unit in torn if saving.vet and unit.name and (unit.is_certain or good)]
    if not wanted():
        # Reading takes time, and a new training may already write under these names.
        return Verdict(ledger)
    is_full = bool(movable and find_full_disk(now.root))
    moved = [unit for unit in movable if _set_aside(now.root, unit, is_full=is_full)]
    resume = f"{now.root}/{good.name}" if good and good.name else ""
    before = ledger
    ledger = _learn(ledger, units, good=good, root=now.root)
    if leads and ledger != before:
        write_ledger(saving, ledger)
    return Verdict(ledger, resume, _describe(torn, moved, good=good, vets=saving.vet))


def note_confirmed(ledger: Ledger, unit: str, *, files: Mapping[str, Mark], world: int) -> Ledger:
    """Record the confirmed checkpoint until a start has checked that it can be read."""
    since = min((mark.written_ns for mark in files.values()), default=0)
    shape = shape_of(files, unit, world=world)
    return replace(ledger, shape=shape, pending=unit, since_ns=since, fruitless=0)


# --- what lies there ----------------------------------------------------------------------


def _find_units(
    now: Snapshot, signs: Signs, *, ledger: Ledger, is_guessed: bool, vets: bool
) -> list[Unit]:
    """Return the checkpoints down to the first good one, in the framework's order."""
    if signs.sign.pointer:
        # The checkpoint that the pointer names was complete, and the framework reads no other one.
        return []
    is_unnamed = signs.patterns == signs.sign.patterns
    if is_unnamed and signs.complete in {Complete.RENAME, Complete.MARKER}:
        # No name identifies the other files as checkpoints.
        return []
    folder = _Folder(now, signs, ledger)
    names = [name for name in folder.names() if not is_guessed or folder.is_of_framework(name)]
    found: list[Unit] = []
    for name in names:
        found.append(folder.judge(name))
        if not found[-1].torn:
            break
    # A training that finds a torn checkpoint before this one did not start from this one.
    is_source = bool(found) and found[-1].name == ledger.source and (vets or len(found) == 1)
    if ledger.fruitless >= MOST_FRUITLESS and is_source:
        rest = map(folder.judge, names[len(found) :])
        other = next((unit for unit in rest if not unit.torn), None)
        if other is not None:
            why = f"{ledger.fruitless} starts from it failed before their first step"
            found[-1] = replace(found[-1], torn=why, is_certain=False)
            found.append(other)
    return found


class _Folder:
    """All checkpoints under a path at one moment."""

    def __init__(self, now: Snapshot, signs: Signs, ledger: Ledger) -> None:
        self._now = now
        self._signs = signs
        self._ledger = ledger
        self._units = signs.group(now.files)
        self._hollow = signs.find_hollow(now.folders, self._units)

    def is_of_framework(self, name: str) -> bool:
        """Return True if the recognised framework writes this checkpoint."""
        kin = [
            unit for unit, files in self._units.items() if recognise(files) is self._signs.complete
        ]
        parts = {_part(each, unit) for unit in kin for each in self._units[unit]}
        files = self._units.get(name, {})
        return name in kin or all(_part(each, name) in parts for each in files)

    def names(self) -> list[str]:
        """Return the names in the order in which a framework resumes from them."""
        by_number = self._signs.complete is Complete.HUGGINGFACE

        def age(name: str) -> tuple[tuple[int, ...], float]:
            number = tuple(map(int, DIGITS.findall(name.rpartition("/")[2]))) if by_number else ()
            times = [mark.written_ns for mark in self._units.get(name, {}).values()]
            # An empty checkpoint has no time and was just begun.
            return number, max(times, default=math.inf)

        return sorted([*self._units, *self._hollow], key=age, reverse=True)

    def judge(self, name: str) -> Unit:
        files = self._units.get(name)
        if files is None:
            return Unit(name, {}, "it holds nothing")
        now, signs = self._now, self._signs
        within = [each for each in now.files if is_within(each, name)] if signs.sign.marks else ()
        missing = signs.missing(name, within)
        if missing:
            return Unit(name, files, f"it has no {missing}")
        # Check only the job's own checkpoint, because a copy may have changed the times of others.
        later = self._find_later(name, files) if name == self._ledger.source else ""
        if later:
            return Unit(name, files, f"{later} was written after its mark", is_certain=False)
        findings = {each: examine(f"{now.root}/{each}") for each in files}
        # Ignore files that failed to read for a temporary reason; the training reads them itself.
        fault = find_fault({each: one for each, one in findings.items() if not one.is_passing})
        if fault:
            return Unit(name, files, fault)
        return Unit(name, files, self._find_unlike(name, files), is_certain=False)

    def _find_later(self, name: str, files: Mapping[str, Mark]) -> str:
        """Return a shard that was overwritten after the mark of the previous checkpoint."""
        if self._signs.complete is not Complete.DCP:
            return ""
        marks = self._signs.marks_of(name, self._now.files)
        sealed = max((self._now.files[mark].written_ns for mark in marks), default=0)
        return next((each for each in sorted(files) if files[each].written_ns > sealed), "")

    def _find_unlike(self, name: str, files: Mapping[str, Mark]) -> str:
        """Describe how the checkpoint differs from the others, if no sign shows completion."""
        if not self._signs.sign.settles:
            return ""
        others = (
            shape_of(files, other, world=1) for other, files in self._units.items() if other != name
        )
        # The largest earlier checkpoint is complete.
        known = self._ledger.shape or max(others, key=lambda shape: shape.size, default=None)
        if known is None:
            return ""
        # The number of writers is unknown; assume the previous one.
        shape = shape_of(files, name, world=known.world)
        was_seen = self._ledger.pending == name and shape == known
        return "" if was_seen or shape.is_whole_beside(known) else _compare(shape, known)


def _part(name: str, unit: str) -> str:
    return normalise(name[len(unit) :])


def _compare(shape: Shape, known: Shape) -> str:
    lacking = sorted(
        name for name, count in known.names.items() if shape.names.get(name, 0) < count
    )
    if lacking:
        return f"it has no {lacking[0].strip('/')}, as the one before has"
    return f"it holds {shape.size} bytes, and the one before {known.size}"


# --- what follows -------------------------------------------------------------------------


def _learn(ledger: Ledger, units: list[Unit], *, good: Unit | None, root: str) -> Ledger:
    """Record the fate of the last confirmed checkpoint and the shape of checkpoints."""
    blamed = [unit for unit in units if unit.torn and unit.name in {ledger.pending, ledger.source}]
    failed = [unit.name for unit in blamed if unit.name == ledger.pending or ledger.fruitless]
    if ledger.pending and ledger.pending not in failed and _was_set_aside(root, ledger):
        failed.append(ledger.pending)
    for name in failed:
        known = tuple(one for one in ledger.failed if one != name)
        ledger = replace(ledger, failed=(*known, name)[-MOST_FAILED:], is_trusted=False)
    source = good.name if good else ""
    fruitless = ledger.fruitless if source == ledger.source else 0
    shape = ledger.shape
    if good is not None and good.name == ledger.pending and shape is not None:
        # Files may have followed the confirmation; wait for them next time.
        shape = look_again(shape, good.files, unit=good.name, since_ns=ledger.since_ns) or shape
    return replace(ledger, shape=shape, pending=None, source=source, fruitless=fruitless)


def _was_set_aside(root: str, ledger: Ledger) -> bool:
    """Return True if another container has already moved the last confirmed checkpoint."""
    name = ledger.pending or ""
    try:
        moved_ns = os.stat(_place_aside(root, name)).st_mtime_ns  # noqa: PTH116
    except OSError:
        return False
    is_gone = not os.path.lexists(f"{root}/{name}")
    return is_gone and moved_ns >= ledger.since_ns


def _place_aside(root: str, name: str) -> str:
    return f"{root}/{SET_ASIDE}/{name.replace('/', '_')}"


def _set_aside(root: str, unit: Unit, *, is_full: bool) -> bool:
    """Move the checkpoint to where no framework looks, and delete the oldest moved ones."""
    most = 0 if is_full and unit.is_certain else MOST_SET_ASIDE
    folder = f"{root}/{SET_ASIDE}"
    place = _place_aside(root, unit.name)
    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as in the other modules of looks
        _remove(place)
        os.rename(f"{root}/{unit.name}", place)  # noqa: PTH104
    except OSError:
        return False
    with contextlib.suppress(OSError):
        os.utime(place)
        with os.scandir(folder) as entries:
            known = sorted(entries, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
        # On a full disk, delete unreadable checkpoints to make space for readable ones.
        for entry in known[: len(known) - most]:
            _remove(entry.path)
    return True


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
        # rmtree recurses for each level; deeper folders stay.
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)  # noqa: PTH107


def _describe(torn: list[Unit], moved: list[Unit], *, good: Unit | None, vets: bool) -> str:
    if not torn:
        return ""
    faults = "; ".join(
        f"{unit.name or 'the checkpoint'} cannot be used: {unit.torn}"
        + (f" (now in {SET_ASIDE})" if unit in moved else "")
        for unit in torn
    )
    if good is not None and good.name:
        latest = "the training goes on from" if vets else "the latest whole one is"
        return f"{faults}; {latest} {good.name}"
    return f"{faults}; there is none before it"

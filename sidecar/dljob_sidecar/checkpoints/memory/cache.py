"""
The folder in memory that a training writes its checkpoints to, as a cache of the folder on disk.

A checkpoint counts only when it is on disk (docs/decisions/0012-checkpoints-in-memory.md). So the
cache writes out each complete checkpoint, and removes older ones for a newer one. Before each
start, it copies the latest complete checkpoint and the files outside checkpoints to memory. A
SideCar begins with an empty memory, because checkpoints of an earlier SideCar may be torn.

This module reads and writes files, and so runs in a file thread, one thread at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from dljob_sidecar.checkpoints.checkpoint_files import Mark, Snapshot, find_written, take_snapshot
from dljob_sidecar.checkpoints.copying import CannotCopy, copy, files_of, is_copied, remove, repair
from dljob_sidecar.checkpoints.inspecting import find_fault, is_sealed
from dljob_sidecar.checkpoints.memory.folder import MemoryFolder, MemoryLimit
from dljob_sidecar.checkpoints.recognizing.formats import examine
from dljob_sidecar.checkpoints.recognizing.signs import is_unfinished, resolve
from dljob_sidecar.checkpoints.vetting import Verdict, vet
from dljob_wire.checkpoints import Checkpoint

Files = Mapping[str, Mark]


class Contents:
    """A snapshot of the memory folder, sorted into checkpoints and other files."""

    def __init__(self, saving: Checkpoint, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._signs = resolve(saving, (), known=snapshot.files)
        self.units: Mapping[str, Files] = self._signs.group(snapshot.files)

    def files_of(self, unit: str) -> dict[str, Mark]:
        """Return all files of a checkpoint, including files with names of logs."""
        return {name: self.snapshot.files[name] for name in files_of(self.snapshot, unit)}

    def size_of(self, unit: str) -> int:
        return sum(mark.size for mark in self.files_of(unit).values())

    @property
    def size(self) -> int:
        return sum(mark.size for mark in self.snapshot.files.values())

    def sorted_units(self) -> list[str]:
        """Return the names of the checkpoints, the latest first."""
        return sorted(self.units, key=self.written_ns, reverse=True)

    def written_ns(self, unit: str) -> int:
        return max((mark.written_ns for mark in self.units[unit].values()), default=0)

    def beside(self) -> list[str]:
        """Return the files outside checkpoints, such as logs."""
        within = {name for unit in self.units if unit for name in files_of(self.snapshot, unit)}
        files = self.snapshot.files
        return sorted(name for name in files if name not in within and not is_unfinished(name))

    def find_older(self, unit: str, *, limit_bytes: int) -> list[str]:
        """Return older checkpoints to remove for another one of this size, the oldest first."""
        room, units = limit_bytes - self.size, self.sorted_units()
        found = []
        for other in reversed(units[units.index(unit) + 1 :] if unit in units else []):
            if other and room < self.size_of(unit):
                room += self.size_of(other)
                found.append(other)
        return found

    def find_other(self, names: Iterable[str]) -> str:
        """Return a file or folder outside these names; empty if there is none."""
        wanted = set(names)
        folders = {name[: at + 1] for name in wanted for at, sign in enumerate(name) if sign == "/"}
        odd = [name for name in self.snapshot.files if name not in wanted]
        odd += [name for name in self.snapshot.folders if f"{name}/" not in folders]
        return self.snapshot.gap or (
            f"{self.snapshot.root}/{min(odd)} cannot be removed" if odd else ""
        )

    def find_newest(self, pids: Iterable[int] | None, written: Mapping[str, Files]) -> str:
        """
        Return the latest complete checkpoint.

        While processes live, only the latest one is examined, because the training may be removing
        earlier ones. ``written`` has the files of checkpoints that are already on disk, by name.
        """
        if self._signs.sign.pointer or self._signs.sign.settles:
            return ""
        busy = find_written(self.snapshot.root, pids or ())
        latest = self.sorted_units()
        for unit in latest if pids is None else latest[:1]:
            if unit and self._is_complete(unit, busy, before=written.get(unit, {})):
                return unit
        return ""

    def _is_complete(self, unit: str, busy: set[str], *, before: Files) -> bool:
        within = self.files_of(unit)
        if self._signs.missing(unit, within) or not busy.isdisjoint(within):
            return False
        marks = self._signs.marks_of(unit, within)
        if before and before != within and any(before.get(name) == within[name] for name in marks):
            return False  # The mark belongs to the previous checkpoint of this name.
        files = self.units[unit]
        findings = {name: examine(f"{self.snapshot.root}/{name}") for name in files}
        is_proven = all(one.is_proven for one in findings.values())
        is_whole = is_sealed(self._signs, unit, files=files, is_proven=is_proven)
        return is_whole and not find_fault(findings)


@dataclass(frozen=True)
class Prepared:
    """The result of the preparation before a start."""

    verdict: Verdict
    is_in_memory: bool = False
    """True if the start writes to memory; False if to disk."""
    fault: str = ""
    """The reason for writing to disk, in words."""


@dataclass(frozen=True)
class Written:
    """The result of writing out."""

    unit: str = ""
    """The checkpoint that was written to disk."""
    fault: str = ""
    shortage: str = ""
    """The reason why the memory is too small for the checkpoints, in words."""


class MemoryCache:
    """The memory of one job in one container."""

    def __init__(self, saving: Checkpoint, read_free: Callable[[], int]) -> None:
        """``read_free`` returns the free memory of the container; -1 if unknown."""
        self._disk = saving
        self._here = replace(saving, path=saving.memory_path)
        self._folder = MemoryFolder(saving.memory_path, saving.memory_bytes, read_free)
        self._limit = MemoryLimit(saving.memory_bytes)
        self._written: dict[str, Files] = {}
        """The files of checkpoints in memory that are also on disk, by checkpoint."""
        self._beside: dict[str, Mark] = {}
        """The files outside checkpoints, as last written out."""
        self._latest = ""
        """The last checkpoint written out, which stays on disk despite the training's rotation."""

    def prepare(self, *, is_alone: bool, wanted: Callable[[], bool]) -> Prepared:
        """
        Write out the rest of the memory, check the disk, and fill the memory from the disk.

        The caller must ensure that all processes of the job are in this container, because shards
        of several containers form one checkpoint.
        """
        fault = self._folder.open() or self.write_out_all(wanted).fault
        repair(take_snapshot(self._disk.path), wanted)
        verdict = vet(self._disk, leads=True, wanted=wanted)
        fault = fault or self._limit.shortage
        try:
            if is_alone and wanted() and not fault:
                fault = self._fill(verdict, wanted)
        except CannotCopy as error:
            fault = str(error)
        if fault or not is_alone or not wanted():
            self._clear()
            return Prepared(verdict, fault=fault)
        return Prepared(_move(verdict, self._disk.path, here=self._here.path), is_in_memory=True)

    def close(self) -> None:
        """Free the memory, including that of an earlier SideCar."""
        self._folder.close()

    def _clear(self) -> None:
        self._folder.clear()
        self._written, self._beside = {}, {}

    # --- from the disk ----------------------------------------------------------------------

    def _fill(self, verdict: Verdict, wanted: Callable[[], bool]) -> str:
        """Copy the latest complete checkpoint and other files to memory; return an obstacle."""
        disk, here = _look(self._disk), _look(self._here)
        if disk.snapshot.gap:
            return disk.snapshot.gap
        good = verdict.resume[len(disk.snapshot.root) + 1 :]
        beside = disk.beside()
        rest = sum(disk.snapshot.files[name].size for name in beside)
        shortage = self._limit.find_shortage(disk.size_of(good) if good else 0, rest)
        if shortage:
            return shortage
        units = [*([good] if good else []), *beside]
        kept = [unit for unit in units if is_copied(disk.snapshot, here.snapshot, unit=unit)]
        self._folder.keep({name for unit in kept for name in here.files_of(unit)}, here.snapshot)
        for unit in units:
            if unit not in kept:
                copy(disk.snapshot, unit, root=here.snapshot.root, goes_on=wanted, is_synced=False)
        now = _look(self._here)
        files = now.snapshot.files
        self._written = {good: now.files_of(good)} if good else {}
        self._latest = good
        self._beside = {name: files[name] for name in beside if name in files}
        return now.find_other({name for one in units for name in disk.files_of(one)})

    # --- to the disk ------------------------------------------------------------------------

    def write_out(self, unit: str, files: Files, goes_on: Callable[[], bool]) -> Written:
        """Write out a checkpoint that is complete with these files."""
        now = _look(self._here)
        if now.snapshot.gap or not unit:
            return Written(fault=now.snapshot.gap or "the checkpoint has no name of its own")
        if not _has_files(now.snapshot.files, files):
            return Written(fault=f"{unit} was changed after it was complete")
        if self._is_on_disk(now, unit):
            return Written(unit)
        return self._write_out(now, unit, goes_on=goes_on)

    def write_out_newest(self, pids: Iterable[int] | None, goes_on: Callable[[], bool]) -> Written:
        """
        Write out the latest complete checkpoint if it is not on disk already.

        ``pids`` are the processes that may write; None if all have ended.
        """
        now = _look(self._here)
        if now.snapshot.gap:
            return Written(fault=now.snapshot.gap)
        self._limit.note(now.size)
        unit = now.find_newest(pids, self._written)
        # A late run must not remove files that the next start wrote under these names.
        if goes_on():
            # Remove checkpoints from disk that the training removed from memory, except the latest.
            for gone in [one for one in self._written if not now.files_of(one)]:
                if gone != self._latest and not os.path.lexists(f"{now.snapshot.root}/{gone}"):
                    remove(f"{self._disk.path}/{gone}")
                    del self._written[gone]
        if not unit or self._is_on_disk(now, unit):
            return Written(shortage=self._limit.shortage)
        return self._write_out(now, unit, goes_on=goes_on)

    def write_out_all(self, goes_on: Callable[[], bool]) -> Written:
        """Write out the rest of a training that has ended; its last checkpoint may be torn."""
        if not self._folder.is_open:
            return Written()
        written = self.write_out_newest(None, goes_on)
        self._write_beside(_look(self._here), goes_on)
        return written

    def _write_out(self, now: Contents, unit: str, *, goes_on: Callable[[], bool]) -> Written:
        root = os.path.realpath(self._disk.path)
        try:
            copy(now.snapshot, unit, root=root, goes_on=goes_on, is_synced=True)
        except CannotCopy as error:
            return Written(fault=str(error), shortage=self._limit.shortage)
        self._written[unit] = now.files_of(unit)
        self._latest = unit
        self._write_beside(now, goes_on)
        self._make_room(now, unit)
        self._limit.note(now.size, now.size_of(unit))
        return Written(unit, shortage=self._limit.shortage)

    def _write_beside(self, now: Contents, goes_on: Callable[[], bool]) -> None:
        """Write out the files outside checkpoints; files that grow meanwhile follow next time."""
        files = now.snapshot.files
        for name in now.beside():
            if files[name] != self._beside.get(name):
                with contextlib.suppress(CannotCopy):
                    copy(now.snapshot, name, root=self._disk.path, goes_on=goes_on, is_synced=False)
                    self._beside[name] = files[name]

    def _is_on_disk(self, now: Contents, unit: str) -> bool:
        known, files = self._written.get(unit), now.files_of(unit)
        return known is not None and known.keys() == files.keys() and _has_files(files, known)

    def _make_room(self, now: Contents, unit: str) -> None:
        """Remove older checkpoints from memory until the next one fits."""
        for other in now.find_older(unit, limit_bytes=self._disk.memory_bytes):
            remove(f"{now.snapshot.root}/{other}")
            self._written.pop(other, None)


def _has_files(files: Files, wanted: Mapping[str, Mark]) -> bool:
    """Return True if the wanted files are unchanged; new links to them do not matter."""
    return all(name in files and files[name][:3] == mark[:3] for name, mark in wanted.items())


def _look(saving: Checkpoint) -> Contents:
    return Contents(saving, take_snapshot(saving.path))


def _move(verdict: Verdict, disk: str, *, here: str) -> Verdict:
    """Replace the path of the checkpoint to resume by its copy in memory, if there is one."""
    below = verdict.resume[len(os.path.realpath(disk)) :]
    return replace(verdict, resume=os.path.realpath(here) + below if below else "")

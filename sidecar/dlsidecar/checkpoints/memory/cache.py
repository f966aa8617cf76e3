"""
The folder in memory that a training writes its checkpoints to, as a cache of the folder on the disk.

A checkpoint counts when it is on the disk, and not before (docs/decisions/0012-checkpoints-in-memory.md). So each one that is
complete in memory is written out, older ones leave the memory when a newer one needs the room, and before each start
the memory is made to hold what the disk holds: the latest whole checkpoint, and the files that belong to none. A SideCar begins
with an empty memory, because the checkpoints that another one left there may be torn.

All of it reads and writes files, and so is done in a file thread, by one thread at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from dlsidecar.checkpoints.checkpoint_files import Mark, take_snapshot
from dlsidecar.checkpoints.copying import CannotCopy, copy, is_copied, remove, repair
from dlsidecar.checkpoints.memory.contents import Contents, Files
from dlsidecar.checkpoints.memory.folder import MemoryFolder, MemoryLimit
from dlsidecar.checkpoints.vetting import Verdict, vet
from dlwire.training import Saving


@dataclass(frozen=True)
class Prepared:
    """The result of a look at the checkpoints before a start."""

    verdict: Verdict
    is_in_memory: bool = False
    """True if the start writes to memory; False if to the disk."""
    fault: str = ""
    """Why not, in words."""


@dataclass(frozen=True)
class Written:
    """The result of writing out."""

    unit: str = ""
    """The checkpoint that is on the disk now and was not before."""
    fault: str = ""
    shortage: str = ""
    """That the memory is too small for the checkpoints of this training, in words."""


class MemoryCache:
    """The memory of one job in one container."""

    def __init__(self, saving: Saving, read_free: Callable[[], int]) -> None:
        """``read_free`` returns how much memory the container may still take; -1 where that is not known."""
        self._disk = saving
        self._here = replace(saving, path=saving.memory_path)
        self._folder = MemoryFolder(saving.memory_path, saving.memory_bytes, read_free)
        self._limit = MemoryLimit(saving.memory_bytes)
        self._written: dict[str, Files] = {}
        """The files in memory of checkpoints that are on the disk, by the names of the checkpoints."""
        self._beside: dict[str, Mark] = {}
        """Files of no checkpoint, as they were written out last."""
        self._latest = ""
        """The checkpoint that was written out last, which no rotation of the training takes from the disk."""

    def prepare(self, *, is_alone: bool, wanted: Callable[[], bool]) -> Prepared:
        """
        Write out the rest of the memory, look at the disk, and let the memory hold the same.

        Only while all processes of the job are in this container, which the caller knows: shards of several
        containers are one checkpoint together.
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
        """Give the memory back, also that of a SideCar before this one."""
        self._folder.close()

    def _clear(self) -> None:
        self._folder.clear()
        self._written, self._beside = {}, {}

    # --- from the disk ----------------------------------------------------------------------

    def _fill(self, verdict: Verdict, wanted: Callable[[], bool]) -> str:
        """Let the memory hold the latest whole checkpoint and the files of none; return why it cannot."""
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
        """Write out a checkpoint that was seen to be complete as these files."""
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
        Write out the latest complete checkpoint if it is not on the disk already.

        ``pids`` are the processes that may write; None where all have ended.
        """
        now = _look(self._here)
        if now.snapshot.gap:
            return Written(fault=now.snapshot.gap)
        self._limit.note(now.size)
        unit = now.find_newest(pids, self._written)
        # A look that comes too late must not remove what the next start has written under these names.
        if goes_on():
            self._follow_removals(now)
        if not unit or self._is_on_disk(now, unit):
            return Written(shortage=self._limit.shortage)
        return self._write_out(now, unit, goes_on=goes_on)

    def write_out_all(self, goes_on: Callable[[], bool]) -> Written:
        """Write out the rest of a training that has ended; the checkpoint that was begun last may be torn."""
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
        """Write out the files of no checkpoint; those that grow meanwhile come with the next one."""
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
        """Remove from memory the checkpoints before the one on the disk, as far as the next needs the room."""
        for other in now.find_older(unit, limit_bytes=self._disk.memory_bytes):
            remove(f"{now.snapshot.root}/{other}")
            self._written.pop(other, None)

    def _follow_removals(self, now: Contents) -> None:
        """Remove from the disk the checkpoints that the training has removed from memory, but for the latest."""
        for unit in [one for one in self._written if not now.files_of(one)]:
            if unit != self._latest and not os.path.lexists(f"{now.snapshot.root}/{unit}"):
                remove(f"{self._disk.path}/{unit}")
                del self._written[unit]


def _has_files(files: Files, wanted: Mapping[str, Mark]) -> bool:
    """Return whether the wanted files are unchanged; a new link to one makes no difference."""
    return all(name in files and files[name][:3] == mark[:3] for name, mark in wanted.items())


def _look(saving: Saving) -> Contents:
    return Contents(saving, take_snapshot(saving.path))


def _move(verdict: Verdict, disk: str, *, here: str) -> Verdict:
    """Name the copy in memory, where there is one, as the checkpoint that the training goes on from."""
    below = verdict.resume[len(os.path.realpath(disk)) :]
    return replace(verdict, resume=os.path.realpath(here) + below if below else "")

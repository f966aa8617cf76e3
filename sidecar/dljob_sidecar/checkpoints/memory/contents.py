"""
The contents of a job's memory folder at one moment: checkpoints, which of them are complete, and files of none.

:mod:`dljob_sidecar.checkpoints.memory.cache` uses it. The signs of completeness are the same as on the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dljob_sidecar.checkpoints.checkpoint_files import Mark, Snapshot, find_written
from dljob_sidecar.checkpoints.copying import files_of
from dljob_sidecar.checkpoints.inspecting import find_fault, is_sealed
from dljob_sidecar.checkpoints.recognizing.formats import examine
from dljob_sidecar.checkpoints.recognizing.signs import is_unfinished, resolve
from dljob_wire.checkpoints import Checkpoint

Files = Mapping[str, Mark]


class Contents:
    """A snapshot, sorted into checkpoints and other files."""

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

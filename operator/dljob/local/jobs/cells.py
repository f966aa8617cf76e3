"""
The list of jobs as cells: a value for each column of a job, and for each fact about controllers and GPUs.

:mod:`dljob.local.jobs.jobs_file` keeps cells on the disk, and :mod:`dljob.local.jobs.rows` reads jobs from them.
"""

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from dljob.control.situation.clocks import Reading, Stamp

Key = tuple[str, str]
"""The name of a job and a column. Cells that belong to no job have an empty name."""
Value = str | int
Cells = dict[Key, Value]
Change = Mapping[Key, Value | None]
"""The cells that a transaction writes; ``None`` removes a cell."""

EPOCH, READING = ("", "epoch"), ("", "reading")
HOLD = "hold "
"""The column of a hold begins with this word; the namespace follows."""


class Content(NamedTuple):
    cells: Mapping[Key, Value]
    revision: int = 0
    """The number of transactions."""

    @property
    def epoch(self) -> int:
        return int(self.cells.get(EPOCH, 0))

    @property
    def reading(self) -> Reading:
        """The clocks when the last controller began."""
        boot, since_boot, at = json.loads(str(self.cells.get(READING, '["", 0.0, 0.0]')))
        return Reading(Stamp(boot, since_boot), at)

    def cordons(self) -> dict[tuple[str, int], str]:
        """Return the reasons of cordoned GPUs, by node and number."""
        places = {
            column.rpartition("/"): reason
            for (name, column), reason in self.cells.items()
            if not name and "/" in column
        }
        return {(node, int(gpu)): str(reason) for (node, _, gpu), reason in places.items()}

    def holds(self) -> dict[str, str]:
        """Return the reasons of holds, by namespace."""
        columns = {column: reason for (name, column), reason in self.cells.items() if not name}
        return {
            column.removeprefix(HOLD): str(reason)
            for column, reason in columns.items()
            if column.startswith(HOLD)
        }


def leader(epoch: int, reading: Reading) -> Cells:
    """Make another controller the leader."""
    return {EPOCH: epoch, READING: json.dumps([*reading.stamp, reading.at])}


def cordon(node: str, gpu: int, reason: str) -> Change:
    """Cordon a GPU; an empty reason uncordons it."""
    return {("", f"{node}/{gpu}"): reason or None}


def job_cells(name: str, **columns: Value | None) -> Change:
    return {(name, column): value for column, value in columns.items()}


class Seal:
    """A checksum of all cells that costs no more to update than the cells that change."""

    def __init__(self, cells: Mapping[Key, Value]) -> None:
        self._parts: dict[Key, int] = {}
        self._sum = 0
        self.accept(self.prepare(cells))

    def prepare(self, change: Change) -> dict[Key, int]:
        """Return the parts of the sum that a change replaces."""
        return {key: 0 if value is None else _hash(key, value) for key, value in change.items()}

    def text(self, revision: int, parts: Mapping[Key, int] = MappingProxyType({})) -> str:
        """Return the seal of a revision with these parts."""
        total = self._sum
        for key, part in parts.items():
            total ^= self._parts.get(key, 0) ^ part
        return hashlib.sha256(f"{total:x} {revision}".encode()).hexdigest()[:32]

    def accept(self, parts: Mapping[Key, int]) -> None:
        """Keep these parts, which were committed."""
        for key, part in parts.items():
            self._sum ^= self._parts.pop(key, 0) ^ part
            if part:
                self._parts[key] = part


def _hash(key: Key, value: Value) -> int:
    text = json.dumps([*key, value])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16])

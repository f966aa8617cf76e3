"""The seal of the file of jobs, by which a change that was not made by this program is seen."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from dllocal.jobs.journal import (
    Change,
    Row,
)


class Seal:
    """A sum over everything that is kept, brought up to date by what changes."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self._parts: dict[Key, int] = {}
        self._sum = 0
        self.accept(self.prepare(changes))

    def prepare(self, changes: Iterable[Change]) -> dict["Key", int]:
        """Return which parts of the sum are others after these changes."""
        parts: dict[Key, int] = {}
        for change in changes:
            parts.update(_parts_of(change))
        return parts

    def text(self, revision: int, parts: Mapping["Key", int] = MappingProxyType({})) -> str:
        """Return the seal of a revision, as it is or with these parts."""
        total = self._sum
        for key, part in parts.items():
            total ^= self._parts.get(key, 0) ^ part
        return hashlib.sha256(f"{total:x} {revision}".encode()).hexdigest()[:32]

    def accept(self, parts: Mapping["Key", int]) -> None:
        """Take them over, once they are committed."""
        for key, part in parts.items():
            self._sum ^= self._parts.pop(key, 0) ^ part
            if part:
                self._parts[key] = part


Key = tuple[str, str]


def _parts_of(change: Change) -> Iterator[tuple[Key, int]]:
    match change["what"]:
        case "job":
            fields = Row(*change["row"])._asdict().items()
            yield from (_part(change["name"], *each) for each in fields)
        case "fields":
            yield from (_part(change["name"], *each) for each in change["fields"].items())
        case "gone":
            yield from (((change["name"], column), 0) for column in Row._fields)
        case "cordon":
            key = "", f"{change['node']}/{change['gpu']}"
            yield _part(*key, change["reason"]) if change["reason"] else (key, 0)
        case "leader":
            yield _part("", "leader", [change["epoch"], *change["reading"]])


def _part(name: str, column: str, value: object) -> tuple[Key, int]:
    text = json.dumps([name, column, value])
    return (name, column), int.from_bytes(hashlib.sha256(text.encode()).digest()[:16])

"""
The requests of pods, added up by node.

Of pods that are not ours nothing else is remembered: who shares a pool with thousands of pods of
others keeps a name, a node and a few numbers of each, and the numbers are shared by those alike.
"""

from collections.abc import Collection, Iterable
from sys import intern
from typing import NamedTuple

from dlcore.placement.amounts import (
    Amounts,
    less,
    requests_of,
    total,
)
from dlkube.documents import Json

Name = tuple[str, str]
"""Of a pod, with its namespace before."""

MOST_ALIKE = 10_000
PORT = "port/"
"""Ports of a node are counted as a resource of which there is one."""


class PodUsage(NamedTuple):
    """A pod, as far as its node is concerned."""

    node: str
    amounts: Amounts


class Occupancy:
    """Which pods are on which nodes, and what they ask for together."""

    def __init__(self) -> None:
        self._usages: dict[Name, tuple[PodUsage, ...]] = {}
        self._totals: dict[str, Amounts] = {}
        self._alike: dict[tuple[tuple[str, int], ...], Amounts] = {}
        self.dirty: set[str] = set()
        """The nodes on which something has changed since the last read."""

    def put(self, name: Name, usages: Iterable[PodUsage]) -> bool:
        """Take in what a pod, or what is meant to be one, asks of nodes; tell whether that is new."""
        now = tuple(PodUsage(intern(each.node), self._share(each.amounts)) for each in usages)
        before = self._usages.get(name, ())
        if now == before:
            return False
        for each in before:
            self._totals[each.node] = less(self._totals[each.node], each.amounts)
        for each in now:
            self._totals[each.node] = total((self._totals.get(each.node, {}), each.amounts))
        self.dirty.update(each.node for each in (*before, *now))
        if now:
            self._usages[name] = now
        else:
            del self._usages[name]
        return True

    def drop(self, name: Name) -> bool:
        """Take in that it is gone; tell whether it was there."""
        return self.put(name, ())

    def keep_only(self, names: Collection[Name]) -> bool:
        """Drop all others; tell whether there were any."""
        gone = self._usages.keys() - set(names)
        for name in gone:
            self.drop(name)
        return bool(gone)

    def on(self, node: str) -> Amounts:
        """The requests of all pods on a node together."""
        return self._totals.get(node, {})

    def _share(self, amounts: Amounts) -> Amounts:
        if len(self._alike) > MOST_ALIKE:
            self._alike.clear()
        return self._alike.setdefault(tuple(sorted(amounts.items())), amounts)


def read_usage(document: Json) -> PodUsage | None:
    """
    Read what a pod asks of its node; nothing if it has none yet, or has ended.

    Raises :class:`~dlcore.placement.amounts.NoAmount` for what the API server does not let through today.
    """
    spec = document.get("spec") or {}
    phase = (document.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return None
    return PodUsage(spec["nodeName"], asked_by(spec))


def asked_by(spec: Json) -> Amounts:
    """Return what a pod asks of a node, its ports there included."""
    asked = requests_of(spec)
    for container in spec.get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                asked[f"{PORT}{port.get('protocol') or 'TCP'}/{port['hostPort']}"] = 1000
    return asked

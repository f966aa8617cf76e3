"""
The requests of pods, added up by node.

A pool may be shared with thousands of other pods: only the name, the node and the requests of each are kept, and equal
requests are one object.
"""

from collections.abc import Collection, Iterable
from sys import intern
from typing import NamedTuple

from dljob.core.placement.amounts import Amounts, less, requests_of, total
from dljob.kube.documents import PodDocument, PodSpec

Name = tuple[str, str]
"""The namespace and the name of a pod."""

MOST_ALIKE = 10_000
PORT = "port/"
"""Host ports count as a resource of which each node has one."""


class PodUsage(NamedTuple):
    """The node of a pod, and its requests."""

    node: str
    amounts: Amounts


class Occupancy:
    """The pods of each node, and the sum of their requests."""

    def __init__(self) -> None:
        self._usages: dict[Name, tuple[PodUsage, ...]] = {}
        self._totals: dict[str, Amounts] = {}
        self._alike: dict[tuple[tuple[str, int], ...], Amounts] = {}
        self.dirty: set[str] = set()
        """The nodes that changed since the last read."""

    def put(self, name: Name, usages: Iterable[PodUsage]) -> bool:
        """Replace the requests under a name; return true if they have changed."""
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
        return self.put(name, ())

    def keep_only(self, names: Collection[Name]) -> bool:
        """Drop all other pods; return true if there were any."""
        gone = self._usages.keys() - set(names)
        for name in gone:
            self.drop(name)
        return bool(gone)

    def on(self, node: str) -> Amounts:
        """Return the sum of the requests on a node."""
        return self._totals.get(node, {})

    def _share(self, amounts: Amounts) -> Amounts:
        if len(self._alike) > MOST_ALIKE:
            self._alike.clear()
        return self._alike.setdefault(tuple(sorted(amounts.items())), amounts)


def read_usage(document: PodDocument) -> PodUsage | None:
    """
    Read the usage of a pod; None if it is not bound, or has ended.

    Raises :class:`~dljob.core.placement.amounts.NoAmount` for amounts that the API server refuses today.
    """
    spec = document.get("spec") or {}
    phase = (document.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return None
    return PodUsage(spec["nodeName"], asked_by(spec))


def asked_by(spec: PodSpec) -> Amounts:
    """Return the requests of a pod, host ports included."""
    asked = requests_of(spec)
    for container in spec.get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                asked[f"{PORT}{port.get('protocol') or 'TCP'}/{port['hostPort']}"] = 1000
    return asked

"""
Finds the nodes that suit a pod by labels, taints, capacity and volumes, once for equal pods.

The results hold until a node changes in a way that affects which pods may run there.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from dljob.core.model import Node, NodeName
from dljob.core.placement.needs import Needs
from dljob.kube.constraints.reading import read_traits
from dljob.kube.constraints.requirements import NodeTraits, Wants
from dljob.kube.documents import NodeDocument
from dljob.kube.unread import Unread
from dljob.operator.nodes.requests import Fit, Reach, find_fit, find_needs

MOST_KINDS: Final = 5000
"""The most remembered results, each of which may name all nodes."""


class Fitting:
    """Knows the nodes of the pool, and those that suit each kind of pod."""

    def __init__(self, unread: Unread) -> None:
        self._unread = unread
        self._machines: dict[NodeName, tuple[NodeDocument, NodeTraits | None]] = {}
        self._fits: dict[Wants, Fit] = {}
        self._found: dict[tuple[Wants, tuple[Reach, ...]], Needs] = {}
        """Both hold for these machines. Volumes that every node can reach are left out, so that jobs which
        differ only in these share a result."""
        self._same: dict[tuple[object, ...], Needs] = {}
        """Equal needs are one object."""

    @property
    def names(self) -> Iterable[NodeName]:
        return self._machines.keys()

    def machine(self, node: NodeName) -> NodeTraits | None:
        """Return the traits of a node; ``None`` if they cannot be read."""
        return self._machines[node][1]

    def update(self, nodes: Iterable[tuple[NodeDocument, Node]]) -> bool:
        """Read labels, taints and capacity; return true if a change affects which pods may run where."""
        seen: dict[NodeName, tuple[NodeDocument, NodeTraits | None]] = {}
        is_new = False
        for document, node in nodes:
            known = self._machines.get(node.name)
            if known is None or known[0] is not document:
                before = known[1] if known is not None else None
                read = partial(read_traits, document)
                known = (document, self._unread.attempt(f"Node {node.name}", read, otherwise=None))
                is_new = is_new or known[1] is None or before is None or _differ(before, known[1])
            seen[node.name] = known
        is_new = is_new or seen.keys() != self._machines.keys()
        self._machines = seen
        if is_new:
            self._fits.clear()
            self._found.clear()
        return is_new

    def find(self, wants: Wants, reaches: Iterable[Reach]) -> Needs:
        """Return the needs of a pod with these requests and volumes."""
        kind = (wants, tuple(reach for reach in reaches if not reach.is_anywhere))
        found = self._found.get(kind)
        if found is None:
            if len(self._found) >= MOST_KINDS:
                self._found.clear()
            needs = find_needs(wants, self._fit(wants), reaches=kind[1])
            found = self._found[kind] = self.share(needs)
        return found

    def _fit(self, wants: Wants) -> Fit:
        fit = self._fits.get(wants)
        if fit is None:
            machines = [machine for _, machine in self._machines.values() if machine is not None]
            if len(self._fits) >= MOST_KINDS:
                self._fits.clear()
            fit = self._fits[wants] = find_fit(wants, machines)
        return fit

    def share(self, needs: Needs) -> Needs:
        """Return the one object for equal needs."""
        if len(self._same) > MOST_KINDS:
            self._same.clear()
        return self._same.setdefault((needs.amounts, needs.nodes, needs.refusals), needs)


def _differ(one: NodeTraits, other: NodeTraits | None) -> bool:
    return other is None or (one.labels, one.taints) != (other.labels, other.taints)

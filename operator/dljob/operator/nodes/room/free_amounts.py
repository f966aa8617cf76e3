"""The free resources of each node: the allocatable ones less the requests of all pods there."""

from collections.abc import Iterable
from dataclasses import replace

from dljob.core.model import Node
from dljob.core.placement.amounts import WHOLE, Amounts, less
from dljob.kube.constraints.requirements import NodeTraits
from dljob.kube.constraints.usage import PORT, Occupancy
from dljob.kube.documents import Json
from dljob.operator.nodes.requests import Asks
from dljob.operator.nodes.room.fitting import Fitting


class FreeAmounts:
    """Counts a node again only after a change of the node or its pods."""

    def __init__(self, others: Occupancy) -> None:
        self.ours = Occupancy()
        self.decided = Occupancy()
        """Pods that are decided but not bound yet."""
        self._all = (self.ours, self.decided, others)
        self._ports: set[str] = set()
        """Host ports that a job requests; every node has each once."""
        self._counted: dict[str, tuple[Node, Json, Node]] = {}

    def learn_ports(self, asks: Asks) -> None:
        """Count the host ports of a job on every node from now on."""
        ports = {name for name, _ in asks.wants.amounts if name.startswith(PORT)}
        if not ports <= self._ports:
            self._ports |= ports
            self._counted.clear()

    def count(self, nodes: Iterable[tuple[Json, Node]], *, fitting: Fitting) -> tuple[Node, ...]:
        """Return the nodes with their free resources; an unchanged node stays the same object."""
        dirty = {name for each in self._all for name in each.dirty}
        for each in self._all:
            each.dirty.clear()
        return tuple(
            self._count(document, node, dirty=dirty, fitting=fitting) for document, node in nodes
        )

    def _count(self, document: Json, node: Node, *, dirty: set[str], fitting: Fitting) -> Node:
        before = self._counted.get(node.name)
        if before and before[0] is node and before[1] is document and node.name not in dirty:
            return before[2]
        counted = self._subtract(node, fitting.machine(node.name))
        if before and before[2] == counted:
            counted = before[2]
        self._counted[node.name] = (node, document, counted)
        return counted

    def _subtract(self, node: Node, machine: NodeTraits | None) -> Node:
        if machine is None or not machine.allocatable:
            return node
        capacity = {**machine.allocatable, **dict.fromkeys(self._ports, WHOLE)}
        free: Amounts = capacity
        for each in self._all:
            free = less(free, each.on(node.name))
        return replace(node, free={name: free[name] for name in capacity}, capacity=capacity)

"""
Reads the nodes of the pool in each cycle; one that has not changed is not read again.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dljob.control.situation.ports import BootState, Entry
from dljob.core.model import Node
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.nodes.nodes import Pool, is_in_pool, read_boot_state, read_node
from dljob.operator.nodes.notices import Notices
from dljob.operator.nodes.reserving import Reservations


class _ReadNode(NamedTuple):
    """A node, and the input that it was read from."""

    document: Json
    not_ours: str
    """The reason why none of its GPUs may be given to a job."""
    node: Node | None
    machine: BootState


class NodeReader:
    """One for the life of a leader."""

    def __init__(self, mirrors: Mirrors, reservations: Reservations, *, pool: Pool) -> None:
        self._mirrors = mirrors
        self._reservations = reservations
        self._pool = pool
        self._notices = Notices(pool.leave_taints, pool.cordon_seconds)
        self._nodes: dict[Name, _ReadNode] = {}

    @property
    def machines(self) -> dict[str, BootState]:
        return {name.name: read.machine for name, read in self._nodes.items()}

    @property
    def refusals(self) -> dict[str, str]:
        """The reason why the GPUs of each node are not ours; empty if they are."""
        return {name.name: read.not_ours for name, read in self._nodes.items()}

    def read(self, entries: Iterable[Entry]) -> tuple[list[Node], list[str]]:
        """Return the nodes on which jobs may run, and the names of those that are gone since the last call."""
        gone = self._nodes.keys() - self._mirrors.nodes.objects.keys()
        for name in gone:
            del self._nodes[name]
        return list(self._iter_nodes(entries)), [name.name for name in gone]

    def _iter_nodes(self, entries: Iterable[Entry]) -> Iterator[Node]:
        for name, document in self._mirrors.nodes.objects.items():
            if not is_in_pool(document, self._pool):
                self._nodes.pop(name, None)
                continue
            why = self._reservations.why_not(document) or self._notices.why_leave(document)
            known = self._nodes.get(name)
            if known is None or known.document is not document or known.not_ours != why:
                node = read_node(document, self._pool, not_ours=why)
                known = _ReadNode(document, why, node, read_boot_state(document))
                self._nodes[name] = known
            # Jobs leave a node that is left out here, because it counts as lost.
            if known.node is None:
                continue
            if not why or not self._is_taken(document) or not _is_booked(name.name, entries):
                yield known.node

    def _is_taken(self, document: Json) -> bool:
        """True if other pods have GPUs of a node, or its pods will be evicted."""
        return bool(self._notices.why_leave(document)) or self._reservations.is_taken(document)


def _is_booked(node: str, entries: Iterable[Entry]) -> bool:
    return any(pod.node == node for entry in entries for pod in entry.status.pods)

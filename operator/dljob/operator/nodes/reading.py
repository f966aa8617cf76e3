"""
Reads the nodes of the pool in each cycle; one that has not changed is not read again.

Jobs leave some nodes before their pods are evicted. A taint with a known key, or a step of the GPU Operator's driver
upgrade, announces that everything on a node will end soon: jobs save a checkpoint and leave at once. A cordon means less,
because people also cordon a node to inspect it: jobs leave after a while.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from dljob.control.situation.ports import BootState, Entry
from dljob.core.model import Node
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.nodes.nodes import Pool, is_in_pool, read_boot_state, read_node
from dljob.operator.nodes.reserving import Reservations

TAINTS: Final = (
    "dljob.io/ending",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/rebalance-recommendation",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "cloud.google.com/impending-node-termination",
    "kubernetes.azure.com/scalesetpriority-evicted",
    "node.kubernetes.io/maintenance",
    "medik8s.io/drain",
)
"""Keys of taints that announce maintenance or the end of a spot node."""
UPGRADE: Final = "nvidia.com/gpu-driver-upgrade-state"
"""A label of the GPU Operator."""
UPGRADING: Final = frozenset(
    {
        "cordon-required",
        "wait-for-jobs-required",
        "pod-deletion-required",
        "drain-required",
        "node-maintenance-required",
        "pod-restart-required",
        "validation-required",
    }
)
"""Its values while the driver of a node is about to be replaced."""


class Notices:
    """The announced ends of nodes; one for the life of a leader."""

    def __init__(
        self,
        taints: tuple[str, ...],
        cordon_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._taints = frozenset((*TAINTS, *taints))
        self._cordon_seconds = cordon_seconds
        self._clock = clock
        self._cordoned_at: dict[str, float] = {}

    def why_leave(self, node: Json) -> str:
        """Return the reason why jobs have to leave a node now; empty if they need not."""
        spec, metadata = node.get("spec") or {}, node["metadata"]
        for taint in spec.get("taints") or ():
            if taint.get("key") in self._taints:
                shown = f"{taint['key']}={taint.get('value') or ''}".removesuffix("=")
                return f"its taint {shown} says that its pods will be evicted"
        state = (metadata.get("labels") or {}).get(UPGRADE, "")
        if state in UPGRADING:
            return f"its driver is to be replaced ({UPGRADE}: {state})"
        return self._why_cordoned(metadata["name"], is_cordoned=bool(spec.get("unschedulable")))

    def _why_cordoned(self, node: str, *, is_cordoned: bool) -> str:
        if not is_cordoned:
            self._cordoned_at.pop(node, None)
            return ""
        since = self._cordoned_at.setdefault(node, self._clock())
        if self._cordon_seconds <= 0 or self._clock() < since + self._cordon_seconds:
            return ""
        return f"it has been cordoned for {self._cordon_seconds:g} s"


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
            # So they do where other pods have GPUs, or its pods will be evicted.
            is_ending = why and (
                self._notices.why_leave(document) or self._reservations.is_taken(document)
            )
            if not is_ending or not any(
                pod.node == name.name for entry in entries for pod in entry.status.pods
            ):
                yield known.node

"""
Which nodes take a new pod, while pods are tried out on a cluster; GPUs are counted elsewhere.

For all jobs that need the same, the nodes that take a pod of theirs are one set, kept up to date as
pods come and go, because thousands of jobs ask for each of hundreds of nodes in one decision.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from dljob.core.model import Cluster, JobState, NodeName
from dljob.core.placement.amounts import Amounts, less, total
from dljob.core.placement.needs import Needs


class PodRoom:
    """The free resources for new pods, in addition to the existing ones."""

    __slots__ = ("_cluster", "_left", "_taking")

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._left: dict[NodeName, Amounts] = {}
        """The rest on the nodes where pods were tried."""
        self._taking: dict[Needs, set[NodeName]] = {}

    def takes(self, state: JobState, node: NodeName) -> bool:
        """Return whether a pod of the job could run on this node, or exists there."""
        needs = state.needs
        return needs is None or node in self._nodes_for(needs) or state.has_pod_on(node)

    def takers(self, state: JobState) -> AbstractSet[NodeName] | None:
        """The nodes that take a pod of the job, in addition to the nodes that it trains on; ``None``: any."""
        if state.needs is None:
            return None
        nodes = self._nodes_for(state.needs)
        return nodes.union(state.pods_at) if state.pods_at else nodes

    def take(self, nodes: Iterable[NodeName], state: JobState) -> None:
        """Count pods of a job on these nodes as new, but for those where it has one."""
        if state.needs is not None:
            asked = dict(state.needs.amounts)
            for node, free in self._iter_new(nodes, state):
                self._set(node, less(free, asked))

    def give(self, nodes: Iterable[NodeName], state: JobState) -> None:
        """Take that back."""
        if state.needs is not None:
            asked = dict(state.needs.amounts)
            for node, free in self._iter_new(nodes, state):
                self._set(node, total((free, asked)))

    def _iter_new(
        self, nodes: Iterable[NodeName], state: JobState
    ) -> Iterable[tuple[NodeName, Amounts]]:
        # An existing pod has its requests until its end is proven.
        for node in nodes:
            free = self._free(node)
            if free is not None and not state.has_pod_on(node):
                yield node, free

    def _free(self, node: NodeName) -> Amounts | None:
        left = self._left.get(node)
        return left if left is not None else self._cluster.free.get(node)

    def _set(self, node: NodeName, free: Amounts) -> None:
        self._left[node] = free
        for needs, nodes in self._taking.items():
            if needs.may_be_on(node, free):
                nodes.add(node)
            else:
                nodes.discard(node)

    def _nodes_for(self, needs: Needs) -> set[NodeName]:
        known = self._taking.get(needs)
        if known is None:
            known = set(find_taking(needs, self._cluster))
            for node, free in self._left.items():
                if not needs.may_be_on(node, free):
                    known.discard(node)
            self._taking[needs] = known
        return known


def find_taking(needs: Needs, cluster: Cluster) -> frozenset[NodeName]:
    """The nodes of a cluster that take such a pod as it is; found out once for all that ask."""
    known = cluster.memo.get((needs, "taking"))
    if known is None:
        free = cluster.free
        known = frozenset(n for n in cluster.by_name if needs.may_be_on(n, free.get(n)))
        cluster.memo[needs, "taking"] = known
    return known  # type: ignore[return-value]

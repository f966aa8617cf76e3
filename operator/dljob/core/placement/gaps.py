"""
The free GPUs of a cluster, counted by node.

Nodes are kept in buckets by how many GPUs they have free, so that the best fit is found without
looking at every node. Jobs are not known here: :class:`dljob.core.placement.free_gpus.Room` asks for
them, and says which nodes take a pod of theirs.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from dljob.core.model import Cluster, NodeName, Placement
from dljob.core.placement.counting import count_good_of

Takers = AbstractSet[NodeName] | None
"""The nodes that take a pod of a job; ``None``: any."""


class Gaps:
    """How many GPUs are free on each node."""

    __slots__ = ("_buckets", "cluster", "free", "nodes")

    def __init__(self, cluster: Cluster, taken: Iterable[Placement] = ()) -> None:
        self.cluster = cluster
        self.nodes: dict[NodeName, int] = {
            name: len(usable) for name, usable in cluster.usable.items()
        }
        for placement in taken:
            # Without a helper, because this runs over every running job.
            for node, gpus in placement.slices:
                good = (
                    len(gpus) if node in cluster.whole else count_good_of(cluster, node, gpus=gpus)
                )
                self.nodes[node] -= good
        self.free: dict[str, int] = dict.fromkeys(cluster.types, 0)
        """How many GPUs of each type are free."""
        self._buckets: dict[str, list[dict[NodeName, None]]] = {
            kind: [{} for _ in range(cluster.largest_node[kind] + 1)] for kind in cluster.types
        }
        for name, count in self.nodes.items():
            kind = cluster.by_name[name].gpu_type
            # Never below zero, even if two jobs have one GPU, which the check of the plan reports.
            left = self.nodes[name] = max(0, count)
            self.free[kind] += left
            self._buckets[kind][left][name] = None

    def shift(self, node: NodeName, by: int) -> None:
        """Count ``by`` more GPUs of a node as free, or fewer where it is negative."""
        kind = self.cluster.by_name[node].gpu_type
        old = self.nodes[node]
        buckets = self._buckets[kind]
        if not 0 <= old + by < len(buckets):
            raise ValueError(f"{node} cannot have {old + by} GPUs free")
        # A bucket keeps the order in which nodes come into it, and the first that fits is taken.
        del buckets[old][node]
        buckets[old + by][node] = None
        self.nodes[node] = old + by
        self.free[kind] += by

    def find(
        self, gpu_type: str, gpus: int, *, takers: Takers, emptiest: bool = False
    ) -> NodeName | None:
        """The node of a type with the smallest gap of at least ``gpus``, or with the largest."""
        buckets = self._buckets.get(gpu_type, [])[gpus:]
        for bucket in reversed(buckets) if emptiest else buckets:
            there = bucket if takers is None else (node for node in bucket if node in takers)
            found = next(iter(there), None)
            if found is not None:
                return found
        return None

    def iterate(
        self,
        kinds: tuple[str, ...],
        counts: Iterable[int],
        *,
        takers: Takers,
        but: Mapping[NodeName, int],
    ) -> Iterator[tuple[NodeName, int]]:
        """The nodes of these types, by their number of free GPUs, in the order of these counts."""
        for count, kind in itertools.product(counts, kinds):
            buckets = self._buckets.get(kind, ())
            for node in buckets[count] if count < len(buckets) else ():
                if node not in but and (takers is None or node in takers):
                    yield node, count

    def rank_emptiest(
        self, gpu_type: str, most: int, *, but: AbstractSet[NodeName]
    ) -> list[tuple[int, NodeName]]:
        """The nodes of a type with most GPUs free, with that number; of equals the last by name first."""
        found: list[tuple[int, NodeName]] = []
        buckets = self._buckets.get(gpu_type, [])
        for count in range(len(buckets) - 1, -1, -1):
            there = (node for node in buckets[count] if node not in but)
            found += [(count, node) for node in heapq.nlargest(most - len(found), there)]
            if len(found) >= most:
                break
        return found

"""
The free GPUs of a cluster, by count, and where a job would fit.

Policies ask :class:`Room` what would fit before they promise it, and :mod:`dlcore.placing` where
to put what they promised. Three rules: the fewest nodes; the smallest gaps that suffice, so that
the largest are left for others; types are never mixed unless the job allows it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dlcore.model import (
    Cluster,
    GpuDemand,
    JobState,
    NodeName,
    Placement,
)


@dataclass(frozen=True, slots=True)
class Fit:
    """A place that a job could have: how many GPUs on which nodes."""

    gpu_type: str
    nodes: Mapping[NodeName, int]


class Room:
    """
    The free GPUs of a cluster, by count.

    Nodes are kept in buckets by how many GPUs they have free, so that the best fit is found
    without looking at every node.
    """

    __slots__ = ("_buckets", "cluster", "free", "nodes")

    def __init__(self, cluster: Cluster, taken: Iterable[Placement] = ()) -> None:
        self.cluster = cluster
        self.nodes: dict[NodeName, int] = {
            name: len(usable) for name, usable in cluster.usable.items()
        }
        for placement in taken:
            # Spelt out, for this runs over every running job.
            for node, gpus in placement.slices:
                good = len(gpus) if node in cluster.whole else _count_good(cluster, node, gpus)
                self.nodes[node] -= good
        self.free: dict[str, int] = dict.fromkeys(cluster.types, 0)
        """How many GPUs of each type are free."""
        self._buckets: dict[str, list[dict[NodeName, None]]] = {
            kind: [{} for _ in range(cluster.largest_node[kind] + 1)] for kind in cluster.types
        }
        for name, count in self.nodes.items():
            kind = cluster.by_name[name].gpu_type
            # Never below nothing, should two jobs be seen with one GPU: checking will tell.
            left = self.nodes[name] = max(0, count)
            self.free[kind] += left
            self._buckets[kind][left][name] = None

    @property
    def total(self) -> int:
        """How many GPUs are free in all."""
        return sum(self.free.values())

    def take(self, nodes: Mapping[NodeName, int]) -> None:
        """Count these as given away."""
        for node, count in nodes.items():
            self._shift(node, -count)

    def give(self, nodes: Mapping[NodeName, int]) -> None:
        """Count these as free again."""
        for node, count in nodes.items():
            self._shift(node, count)

    def has(self, nodes: Mapping[NodeName, int]) -> bool:
        """Tell whether so many are free on each of these nodes."""
        return all(self.nodes.get(node, -1) >= count for node, count in nodes.items())

    def _shift(self, node: NodeName, by: int) -> None:
        kind = self.cluster.by_name[node].gpu_type
        old = self.nodes[node]
        buckets = self._buckets[kind]
        if not 0 <= old + by < len(buckets):
            raise ValueError(f"{node} cannot have {old + by} GPUs free")
        del buckets[old][node]
        buckets[old + by][node] = None
        self.nodes[node] = old + by
        self.free[kind] += by

    def find_node(self, gpu_type: str, gpus: int) -> NodeName | None:
        """The node of that type with the smallest gap of at least ``gpus``."""
        buckets = self._buckets.get(gpu_type, ())
        for count in range(gpus, len(buckets)):
            if buckets[count]:
                return next(iter(buckets[count]))
        return None

    def find_emptiest(self, gpu_type: str, gpus: int) -> NodeName | None:
        """The node of that type with the largest gap, if that is at least ``gpus``."""
        buckets = self._buckets.get(gpu_type, ())
        for count in range(len(buckets) - 1, gpus - 1, -1):
            if buckets[count]:
                return next(iter(buckets[count]))
        return None

    def find(self, state: JobState, gpus: int, gpu_type: str | None = None) -> Fit | None:
        """
        Find a place for ``gpus`` GPUs of one type for this job, or ``None``.

        Without a ``gpu_type``, one node of any acceptable type comes before several of one type.
        """
        kinds = (gpu_type,) if gpu_type is not None else acceptable_types(state, self.cluster)
        if state.bound_to:
            return self._find_bound(state, gpus, kinds)
        for kind in kinds:
            node = self.find_node(kind, gpus)
            if node is not None:
                return Fit(kind, {node: gpus})
        for kind in kinds:
            nodes = self.spread(state.job.gpus, gpus, (kind,))
            if nodes is not None:
                return Fit(kind, nodes)
        if state.job.gpus.mixed and gpu_type is None:
            nodes = self.spread(state.job.gpus, gpus, kinds)
            if nodes is not None:
                return Fit(name_type(self.cluster, nodes), nodes)
        return None

    def spread(
        self,
        demand: GpuDemand,
        gpus: int,
        kinds: tuple[str, ...],
        beside: Mapping[NodeName, int] = MappingProxyType({}),
    ) -> dict[NodeName, int] | None:
        """
        Find ``gpus`` GPUs on the fewest nodes, beside those that the job has already.

        The fullest gaps are taken first, which needs the fewest nodes; the last is a best fit.
        """
        if sum(self.free.get(kind, 0) for kind in kinds) < gpus:
            return None
        largest = max(self.cluster.largest_node.get(kind, 0) for kind in kinds)
        chosen: dict[NodeName, int] = {}
        left = gpus
        for node, count in self._iter_gaps(kinds, range(largest, 0, -1), beside):
            if left <= count:
                break
            chosen[node] = count
            left -= count
        last = next(self._iter_gaps(kinds, range(left, largest + 1), {**beside, **chosen}), None)
        if last is None:
            return None
        chosen[last[0]] = left
        if demand.max_nodes is not None and len(beside) + len(chosen) > demand.max_nodes:
            return None
        return chosen

    def _iter_gaps(
        self, kinds: tuple[str, ...], counts: Iterable[int], but: Mapping[NodeName, int]
    ) -> Iterator[tuple[NodeName, int]]:
        """The nodes with so many free GPUs, in the order of these counts."""
        for count in counts:
            for kind in kinds:
                buckets = self._buckets.get(kind, ())
                if count < len(buckets):
                    yield from ((node, count) for node in buckets[count] if node not in but)

    def _find_bound(self, state: JobState, gpus: int, kinds: tuple[str, ...]) -> Fit | None:
        """A checkpoint that only some nodes can read binds the job to these."""
        groups: list[tuple[str, ...]] = [(kind,) for kind in kinds]
        if state.job.gpus.mixed and len(kinds) > 1:
            groups.append(kinds)
        for group in groups:
            free = {
                name: self.nodes[name]
                for name in state.bound_to
                if name in self.nodes and self.cluster.by_name[name].gpu_type in group
            }
            nodes = _take_fewest(free, gpus, state.job.gpus.max_nodes)
            if nodes is not None:
                return Fit(name_type(self.cluster, nodes), nodes)
        return None


def _take_fewest(
    free: Mapping[NodeName, int], gpus: int, max_nodes: int | None
) -> dict[NodeName, int] | None:
    """Take GPUs from the fewest of a few nodes."""
    whole = [node for node, count in free.items() if count >= gpus]
    if whole:
        return {min(whole, key=free.__getitem__): gpus}
    chosen: dict[NodeName, int] = {}
    for node in sorted(free, key=lambda node: -free[node])[:max_nodes]:
        chosen[node] = min(free[node], gpus)
        gpus -= chosen[node]
        if gpus == 0:
            return chosen
    return None


def count_usable(placement: Placement, cluster: Cluster) -> dict[NodeName, int]:
    """
    How many GPUs on each node would be free if the placement were given up.

    Fewer than it has where a job goes on with GPUs that nobody new would be given.
    """
    return {
        node: len(gpus) if node in cluster.whole else _count_good(cluster, node, gpus)
        for node, gpus in placement.slices
    }


def _count_good(cluster: Cluster, node: NodeName, gpus: tuple[int, ...]) -> int:
    return len(set(cluster.usable[node]).intersection(gpus))


def order_good_first(cluster: Cluster, node: NodeName, gpus: tuple[int, ...]) -> tuple[int, ...]:
    """A job's GPUs on a node in the order in which it keeps them: it gives up bad ones first."""
    if node in cluster.whole:
        return gpus
    usable = set(cluster.usable.get(node, ()))
    return tuple(sorted(gpus, key=lambda index: (index not in usable, index)))


def name_type(cluster: Cluster, nodes: Iterable[NodeName]) -> str:
    """The type of a placement on these nodes; several are joined by ``+``."""
    return "+".join(sorted({cluster.by_name[node].gpu_type for node in nodes}))


def acceptable_types(state: JobState, cluster: Cluster) -> tuple[str, ...]:
    """The types of this cluster that the job can be given, those it likes best first."""
    kinds = cluster.types
    if state.job.gpus.types:
        kinds = tuple(kind for kind in state.job.gpus.types if kind in cluster.totals)
    if state.bound_to:
        sizes = _bound_sizes(state, cluster)
        kinds = tuple(kind for kind in kinds if kind in sizes)
    return kinds


def largest_possible(state: JobState, cluster: Cluster, gpu_type: str | None = None) -> int:
    """The most GPUs, of a type or of any, that this job could have on this cluster, were it empty."""
    demand = state.job.gpus
    kinds = acceptable_types(state, cluster) if gpu_type is None else (gpu_type,)
    sizes = _bound_sizes(state, cluster) if state.bound_to else cluster.sizes
    groups: list[Sequence[int]] = [sizes.get(kind, ()) for kind in kinds]
    if demand.mixed:
        groups = [sorted((size for group in groups for size in group), reverse=True)]
    return max((sum(group[: demand.max_nodes]) for group in groups), default=0)


def _bound_sizes(state: JobState, cluster: Cluster) -> Mapping[str, Sequence[int]]:
    """The sizes of the nodes that the job is bound to, by type, the largest first."""
    sizes: dict[str, list[int]] = {}
    for name in state.bound_to:
        if name in cluster.by_name:
            kind = cluster.by_name[name].gpu_type
            sizes.setdefault(kind, []).append(len(cluster.usable[name]))
    return {kind: sorted(each, reverse=True) for kind, each in sizes.items()}


def count_nodes(placement: Placement) -> dict[NodeName, int]:
    """How many GPUs the placement has on each node."""
    return {node: len(gpus) for node, gpus in placement.slices}


def grow(
    room: Room, state: JobState, have: Mapping[NodeName, int], gpu_type: str, gpus: int
) -> Mapping[NodeName, int] | None:
    """
    Where a job that has GPUs would be if it grew to ``gpus`` of its type, or ``None``.

    On the nodes that it has, if they have room; else on one other node that takes it whole, if
    its checkpoint can be read there; else spread over its own and the fewest other nodes.
    """
    nodes = dict(have)
    missing = gpus - sum(have.values())
    for node in sorted(nodes, key=lambda node: (-room.nodes.get(node, 0), node)):
        more = min(missing, max(0, room.nodes.get(node, 0)))
        nodes[node] += more
        missing -= more
    if missing <= 0:
        return nodes
    if state.bound_to or "+" in gpu_type:
        return None
    whole = room.find_node(gpu_type, gpus)
    if whole is not None:
        return {whole: gpus}
    further = room.spread(state.job.gpus, missing, (gpu_type,), beside=nodes)
    return {**nodes, **further} if further is not None else None

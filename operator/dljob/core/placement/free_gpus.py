"""
Where a job would fit among the free GPUs of a cluster.

Policies ask :class:`Room` what would fit before they promise it, and :mod:`dljob.core.placement.placing` where
to put what they promised. Three rules: the fewest nodes; the smallest gaps that suffice, so that
the largest are left for others; types are never mixed unless the job allows it.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType

from dljob.core.model import Cluster, GpuDemand, JobState, NodeName, Placement
from dljob.core.placement.counting import count_good_of, has_whole_nodes, name_type
from dljob.core.placement.largest import acceptable_types
from dljob.core.placement.needs import Needs
from dljob.core.placement.pod_room import PodRoom

Takers = AbstractSet[NodeName] | None
"""The nodes that take a pod of a job; ``None``: any."""


class Gaps:
    """
    How many GPUs are free on each node.

    Nodes are kept in buckets by how many GPUs they have free, so that the best fit is found without
    looking at every node. Jobs are not known here.
    """

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


@dataclass(frozen=True, slots=True)
class Fit:
    """A place that a job could have: how many GPUs on which nodes."""

    gpu_type: str
    nodes: Mapping[NodeName, int]


class Room:
    """The free GPUs of a cluster, by count, and the room for new pods."""

    __slots__ = ("_vain", "cluster", "free", "gaps", "nodes", "pod_room")

    def __init__(self, cluster: Cluster, taken: Iterable[Placement] = ()) -> None:
        self.cluster = cluster
        self.gaps = Gaps(cluster, taken)
        self.pod_room = PodRoom(cluster)
        # At hand without a call, because policies look at them for every job.
        self.nodes: Mapping[NodeName, int] = self.gaps.nodes
        self.free: Mapping[str, int] = self.gaps.free
        self._vain: set[tuple[Needs, int, tuple[str, ...]]] = set()
        """The searches that have failed since GPUs were last given back."""

    @property
    def total(self) -> int:
        """How many GPUs are free in all."""
        return sum(self.free.values())

    def take(self, nodes: Mapping[NodeName, int], state: JobState | None = None) -> None:
        """Count these as given away, with room for new pods of the job that has them."""
        for node, count in nodes.items():
            self.gaps.shift(node, -count)
        if state is not None:
            self.pod_room.take(nodes, state)

    def give(self, nodes: Mapping[NodeName, int], state: JobState | None = None) -> None:
        """Count these as free again, and the room that was taken for new pods of the job."""
        for node, count in nodes.items():
            self.gaps.shift(node, count)
        self._vain.clear()
        if state is not None:
            self.pod_room.give(nodes, state)

    def takes_pod(self, state: JobState, node: NodeName) -> bool:
        """Return whether a pod of the job could run on this node, regardless of its GPUs."""
        return self.pod_room.takes(state, node)

    def has(self, nodes: Mapping[NodeName, int]) -> bool:
        """Return whether each of these nodes has its number of free GPUs."""
        return all(self.nodes.get(node, -1) >= count for node, count in nodes.items())

    def lacks_room_for_pod(self, state: JobState, gpus: int) -> bool:
        """Return whether a node has ``gpus`` free GPUs but does not take a pod of the job."""
        return state.needs is not None and any(
            count >= gpus and not self.takes_pod(state, node) for node, count in self.nodes.items()
        )

    def find_node(self, state: JobState, gpu_type: str, gpus: int) -> NodeName | None:
        """The node of that type that takes the job with the smallest gap of at least ``gpus``."""
        return self.gaps.find(gpu_type, gpus, takers=self.pod_room.takers(state))

    def find_emptiest(self, state: JobState, gpu_type: str, gpus: int) -> NodeName | None:
        """The node of that type that takes the job with the largest gap of at least ``gpus``."""
        takers = self.pod_room.takers(state)
        return self.gaps.find(gpu_type, gpus, takers=takers, emptiest=True)

    def find(self, state: JobState, gpus: int, gpu_type: str | None = None) -> Fit | None:
        """
        Find a place for ``gpus`` GPUs of one type for this job, or ``None``.

        Without a ``gpu_type``, one node of any acceptable type comes before several of one type.
        """
        kinds = (gpu_type,) if gpu_type is not None else acceptable_types(state, self.cluster)
        if state.bound_to:
            return self._find_bound(state, gpus, kinds=kinds)
        if state.needs is None or state.pods_at or state.placement is not None:
            return self._find(state, gpus, kinds=kinds, may_mix=gpu_type is None)
        # Thousands of equal jobs may wait for a node with room for their pods.
        asked = (state.needs, gpus, kinds)
        if asked in self._vain and not state.job.gpus.mixed:
            return None
        fit = self._find(state, gpus, kinds=kinds, may_mix=gpu_type is None)
        if fit is None and state.job.gpus.max_nodes is None and not state.job.gpus.whole_nodes:
            self._vain.add(asked)
        return fit

    def _find(
        self, state: JobState, gpus: int, *, kinds: tuple[str, ...], may_mix: bool
    ) -> Fit | None:
        for kind in kinds:
            node = self.find_node(state, kind, gpus)
            if node is not None:
                return Fit(kind, {node: gpus})
        for kind in kinds:
            nodes = self.spread(state, gpus, (kind,))
            if nodes is not None:
                return Fit(kind, nodes)
        if state.job.gpus.mixed and may_mix:
            nodes = self.spread(state, gpus, kinds)
            if nodes is not None:
                return Fit(name_type(self.cluster, nodes), nodes)
        return None

    def spread(
        self,
        state: JobState,
        gpus: int,
        kinds: tuple[str, ...],
        beside: Mapping[NodeName, int] = MappingProxyType({}),
    ) -> dict[NodeName, int] | None:
        """Find ``gpus`` GPUs on the fewest nodes, in addition to those that the job has already."""
        if sum(self.free.get(kind, 0) for kind in kinds) < gpus:
            return None
        takers, demand = self.pod_room.takers(state), state.job.gpus
        return spread(self.gaps, demand, gpus=gpus, kinds=kinds, takers=takers, beside=beside)

    def _find_bound(self, state: JobState, gpus: int, *, kinds: tuple[str, ...]) -> Fit | None:
        """A checkpoint that only some nodes can read binds the job to these."""
        groups: list[tuple[str, ...]] = [(kind,) for kind in kinds]
        if state.job.gpus.mixed and len(kinds) > 1:
            groups.append(kinds)
        for group in groups:
            free = {
                name: self.nodes[name]
                for name in state.bound_to
                if name in self.nodes
                and self.cluster.by_name[name].gpu_type in group
                and self.takes_pod(state, name)
            }
            nodes = _take_fewest(free, gpus, max_nodes=state.job.gpus.max_nodes)
            if nodes is not None and may_share_as(state, nodes, cluster=self.cluster):
                return Fit(name_type(self.cluster, nodes), nodes)
        return None


def _take_fewest(
    free: Mapping[NodeName, int], gpus: int, *, max_nodes: int | None
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


def may_share_as(state: JobState, nodes: Mapping[NodeName, int], *, cluster: Cluster) -> bool:
    """Return whether the job may have exactly these GPUs on these nodes, as far as sharing nodes goes."""
    return not state.job.gpus.whole_nodes or len(nodes) == 1 or has_whole_nodes(nodes, cluster)


def grow(
    room: Room, state: JobState, have: Mapping[NodeName, int], gpu_type: str, gpus: int
) -> Mapping[NodeName, int] | None:
    """
    Where a job that has GPUs would be if it grew to ``gpus`` of its type, or ``None``.

    On the nodes that it has, if they have room; else on one other node that takes it whole, if
    its checkpoint can be read there; else spread over its own and the fewest other nodes. A job whose
    processes stay goes to another node only where nothing else is possible, and never if it would lose its work.
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
    whole = room.find_node(state, gpu_type, gpus)
    if whole is not None and not state.is_live:
        return {whole: gpus}
    further = room.spread(state, missing, (gpu_type,), beside=nodes)
    if further is not None:
        return {**nodes, **further}
    return {whole: gpus} if whole is not None and state.unsaved_from is None else None


def spread(
    gaps: Gaps,
    demand: GpuDemand,
    *,
    gpus: int,
    kinds: tuple[str, ...],
    takers: Takers,
    beside: Mapping[NodeName, int],
) -> dict[NodeName, int] | None:
    """
    Find ``gpus`` GPUs on the fewest nodes, in addition to those that the job has already.

    The fullest gaps are taken first, which needs the fewest nodes; the last is a best fit.
    """
    largest = max(gaps.cluster.largest_node.get(kind, 0) for kind in kinds)
    falling = gaps.iterate(kinds, range(largest, 0, -1), takers=takers, but=beside)
    if demand.whole_nodes:
        return _take_whole(falling, gaps.cluster, demand=demand, gpus=gpus, beside=beside)
    chosen: dict[NodeName, int] = {}
    left = gpus
    for node, count in falling:
        if left <= count:
            break
        chosen[node] = count
        left -= count
    beyond = {**beside, **chosen}
    rising = gaps.iterate(kinds, range(left, largest + 1), takers=takers, but=beyond)
    last = next(rising, None)
    if last is None:
        return None
    chosen[last[0]] = left
    limit = demand.max_nodes
    if limit is not None and len(beside) + len(chosen) > limit:
        return None
    return chosen


def _take_whole(
    falling: Iterable[tuple[NodeName, int]],
    cluster: Cluster,
    *,
    demand: GpuDemand,
    gpus: int,
    beside: Mapping[NodeName, int],
) -> dict[NodeName, int] | None:
    """Find the same for a job that must have every GPU of each of several nodes."""
    if not has_whole_nodes(beside, cluster):
        return None
    chosen: dict[NodeName, int] = {}
    for node, count in falling:
        is_wide = demand.max_nodes is not None and len(beside) + len(chosen) == demand.max_nodes
        if gpus == 0 or is_wide:
            break
        if count <= gpus and count == len(cluster.usable[node]):
            chosen[node] = count
            gpus -= count
    return chosen if gpus == 0 else None

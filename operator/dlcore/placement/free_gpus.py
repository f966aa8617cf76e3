"""
The free GPUs of a cluster, by count, and where a job would fit.

Policies ask :class:`Room` what would fit before they promise it, and :mod:`dlcore.placement.placing` where
to put what they promised. Three rules: the fewest nodes; the smallest gaps that suffice, so that
the largest are left for others; types are never mixed unless the job allows it.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dlcore.model import (
    Cluster,
    JobState,
    NodeName,
    Placement,
)
from dlcore.placement.needs import Needs
from dlcore.placement.pod_room import PodRoom, find_taking


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

    __slots__ = ("_buckets", "_vain", "cluster", "free", "nodes", "pod_room")

    def __init__(self, cluster: Cluster, taken: Iterable[Placement] = ()) -> None:
        self.cluster = cluster
        self.pod_room = PodRoom(cluster)
        self._vain: set[tuple[Needs, int, tuple[str, ...]]] = set()
        """What was looked for in vain since anything was given back."""
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

    def take(self, nodes: Mapping[NodeName, int], state: JobState | None = None) -> None:
        """Count these as given away, with room for new pods of the job that has them."""
        for node, count in nodes.items():
            self._shift(node, -count)
        if state is not None:
            self.pod_room.take(nodes, state)

    def give(self, nodes: Mapping[NodeName, int], state: JobState | None = None) -> None:
        """Count these as free again, and the room that was taken for new pods of the job."""
        for node, count in nodes.items():
            self._shift(node, count)
        self._vain.clear()
        if state is not None:
            self.pod_room.give(nodes, state)

    def takes_pod(self, state: JobState, node: NodeName) -> bool:
        """Whether a pod of the job could be on this node, whatever GPUs there are."""
        return self.pod_room.takes(state, node)

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

    def lacks_room_for_pod(self, state: JobState, gpus: int) -> bool:
        """Whether so many GPUs are together on nodes that do not take a pod of the job."""
        return state.needs is not None and any(
            count >= gpus and not self.takes_pod(state, node) for node, count in self.nodes.items()
        )

    def find_node(self, state: JobState, gpu_type: str, gpus: int) -> NodeName | None:
        """The node of that type that takes the job with the smallest gap of at least ``gpus``."""
        buckets = self._buckets.get(gpu_type, ())
        return self._find_in(buckets[gpus:], state)

    def find_emptiest(self, state: JobState, gpu_type: str, gpus: int) -> NodeName | None:
        """The node of that type that takes the job with the largest gap of at least ``gpus``."""
        buckets = self._buckets.get(gpu_type, ())
        return self._find_in(reversed(buckets[gpus:]), state)

    def _find_in(
        self, buckets: Iterable[Mapping[NodeName, None]], state: JobState
    ) -> NodeName | None:
        takers = self.pod_room.takers(state)
        for bucket in buckets:
            there = bucket if takers is None else (node for node in bucket if node in takers)
            found = next(iter(there), None)
            if found is not None:
                return found
        return None

    def find(self, state: JobState, gpus: int, gpu_type: str | None = None) -> Fit | None:
        """
        Find a place for ``gpus`` GPUs of one type for this job, or ``None``.

        Without a ``gpu_type``, one node of any acceptable type comes before several of one type.
        """
        kinds = (gpu_type,) if gpu_type is not None else acceptable_types(state, self.cluster)
        if state.bound_to:
            return self._find_bound(state, gpus, kinds)
        if state.needs is None or state.pods_at or state.placement is not None:
            return self._find(state, gpus, kinds, may_mix=gpu_type is None)
        # Thousands that are alike may wait for a node with room for their pods.
        asked = (state.needs, gpus, kinds)
        if asked in self._vain and not state.job.gpus.mixed:
            return None
        fit = self._find(state, gpus, kinds, may_mix=gpu_type is None)
        if fit is None and state.job.gpus.max_nodes is None and not state.job.gpus.whole_nodes:
            self._vain.add(asked)
        return fit

    def _find(
        self, state: JobState, gpus: int, kinds: tuple[str, ...], *, may_mix: bool
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
        """
        Find ``gpus`` GPUs on the fewest nodes, beside those that the job has already.

        The fullest gaps are taken first, which needs the fewest nodes; the last is a best fit.
        """
        if sum(self.free.get(kind, 0) for kind in kinds) < gpus:
            return None
        if state.job.gpus.whole_nodes:
            return self._spread_whole(state, gpus, kinds, beside)
        largest = max(self.cluster.largest_node.get(kind, 0) for kind in kinds)
        chosen: dict[NodeName, int] = {}
        left = gpus
        for node, count in self.iter_gaps(state, kinds, range(largest, 0, -1), beside):
            if left <= count:
                break
            chosen[node] = count
            left -= count
        beyond = {**beside, **chosen}
        last = next(self.iter_gaps(state, kinds, range(left, largest + 1), beyond), None)
        if last is None:
            return None
        chosen[last[0]] = left
        limit = state.job.gpus.max_nodes
        if limit is not None and len(beside) + len(chosen) > limit:
            return None
        return chosen

    def _spread_whole(
        self,
        state: JobState,
        gpus: int,
        kinds: tuple[str, ...],
        beside: Mapping[NodeName, int],
    ) -> dict[NodeName, int] | None:
        """Find the same for a job that must have every GPU of each of several nodes."""
        limit = state.job.gpus.max_nodes
        if not has_whole_nodes(beside, self.cluster):
            return None
        chosen: dict[NodeName, int] = {}
        largest = max(self.cluster.largest_node.get(kind, 0) for kind in kinds)
        for node, count in self.iter_gaps(state, kinds, range(largest, 0, -1), beside):
            if gpus == 0 or (limit is not None and len(beside) + len(chosen) == limit):
                break
            if count <= gpus and count == len(self.cluster.usable[node]):
                chosen[node] = count
                gpus -= count
        return chosen if gpus == 0 else None

    def iter_gaps(
        self,
        state: JobState,
        kinds: tuple[str, ...],
        counts: Iterable[int],
        but: Mapping[NodeName, int] = MappingProxyType({}),
    ) -> Iterator[tuple[NodeName, int]]:
        """The nodes that take the job with so many free GPUs, in the order of these counts."""
        takers = self.pod_room.takers(state)
        for count, kind in itertools.product(counts, kinds):
            buckets = self._buckets.get(kind, ())
            for node in buckets[count] if count < len(buckets) else ():
                if node not in but and (takers is None or node in takers):
                    yield node, count

    def _find_bound(self, state: JobState, gpus: int, kinds: tuple[str, ...]) -> Fit | None:
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
            nodes = _take_fewest(free, gpus, state.job.gpus.max_nodes)
            if nodes is not None and may_share_as(state, nodes, self.cluster):
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


def may_share_as(state: JobState, nodes: Mapping[NodeName, int], cluster: Cluster) -> bool:
    """Whether the job may have just so many GPUs on these nodes, as far as sharing nodes goes."""
    return not state.job.gpus.whole_nodes or len(nodes) == 1 or has_whole_nodes(nodes, cluster)


def has_whole_nodes(nodes: Mapping[NodeName, int], cluster: Cluster) -> bool:
    """Whether these are all the GPUs of each node that may be given away."""
    return all(count >= len(cluster.usable.get(node, ())) for node, count in nodes.items())


def count_usable(placement: Placement, cluster: Cluster) -> dict[NodeName, int]:
    """
    How many GPUs on each node would be free if the placement were given up.

    Fewer than it has where a job goes on with GPUs that nobody new would be given.
    """
    return {
        node: len(gpus) if node in cluster.whole else _count_good(cluster, node, gpus)
        for node, gpus in placement.slices
    }


def count_good(
    placement: Placement, nodes: Mapping[NodeName, int], cluster: Cluster
) -> dict[NodeName, int]:
    """
    Count, of the GPUs kept on each node, those that other jobs could be given.

    A job may go on with GPUs that no other job would get; it gives those up first.
    """
    counts = dict(nodes)
    if cluster.flawless:
        return counts
    good, whole = count_usable(placement, cluster), count_nodes(placement)
    for node, count in nodes.items():
        bad = whole.get(node, 0) - good.get(node, 0)
        if bad:
            counts[node] = max(min(count, good[node]), count - bad)
    return counts


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
    sizes = _sizes_in_reach(state, cluster)
    if sizes is not cluster.sizes:
        kinds = tuple(kind for kind in kinds if kind in sizes)
    return kinds


def largest_possible(state: JobState, cluster: Cluster, gpu_type: str | None = None) -> int:
    """The most GPUs, of a type or of any, that this job could have on this cluster, were it empty."""
    return _most_of(state, _sizes_in_reach(state, cluster), cluster, gpu_type)


def largest_at_present(state: JobState, cluster: Cluster) -> int:
    """
    The same were no GPU given away, on the nodes that have room for its pods now.

    Of pods it counts those that are there, since new ones are made ready beside them.
    """
    needs = state.needs
    if needs is None or state.placement is not None:
        return largest_possible(state, cluster)
    find = functools.partial(_sizes_with_room, state, needs, cluster)
    if state.bound_to or state.pods_at:
        return _most_of(state, find(), cluster, None)
    return _most_of(state, _recall(cluster, needs, "room", find), cluster, None)


Sizes = Mapping[str, Sequence[int]]
"""How many GPUs may be given away on each node of a type, the largest first."""


def _most_of(state: JobState, sizes: Sizes, cluster: Cluster, gpu_type: str | None) -> int:
    demand = state.job.gpus
    kinds = acceptable_types(state, cluster) if gpu_type is None else (gpu_type,)
    groups: list[Sequence[int]] = [sizes.get(kind, ()) for kind in kinds]
    if demand.mixed:
        groups = [sorted((size for group in groups for size in group), reverse=True)]
    return max((sum(group[: demand.max_nodes]) for group in groups), default=0)


def _sizes_with_room(state: JobState, needs: Needs, cluster: Cluster) -> Sizes:
    taking = find_taking(needs, cluster).union(state.pods_at)
    return _sizes_of(taking.intersection(state.bound_to) if state.bound_to else taking, cluster)


def may_be_anywhere(state: JobState, cluster: Cluster) -> bool:
    """Whether every node of the cluster would take the job if it were empty, as far as pods go."""
    return _sizes_in_reach(state, cluster) is cluster.sizes


def _sizes_in_reach(state: JobState, cluster: Cluster) -> Sizes:
    """The sizes of the nodes that the job may be on at all, were there no pods."""
    needs = state.needs
    if needs is None:
        return _sizes_of(state.bound_to, cluster) if state.bound_to else cluster.sizes
    find = functools.partial(_sizes_if_empty, state, needs, cluster)
    return find() if state.bound_to else _recall(cluster, needs, "reach", find)


def _sizes_if_empty(state: JobState, needs: Needs, cluster: Cluster) -> Sizes:
    there = state.bound_to or tuple(cluster.by_name)
    nodes = [cluster.by_name[name] for name in there if name in cluster.by_name]
    taking = [node.name for node in nodes if needs.may_be_on(node.name, node.capacity)]
    return cluster.sizes if len(taking) == len(cluster.nodes) else _sizes_of(taking, cluster)


def _recall(cluster: Cluster, needs: Needs, what: str, find: Callable[[], Sizes]) -> Sizes:
    """Find out what follows from the needs of thousands of jobs once for a cluster."""
    known = cluster.memo.get((needs, what))
    if known is None:
        known = cluster.memo[needs, what] = find()
    return known  # type: ignore[return-value]


def _sizes_of(nodes: Iterable[str], cluster: Cluster) -> Sizes:
    sizes: dict[str, list[int]] = {}
    for node in nodes:
        name = NodeName(node)
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
    whole = room.find_node(state, gpu_type, gpus)
    if whole is not None:
        return {whole: gpus}
    further = room.spread(state, missing, (gpu_type,), beside=nodes)
    return {**nodes, **further} if further is not None else None

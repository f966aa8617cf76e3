"""
Who gets which GPUs on which nodes.

Called by :func:`dlcore.cycle.schedule` with what the policy decided. Three rules, in this order:
a job keeps what it holds; it gets the fewest nodes; it leaves the largest gaps for others (best
fit). Types are never mixed unless the job allows it.

:class:`Room` keeps book of free GPUs by count. Policies use it too, to find out what would fit
before they promise it; GPU ids are chosen only here, at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from dlcore.model import (
    OWN_REASONS,
    Cause,
    CauseCode,
    Cluster,
    GpuDemand,
    JobId,
    JobState,
    NodeName,
    Placement,
)
from dlcore.planning import Wanted

if TYPE_CHECKING:
    # Policies use this module, so that it must be there before them.
    from dlcore.policies.contract import Decision, Share


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
            self._take_first(placement)
        self.free: dict[str, int] = dict.fromkeys(cluster.types, 0)
        """How many GPUs of each type are free."""
        self._buckets: dict[str, list[dict[NodeName, None]]] = {
            kind: [{} for _ in range(cluster.largest_node[kind] + 1)] for kind in cluster.types
        }
        for name, count in self.nodes.items():
            kind = cluster.by_name[name].gpu_type
            self.free[kind] += count
            self._buckets[kind][count][name] = None

    def _take_first(self, placement: Placement) -> None:
        """Count the GPUs of a placement as taken; spelt out, for it runs over every running job."""
        whole = self.cluster.whole
        for node, gpus in placement.slices:
            if node in whole:
                self.nodes[node] -= len(gpus)
            else:
                part = Placement.of({node: gpus})
                self.nodes.update(
                    (name, self.nodes[name] - count)
                    for name, count in count_usable(part, self.cluster).items()
                )

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
        chosen: dict[NodeName, int] = {}
        left = gpus
        for node, count in self._iter_gaps(kinds, beside):
            if left <= count:
                break
            chosen[node] = count
            left -= count
        last = self._find_last(left, kinds, {**beside, **chosen})
        if last is None:
            return None
        chosen[last] = left
        if demand.max_nodes is not None and len(beside) + len(chosen) > demand.max_nodes:
            return None
        return chosen

    def _iter_gaps(
        self, kinds: tuple[str, ...], beside: Mapping[NodeName, int]
    ) -> Iterator[tuple[NodeName, int]]:
        """Every other node with free GPUs and how many; within a type the largest gaps first."""
        for kind in kinds:
            for bucket in reversed(self._buckets.get(kind, [])[1:]):
                yield from ((node, self.nodes[node]) for node in bucket if node not in beside)

    def _find_last(
        self, gpus: int, kinds: tuple[str, ...], chosen: Mapping[NodeName, int]
    ) -> NodeName | None:
        """The smallest gap that is large enough, on a node not chosen already."""
        buckets = (bucket for kind in kinds for bucket in self._buckets.get(kind, [])[gpus:])
        return next((node for bucket in buckets for node in bucket if node not in chosen), None)

    def _find_bound(self, state: JobState, gpus: int, kinds: tuple[str, ...]) -> Fit | None:
        """A checkpoint that only some nodes can read binds the job to these."""
        nodes = {
            name: self.nodes[name]
            for name in state.bound_to
            if name in self.nodes and self.cluster.by_name[name].gpu_type in kinds
        }
        for name, free in nodes.items():
            if free >= gpus:
                return Fit(self.cluster.by_name[name].gpu_type, {name: gpus})
        return None


def count_usable(placement: Placement, cluster: Cluster) -> dict[NodeName, int]:
    """
    How many GPUs on each node would be free if the placement were given up.

    Fewer than it has where a job goes on with GPUs that nobody new would be given.
    """
    if cluster.flawless:
        return {node: len(gpus) for node, gpus in placement.slices}
    return {
        node: len(set(cluster.usable[node]).intersection(gpus)) for node, gpus in placement.slices
    }


def name_type(cluster: Cluster, nodes: Iterable[NodeName]) -> str:
    """The type of a placement on these nodes; several are joined by ``+``."""
    return "+".join(sorted({cluster.by_name[node].gpu_type for node in nodes}))


def acceptable_types(state: JobState, cluster: Cluster) -> tuple[str, ...]:
    """The types of this cluster that the job accepts, those it likes best first."""
    wanted = state.job.gpus.types
    if not wanted:
        return cluster.types
    return tuple(kind for kind in wanted if kind in cluster.totals)


def largest_possible(state: JobState, cluster: Cluster) -> int:
    """The most GPUs that this job could ever have on this cluster, were it empty."""
    demand = state.job.gpus
    kinds = acceptable_types(state, cluster)
    if state.bound_to:
        return sum(len(cluster.usable.get(node, ())) for node in state.bound_to)
    sizes = [cluster.sizes[kind] for kind in kinds]
    if demand.mixed:
        sizes = [tuple(sorted((size for each in sizes for size in each), reverse=True))]
    return max((sum(each[: demand.max_nodes]) for each in sizes), default=0)


def count_nodes(placement: Placement) -> dict[NodeName, int]:
    """How many GPUs the placement has on each node."""
    return {node: len(gpus) for node, gpus in placement.slices}


def place(
    decision: Decision,
    running: tuple[JobState, ...],
    newcomers: Sequence[JobState],
    cluster: Cluster,
) -> tuple[dict[JobId, Wanted], dict[JobId, Cause]]:
    """
    Turn shares into placements with GPU ids. Newcomers are the pending jobs that have a share.

    A share that finds no place leaves a running job with what it has, and a pending one waiting;
    the second result says so. The policy normally knew, because it asked :class:`Room`.
    """
    shares = decision.shares
    kept: dict[JobId, Wanted] = {}
    growing: list[JobState] = []
    for state in running:
        share = shares.get(state.id)
        if share is None or state.placement is None:
            continue
        shrunk = _keep_or_shrink(state, share, cluster)
        if shrunk is None:
            growing.append(state)
            shrunk = state.placement
        kept[state.id] = _want(share, shrunk)
    wanted, failed = kept, dict[JobId, Cause]()
    if growing or len(kept) < len(shares):
        placer = _Placer(cluster, {job: want.placement for job, want in kept.items()})
        wanted, failed = placer.place_rest(shares, kept, (*growing, *newcomers))
    losers = [state for state in running if _loses(state, wanted.get(state.id))]
    if losers:
        takers = [wanted[state.id] for state in (*growing, *newcomers) if state.id in wanted]
        _undo_vain_losses(losers, takers, wanted)
    return wanted, failed


def _undo_vain_losses(
    losers: list[JobState], takers: list[Wanted], wanted: dict[JobId, Wanted]
) -> None:
    """
    Let those keep their GPUs who would lose them to nobody.

    That happens when whom they were taken for found no place after all, and it may happen to any
    policy that thinks in numbers and leaves the places to us.
    """
    used = {ref for want in takers for ref in want.placement.refs()}
    for state in losers:
        assert state.placement is not None
        refs = set(state.placement.refs())
        want = wanted.get(state.id)
        kept = set(want.placement.refs()) if want is not None else set()
        if kept <= refs and used.isdisjoint(refs - kept):
            cause = want.cause if want is not None else Cause(CauseCode.ITS_TURN)
            wanted[state.id] = Wanted(state.placement, cause, state.gang, state.batch_size)
            used |= refs


def _loses(state: JobState, want: Wanted | None) -> bool:
    """Whether the job is to have fewer GPUs for another's sake, not for its own."""
    placement = state.placement
    if placement is None or placement.gpus not in state.job.gpus.options:
        return False
    if want is None:
        return True
    return want.placement.gpus < placement.gpus and want.cause.code not in OWN_REASONS


def _want(share: Share, placement: Placement) -> Wanted:
    return Wanted(placement, share.cause, share.gang, share.batch_size)


def _keep_or_shrink(state: JobState, share: Share, cluster: Cluster) -> Placement | None:
    """What is left of the job's placement if it only keeps or shrinks; ``None`` if it needs more."""
    placement = state.placement
    assert placement is not None
    if share.gpu_type is not None and share.gpu_type != placement.gpu_type:
        return None
    if share.nodes is None:
        if share.gpus == placement.shape.gpus:
            return placement
        return shrink(placement, share.gpus, cluster) if share.gpus < placement.gpus else None
    have = count_nodes(placement)
    if share.nodes == have:
        return placement
    if all(have.get(node, 0) >= count for node, count in share.nodes.items()):
        parts = {node: gpus[: share.nodes.get(node, 0)] for node, gpus in placement.slices}
        return Placement.of(parts, name_type(cluster, share.nodes))
    return None


def shrink(placement: Placement, gpus: int, cluster: Cluster) -> Placement:
    """Keep ``gpus`` of a placement, on as few nodes as possible: the smallest slices go first."""
    parts: dict[NodeName, tuple[int, ...]] = {}
    left = gpus
    for part in sorted(placement.slices, key=lambda part: (-len(part.gpus), part.node)):
        parts[part.node] = part.gpus[:left]
        left -= len(parts[part.node])
    return Placement.of(parts, name_type(cluster, (node for node, kept in parts.items() if kept)))


class _Placer:
    """Gives out GPU ids, one share after the other, in the order of the policy's decision."""

    def __init__(self, cluster: Cluster, kept: Mapping[JobId, Placement]) -> None:
        self.cluster = cluster
        self.room = Room(cluster, kept.values())
        self.used: dict[NodeName, set[int]] = {}
        for placement in kept.values():
            for node, gpus in placement.slices:
                self.used.setdefault(node, set()).update(gpus)

    def place_rest(
        self,
        shares: Mapping[JobId, Share],
        kept: dict[JobId, Wanted],
        changing: Iterable[JobState],
    ) -> tuple[dict[JobId, Wanted], dict[JobId, Cause]]:
        # Changed jobs are listed again behind the kept ones: the order of the result is the order
        # in which GPUs were given, and a later job may get what a moved one left.
        takers = {state.id: state for state in changing}
        wanted = {job: want for job, want in kept.items() if job not in takers}
        failed: dict[JobId, Cause] = {}
        for job, share in shares.items():
            state = takers.get(job)
            if state is None:
                continue
            placement = self._place(state, share)
            if placement is not None:
                wanted[job] = _want(share, placement)
            elif job in kept:
                wanted[job] = kept[job]
            else:
                failed[job] = _why_not(state, share)
        return wanted, failed

    def _place(self, state: JobState, share: Share) -> Placement | None:
        have = count_nodes(state.placement) if state.placement is not None else {}
        nodes = self._choose(state, share, have)
        if nodes is None:
            return None
        for node in {**have, **nodes}:
            self.room.take({node: nodes.get(node, 0) - have.get(node, 0)})
        return self._pick(state.placement, nodes)

    def _choose(
        self, state: JobState, share: Share, have: Mapping[NodeName, int]
    ) -> Mapping[NodeName, int] | None:
        if share.nodes is not None:
            more = {node: n - have.get(node, 0) for node, n in share.nodes.items()}
            return share.nodes if self.room.has(more) else None
        if state.placement is not None and share.gpu_type in (None, state.placement.gpu_type):
            grown = grow(self.room, state, have, state.placement.gpu_type, share.gpus)
            if grown is not None:
                return grown
        fit = self.room.find(state, share.gpus, share.gpu_type)
        return fit.nodes if fit is not None else None

    def _pick(self, old: Placement | None, nodes: Mapping[NodeName, int]) -> Placement:
        """Choose the ids: its own first, then the lowest free ones."""
        own = dict(old.slices) if old is not None else {}
        picked: dict[NodeName, tuple[int, ...]] = {}
        for node, count in nodes.items():
            used = self.used.setdefault(node, set())
            mine = own.get(node, ())[:count]
            fresh = [index for index in self.cluster.usable[node] if index not in used]
            picked[node] = (*mine, *fresh[: count - len(mine)])
        for node, gpus in own.items():
            self.used[node].difference_update(gpus)
        for node, gpus in picked.items():
            self.used[node].update(gpus)
        return Placement.of(picked, name_type(self.cluster, nodes))


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


def _why_not(state: JobState, share: Share) -> Cause:
    if state.bound_to:
        return Cause(CauseCode.CHECKPOINT_ELSEWHERE, gpus=share.gpus)
    return Cause(CauseCode.NO_ROOM_ON_ONE_NODE, gpus=share.gpus)

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
from typing import NamedTuple

from dlcore.contract import Decision, Share
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


class Placed(NamedTuple):
    """What came of a policy's shares: only what is not as it was before."""

    wanted: dict[JobId, Wanted]
    """Newcomers and changed jobs, in the order in which GPUs were given."""
    changed: list[JobState]
    stopped: list[JobState]
    unplaced: dict[JobId, Cause]
    """Newcomers that found no place, and why."""


def place(
    decision: Decision,
    running: tuple[JobState, ...],
    newcomers: Sequence[JobState],
    cluster: Cluster,
) -> Placed:
    """
    Turn shares into placements with GPU ids. Newcomers are the pending jobs that have a share.

    A share that finds no place leaves a running job with what it has, and a pending one waiting.
    The policy normally knew, because it asked :class:`Room`.
    """
    shares = decision.shares
    stopped: list[JobState] = []
    changed: list[JobState] = []
    for state in running:
        share = shares.get(state.id)
        if share is None:
            stopped.append(state)
        elif not _keeps(state, share):
            changed.append(state)
    if not (stopped or changed or newcomers):
        return Placed({}, [], [], {})
    moved = {state.id for state in (*stopped, *changed)}
    placer = _Placer(cluster, [state for state in running if state.id not in moved])
    wanted, unplaced = placer.place_all(shares, changed, newcomers)
    vain = _find_vain_losses((*stopped, *changed), wanted)
    for job in vain:
        wanted.pop(job, None)
    return Placed(
        wanted,
        [state for state in changed if state.id in wanted],
        [state for state in stopped if state.id not in vain],
        unplaced,
    )


def _keeps(state: JobState, share: Share) -> bool:
    """Whether nothing changes for a running job. The usual case is told by its first line."""
    placement = state.placement
    assert placement is not None
    if share.gpus != placement.shape.gpus:
        return False
    if share.gpu_type is not None and share.gpu_type != placement.gpu_type:
        return False
    if share.batch_size is not None and share.batch_size != state.batch_size:
        return False
    return share.nodes is None or share.nodes == count_nodes(placement)


def _find_vain_losses(states: Iterable[JobState], wanted: Mapping[JobId, Wanted]) -> set[JobId]:
    """
    Find those who would lose GPUs to nobody, and shall keep what they have.

    That happens when whom they were taken for found no place after all, and it may happen to any
    policy that thinks in numbers and leaves the places to us.
    """
    losers = [state for state in states if _loses(state, wanted.get(state.id))]
    if not losers:
        return set()
    lost = {state.id for state in losers}
    given = {
        ref for job, want in wanted.items() if job not in lost for ref in want.placement.refs()
    }
    vain: set[JobId] = set()
    for state in losers:
        assert state.placement is not None
        want = wanted.get(state.id)
        refs = set(state.placement.refs())
        kept = set(want.placement.refs()) if want is not None else set()
        if kept <= refs and given.isdisjoint(refs - kept):
            vain.add(state.id)
    return vain


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

    def __init__(self, cluster: Cluster, keeping: Iterable[JobState]) -> None:
        self.cluster = cluster
        placements = [state.placement for state in keeping if state.placement is not None]
        self.room = Room(cluster, placements)
        self.used: dict[NodeName, set[int]] = {}
        for placement in placements:
            for node, gpus in placement.slices:
                self.used.setdefault(node, set()).update(gpus)

    def _hold(self, placement: Placement) -> None:
        self.room.take(count_usable(placement, self.cluster))
        for node, gpus in placement.slices:
            self.used.setdefault(node, set()).update(gpus)

    def place_all(
        self,
        shares: Mapping[JobId, Share],
        changed: Iterable[JobState],
        newcomers: Iterable[JobState],
    ) -> tuple[dict[JobId, Wanted], dict[JobId, Cause]]:
        """Let first shrink who shrinks, then place the others in the order of the shares."""
        wanted: dict[JobId, Wanted] = {}
        takers: dict[JobId, JobState] = {}
        for state in changed:
            assert state.placement is not None
            share = shares[state.id]
            shrunk = _keep_or_shrink(state, share, self.cluster)
            self._hold(shrunk or state.placement)
            if shrunk is not None:
                wanted[state.id] = _want(share, shrunk)
            else:
                takers[state.id] = state
        takers.update((state.id, state) for state in newcomers)
        unplaced: dict[JobId, Cause] = {}
        for job in [job for job in shares if job in takers]:
            placement = self._place(takers[job], shares[job])
            if placement is not None:
                wanted[job] = _want(shares[job], placement)
            elif takers[job].placement is None:
                unplaced[job] = _why_not(takers[job], shares[job])
        return wanted, unplaced

    def _place(self, state: JobState, share: Share) -> Placement | None:
        have = count_nodes(state.placement) if state.placement is not None else {}
        nodes = self._choose(state, share, have)
        if nodes is None:
            return None
        placement = self._pick(state.placement, nodes)
        if state.placement is not None:
            self.room.give(count_usable(state.placement, self.cluster))
        self.room.take(count_usable(placement, self.cluster))
        return placement

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

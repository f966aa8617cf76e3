"""The GPUs that DRAGON has left over, and which running jobs get more of them."""

import heapq
from collections.abc import Mapping

from dljob.core.contract import Share
from dljob.core.model import Cause, CauseCode, Cluster, JobId, JobState, NodeName
from dljob.core.placement.counting import count_good, count_nodes, name_type
from dljob.core.placement.free_gpus import Fit, Room
from dljob.core.policies.common import ordering

_MAKES_ROOM = Cause(CauseCode.MAKES_ROOM)


_IDLE_GPUS = Cause(CauseCode.IDLE_GPUS)


class Surplus:
    """The GPUs that running jobs hold beyond their minimum, and which job gives them up for which other."""

    def __init__(self, filling: ordering.Filling) -> None:
        self.filling = filling
        self.cluster: Cluster = filling.view.cluster
        self.nodes: dict[JobId, dict[NodeName, int]] = {}
        """Where running jobs hold how many GPUs, as far as they were asked about."""
        self.there: dict[NodeName, list[JobState]] = {}
        """Jobs with a surplus, by the nodes they are on."""
        self.heap: list[tuple[int, int, JobState]] = []
        """The same, the largest surplus first; a later entry of a job makes the former void."""
        self.spare = Room(self.cluster)
        """The room that there would be if every running job kept only its minimum."""
        for state in filling.view.running:
            self._enter(state)
        self.total = self.spare.total - filling.most
        """How many GPUs the jobs could give up in all."""
        heapq.heapify(self.heap)

    def _enter(self, state: JobState) -> None:
        placement = state.placement
        assert placement is not None
        nodes = self.nodes[state.id] = count_nodes(placement)
        if placement.gpus <= state.least:
            self.spare.take(count_good(placement, nodes, self.cluster))
            return
        self.spare.take(count_good(placement, _keep(nodes, state.least), self.cluster))
        self.heap.append((state.least - placement.gpus, state.order, state))
        for node in nodes:
            self.there.setdefault(node, []).append(state)

    def make_room(self, state: JobState) -> Fit | None:
        """Let the jobs with the largest surplus give up what this job lacks of its minimum."""
        gpus = state.least
        kinds: list[str | None] = [*ordering.rank_types(state, gpus, view=self.filling.view)]
        for kind in [*kinds, None] if state.job.gpus.mixed else kinds:
            fit = self.spare.find(state, gpus, kind)
            if fit is None:
                continue
            if len(fit.nodes) == 1:
                (found,) = fit.nodes
                node = self._find_first(state, fit.gpu_type) or found
                fit = Fit(fit.gpu_type, {node: gpus})
            for node, count in fit.nodes.items():
                self._free(node, count)
            # Not so only where jobs on several nodes can give less there than was counted.
            return fit if self.filling.room.has(fit.nodes) else None
        return None

    def _find_first(self, state: JobState, kind: str) -> NodeName | None:
        """The node of the job with the largest surplus, of those on which enough can be freed."""
        looked_at: list[tuple[int, int, JobState]] = []
        found: NodeName | None = None
        while self.heap and found is None:
            entry = heapq.heappop(self.heap)
            surplus, _, victim = entry
            if self._surplus_of(victim) != -surplus:
                continue
            # Urgent jobs come smallest first, so a node with too little for this one has too little
            # for those behind it as well: a victim on no other node is never looked at again.
            enough = [n for n in self.nodes[victim.id] if self.spare.nodes[n] >= state.least]
            if enough:
                looked_at.append(entry)
                found = next((n for n in enough if self._may_be_on(state, n, kind=kind)), None)
        for entry in looked_at:
            heapq.heappush(self.heap, entry)
        return found

    def _may_be_on(self, state: JobState, node: NodeName, *, kind: str) -> bool:
        return (
            self.cluster.by_name[node].gpu_type == kind
            and (not state.bound_to or node in state.bound_to)
            and self.filling.room.takes_pod(state, node)
        )

    def _freed(self, victim: JobState, keeps: int) -> dict[NodeName, int]:
        """Return how many GPUs other jobs could have on each node if this one kept only that number."""
        assert victim.placement is not None
        now = self.nodes[victim.id]
        before = count_good(victim.placement, now, self.cluster)
        kept = _keep(now, keeps)
        after = count_good(victim.placement, kept, self.cluster)
        freed = {node: count - after.get(node, 0) for node, count in before.items()}
        return {node: count for node, count in freed.items() if count > 0}

    def _free(self, node: NodeName, count: int) -> None:
        """Let jobs on this node shrink until ``count`` GPUs are free there."""
        victims = self.there.get(node, ())
        for victim in sorted(victims, key=lambda each: (-self._surplus_of(each), each.order)):
            missing = count - self.filling.room.nodes[node]
            if missing <= 0:
                return
            keeps = self._choose(victim, node, missing=missing)
            if keeps is not None:
                self._shrink(victim, keeps)

    def _surplus_of(self, state: JobState) -> int:
        return sum(self.nodes[state.id].values()) - state.least

    def _choose(self, victim: JobState, node: NodeName, *, missing: int) -> int | None:
        """Return how many GPUs the job keeps: the most with which it gives enough, or else its minimum."""
        has = sum(self.nodes[victim.id].values())
        keeps = None
        for option in reversed([each for each in victim.job.gpus.options if each < has]):
            freed = self._freed(victim, option).get(node, 0)
            keeps = option if freed > 0 else keeps
            if freed >= missing:
                break
        return keeps

    def _shrink(self, victim: JobState, keeps: int) -> None:
        freed = self._freed(victim, keeps)
        nodes = self.nodes[victim.id] = _keep(self.nodes[victim.id], keeps)
        self.filling.room.give(freed)
        self.filling.most += sum(freed.values())
        self.total -= sum(freed.values())
        kind = name_type(self.cluster, nodes)
        self.filling.shares[victim.id] = Share(keeps, _MAKES_ROOM, kind, nodes)
        heapq.heappush(self.heap, (victim.least - keeps, victim.order, victim))


def _keep(nodes: Mapping[NodeName, int], gpus: int) -> dict[NodeName, int]:
    """The GPUs that a job keeps on each node: the largest parts, on as few nodes as possible."""
    kept: dict[NodeName, int] = {}
    for node, count in sorted(nodes.items(), key=lambda part: (-part[1], part[0])):
        if gpus > 0:
            kept[node] = min(count, gpus)
            gpus -= kept[node]
    return kept


def note_idle(
    room: Room, known: Mapping[NodeName, tuple[float, ...]], *, now: float
) -> dict[NodeName, tuple[float, ...]]:
    """Return since when at least one GPU of each node has been free, at least two, and so on."""
    idle: dict[NodeName, tuple[float, ...]] = {}
    for node, free in room.nodes.items():
        if free > 0:
            before = known.get(node, ())
            idle[node] = (
                before[:free] if len(before) >= free else (*before, *(now,) * (free - len(before)))
            )
    return idle


def enlarge(
    filling: ordering.Filling, idle: Mapping[NodeName, tuple[float, ...]], *, after: float
) -> None:
    """Give GPUs that have been idle for ``after`` seconds to jobs on their nodes, the least fulfilled first."""
    now = filling.view.now
    ready = {node: sum(since + after <= now for since in times) for node, times in idle.items()}
    ready = {node: count for node, count in ready.items() if count > 0}
    heap = [
        (_fulfilment(state, state.placement.gpus), state.order, state)
        for state in (filling.view.running if ready else ())
        if state.placement is not None and _may_grow(filling, state, ready=ready)
    ]
    heapq.heapify(heap)
    grown: dict[JobId, dict[NodeName, int]] = {}
    while heap and ready:
        _, order, state = heapq.heappop(heap)
        assert state.placement is not None
        nodes = grown.get(state.id) or count_nodes(state.placement)
        more = _grow(state, nodes, ready=ready)
        if more is None:
            continue
        filling.room.take(more)
        filling.most -= sum(more.values())
        nodes = grown[state.id] = {node: has + more.get(node, 0) for node, has in nodes.items()}
        gpus = sum(nodes.values())
        kind = name_type(filling.view.cluster, nodes)
        filling.shares[state.id] = Share(gpus, _IDLE_GPUS, kind, nodes)
        if gpus < state.job.gpus.options[-1]:
            heapq.heappush(heap, (_fulfilment(state, gpus), order, state))


def _may_grow(filling: ordering.Filling, state: JobState, *, ready: Mapping[NodeName, int]) -> bool:
    """Return whether a running job could use idle GPUs; not one that is being changed, or is now."""
    placement = state.placement
    return (
        placement is not None
        and not state.adjusting
        and state.has_allowed_size
        and placement.gpus < state.job.gpus.options[-1]
        and filling.shares[state.id].cause.code is not CauseCode.MAKES_ROOM
        and any(node in ready for node in placement.nodes)
    )


def _fulfilment(state: JobState, gpus: int) -> float:
    """Return which share of its GPUs beyond the minimum a job has."""
    return (gpus - state.least) / (state.job.gpus.options[-1] - state.least)


def _grow(
    state: JobState, nodes: Mapping[NodeName, int], *, ready: dict[NodeName, int]
) -> dict[NodeName, int] | None:
    """Take the GPUs for the job's next optional number from the idle ones of its nodes, if they suffice."""
    has = sum(nodes.values())
    missing = next(option for option in state.job.gpus.options if option > has) - has
    if sum(ready.get(node, 0) for node in nodes) < missing:
        return None
    more: dict[NodeName, int] = {}
    for node in sorted(nodes, key=lambda node: (-nodes[node], node)):
        taken = min(missing, ready.get(node, 0))
        if taken > 0:
            more[node] = taken
            ready[node] -= taken
            missing -= taken
    return more

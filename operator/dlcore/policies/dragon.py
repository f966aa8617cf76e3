"""
DRAGON: gangs on few nodes, made smaller for jobs that wait long and larger when GPUs stay idle.

Lin, Yeh and Chou, "DRAGON: A Dynamic Scheduling and Scaling Controller for Managing Distributed
Deep Learning Jobs in Kubernetes Cluster" (CLOSER 2019), section 3.3 and Figure 5.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, NamedTuple

from dlcore.checking import Law
from dlcore.contract import Decision, Share, View
from dlcore.model import Cause, CauseCode, Cluster, JobId, JobState, NodeName
from dlcore.options import check, declare
from dlcore.placement.free_gpus import (
    Fit,
    Room,
    count_good,
    count_nodes,
    name_type,
)
from dlcore.policies.common import ordering

_MAKES_ROOM = Cause(CauseCode.MAKES_ROOM)
_IDLE_GPUS = Cause(CauseCode.IDLE_GPUS)


class Memory(NamedTuple):
    """What the policy remembers from one decision to the next."""

    idle: Mapping[NodeName, tuple[float, ...]]
    """For each node with free GPUs: since when at least one of them is free, at least two, …"""
    waiting: Mapping[int, float]
    """Since when jobs wait that had GPUs before, by their place in the order of arrival."""


_NOTHING = Memory({}, {})


@dataclass(frozen=True, slots=True)
class Dragon:
    """
    Scale down for the smallest urgent job, start what fits, scale up what idles.

    The control flow of Figure 5, at each decision:

    1. **Scale-down alarm.** A job is urgent when it has waited longer than ``urgent_seconds``
       (τ). Urgent jobs are served smallest first. Where the free GPUs do not suffice,
    2. **victims** give up GPUs, those with the most surplus (held less minimum) first. If the
       smallest urgent job cannot be launched, no larger one can, and none is tried.
    3. **Scheduling** (AFCFS): the first job in order of arrival that fits in what is free starts,
       on the fewest nodes, then the next one. A gang starts whole or not at all.
    4. **Scale-up alarm.** GPUs of a node that have been idle longer than ``idle_seconds`` (λ)
    5. go to jobs that **already run on that node**, up to their maximum.

    Where the paper leaves room:

    - It gives no thresholds. The defaults are those of the code that the authors released
      (NTHU-LSALAB/DRAGON, v0.9.1): 30 s and 60 s.
    - The size of a waiting job is the fewest GPUs it can run on (the minimum number of workers),
      then the number of its auxiliary pods: parameter servers belong to the gang, and their number
      is its user's. Jobs of equal size come in order of arrival.
    - An urgent job gets as many GPUs as are free for it up to its request; where not even its
      minimum is free, room is made for its minimum only. So does the released code.
    - A victim gives only what the urgent job lacks on the node concerned, as far as its optional
      numbers allow, because each scaling restarts the job and the paper wants few of them. A victim
      on several nodes gives up its smallest parts first. The node is that of the job with the most
      surplus, of those on which the jobs together can free enough.
    - Idle GPUs go to the job that is the least fulfilled, (held - minimum) / (maximum - minimum), which
      is the order of an earlier version of the authors' code (ChanYiLin/tf-operator-Dragon); one
      optional number at a time, ties by arrival, and first on the node where it has most GPUs.
    - Idle time is counted by node: since when at least one of its GPUs has been free without
      interruption, at least two, and so on. Which GPUs these are is not the policy's business.
    - A job's waiting time counts from its submission; when it loses its GPUs with a node, from then.
    - Priorities are not heeded: the paper names them as a possible extension.
    """

    name: ClassVar[str] = "dragon"
    paper: ClassVar[str] = "DRAGON (Lin et al.), 3.3, Figure 5"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    urgent_seconds: float = declare(30.0, at_least=0.0)
    """How long a job waits before running jobs are made smaller for it (τ)."""
    idle_seconds: float = declare(60.0, at_least=0.0)
    """How long GPUs are idle before jobs on their nodes may have them (λ)."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Go through the five steps of Figure 5."""
        memory = view.state if isinstance(view.state, Memory) else _NOTHING
        waiting = _Waiting(view, memory.waiting)
        filling = ordering.Filling(view, view.running)
        _serve_urgent(filling, waiting.iter_urgent(self.urgent_seconds, view.now))
        _start_fitting(filling)
        idle = _note_idle(filling.room, memory.idle, view.now)
        _enlarge(filling, idle, self.idle_seconds)
        idle = _note_idle(filling.room, idle, view.now)
        alarms = [
            *waiting.iter_alarms(filling.shares, self.urgent_seconds, view.now),
            *_iter_alarms(idle, filling.room, self.idle_seconds),
        ]
        return Decision(
            filling.shares,
            waits=filling.waits,
            wait=ordering.NO_ROOM,
            wake_at=min((alarm for alarm in alarms if alarm > view.now), default=None),
            state=Memory(idle, waiting.since),
        )


# --- who waits, and since when ------------------------------------------------------------


class _Waiting:
    """The pending jobs by how long they wait; looked at block by block, for thousands may wait."""

    def __init__(self, view: View, known: Mapping[int, float]) -> None:
        self.blocks = view.pending.blocks
        returned = (order for block in self.blocks for order in block.ask(_list_returned))
        self.since: Mapping[int, float] = {order: known.get(order, view.now) for order in returned}

    def _since(self, state: JobState) -> float:
        return self.since.get(state.order, state.job.submitted_at)

    def iter_urgent(self, after: float, now: float) -> Iterator[JobState]:
        """Those that have waited so long, the smallest first."""
        # Reckoned as the alarms are, so that no job is missed at its alarm by a rounding error.
        due = [b.ask(_sort_by_size) for b in self.blocks if b.ask(_earliest) + after <= now]
        return (
            state for state in heapq.merge(*due, key=_size) if self._since(state) + after <= now
        )

    def iter_alarms(
        self, served: Mapping[JobId, Share], after: float, now: float
    ) -> Iterator[float]:
        """When those that were not served will have waited so long."""
        for since in self.since.values():
            yield since + after
        # Most blocks hold only jobs whose alarm has rung.
        for block in (block for block in self.blocks if block.ask(_latest) + after > now):
            for state in block:
                if state.id not in served and state.order not in self.since:
                    yield state.job.submitted_at + after


def _list_returned(states: tuple[JobState, ...]) -> tuple[int, ...]:
    """The jobs that had GPUs before."""
    return tuple(state.order for state in states if state.started_at is not None)


def _earliest(states: tuple[JobState, ...]) -> float:
    return min(state.job.submitted_at for state in states)


def _latest(states: tuple[JobState, ...]) -> float:
    return max(state.job.submitted_at for state in states)


def _sort_by_size(states: tuple[JobState, ...]) -> tuple[JobState, ...]:
    return tuple(sorted(states, key=_size))


def _size(state: JobState) -> tuple[int, int, int]:
    """How much a job needs at least: GPUs, then auxiliary pods; ties by arrival."""
    return state.least, sum(role.replicas for role in state.job.roles), state.order


# --- steps 1 to 3 -------------------------------------------------------------------------


def _serve_urgent(filling: ordering.Filling, urgent: Iterable[JobState]) -> None:
    """Launch urgent jobs, the smallest first, until one cannot be."""
    surplus: _Surplus | None = None
    hopeless: set[tuple[object, ...]] = set()
    for state in urgent:
        fit = _take_free(filling, state)
        if fit is not None:
            if surplus is not None:
                surplus.spare.take(fit.nodes, state)
            continue
        surplus = surplus or _Surplus(filling)
        if state.least > filling.most + surplus.total:
            return
        # What is true of the smallest job need not be of one that may go elsewhere.
        kind = (state.needs, state.job.gpus.types, state.job.gpus.max_nodes, state.bound_to)
        if kind in hopeless:
            continue
        fit = surplus.make_room(state)
        if fit is not None:
            filling.give(state, state.least, fit)
            surplus.spare.take(fit.nodes, state)
        elif kind == (None, (), None, ()):
            return
        else:
            hopeless.add(kind)


def _take_free(filling: ordering.Filling, state: JobState) -> Fit | None:
    """Give an urgent job as many of the free GPUs as it requested, or the most below that."""
    if state.least > filling.most:
        return None
    most = min(ordering.count_requested(state, filling.view), filling.most)
    for gpus in reversed([option for option in state.job.gpus.options if option <= most]):
        fit = ordering.find_packed(filling.room, state, gpus, filling.view)
        if fit is not None:
            filling.give(state, gpus, fit)
            return fit
    return None


def _start_fitting(filling: ordering.Filling) -> None:
    """Start the jobs that fit into the free GPUs, in order of arrival, with the GPUs requested."""
    blocks = (
        block
        for block in filling.view.pending.blocks
        if block.ask(ordering.fewest_needed) <= filling.most
    )
    for state in chain.from_iterable(blocks):
        if filling.most == 0:
            return
        if state.id not in filling.shares and state.least <= filling.most:
            _ = filling.start(state)


class _Surplus:
    """What running jobs hold beyond their minimum, and who gives it up for whom."""

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
        kinds: list[str | None] = [*ordering.rank_types(state, gpus, self.filling.view)]
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
                found = next((n for n in enough if self._may_be_on(state, n, kind)), None)
        for entry in looked_at:
            heapq.heappush(self.heap, entry)
        return found

    def _may_be_on(self, state: JobState, node: NodeName, kind: str) -> bool:
        return (
            self.cluster.by_name[node].gpu_type == kind
            and (not state.bound_to or node in state.bound_to)
            and self.filling.room.takes_pod(state, node)
        )

    def _freed(self, victim: JobState, keeps: int) -> dict[NodeName, int]:
        """How many GPUs other jobs could have on each node if this one kept only that number."""
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
            keeps = self._choose(victim, node, missing)
            if keeps is not None:
                self._shrink(victim, keeps)

    def _surplus_of(self, state: JobState) -> int:
        return sum(self.nodes[state.id].values()) - state.least

    def _choose(self, victim: JobState, node: NodeName, missing: int) -> int | None:
        """How many GPUs the job keeps: the most with which it gives enough, or else its minimum."""
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
    """What a job keeps of its GPUs on each node: the largest parts, on as few nodes as possible."""
    kept: dict[NodeName, int] = {}
    for node, count in sorted(nodes.items(), key=lambda part: (-part[1], part[0])):
        if gpus > 0:
            kept[node] = min(count, gpus)
            gpus -= kept[node]
    return kept


# --- steps 4 and 5 ------------------------------------------------------------------------


def _note_idle(
    room: Room, known: Mapping[NodeName, tuple[float, ...]], now: float
) -> dict[NodeName, tuple[float, ...]]:
    """Since when at least one GPU of each node has been free, at least two, and so on."""
    idle: dict[NodeName, tuple[float, ...]] = {}
    for node, free in room.nodes.items():
        if free > 0:
            before = known.get(node, ())
            idle[node] = (
                before[:free] if len(before) >= free else (*before, *(now,) * (free - len(before)))
            )
    return idle


def _enlarge(
    filling: ordering.Filling, idle: Mapping[NodeName, tuple[float, ...]], after: float
) -> None:
    """Give GPUs that have been idle for so long to jobs on their nodes, the least fulfilled first."""
    now = filling.view.now
    ready = {node: sum(since + after <= now for since in times) for node, times in idle.items()}
    ready = {node: count for node, count in ready.items() if count > 0}
    heap = [
        (_fulfilment(state, state.placement.gpus), state.order, state)
        for state in (filling.view.running if ready else ())
        if state.placement is not None and _may_grow(filling, state, ready)
    ]
    heapq.heapify(heap)
    grown: dict[JobId, dict[NodeName, int]] = {}
    while heap and ready:
        _, order, state = heapq.heappop(heap)
        assert state.placement is not None
        nodes = grown.get(state.id) or count_nodes(state.placement)
        more = _grow(state, nodes, ready)
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


def _may_grow(filling: ordering.Filling, state: JobState, ready: Mapping[NodeName, int]) -> bool:
    """Whether a running job could use idle GPUs; not one that is being changed, or is now."""
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
    """How much of what it may have beyond its minimum a job has."""
    return (gpus - state.least) / (state.job.gpus.options[-1] - state.least)


def _grow(
    state: JobState, nodes: Mapping[NodeName, int], ready: dict[NodeName, int]
) -> dict[NodeName, int] | None:
    """Take what the job's next optional number needs from the idle GPUs of its nodes, if it is there."""
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


def _iter_alarms(
    idle: Mapping[NodeName, tuple[float, ...]], room: Room, after: float
) -> Iterator[float]:
    """When GPUs on nodes with jobs will have been idle for so long."""
    for node, times in idle.items():
        if room.nodes[node] < len(room.cluster.usable[node]):
            for since in times:
                yield since + after

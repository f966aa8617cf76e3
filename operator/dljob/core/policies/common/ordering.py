"""
The common part of the policies that take jobs in some order and give each a fixed number of GPUs.

They differ in the order, in whether a job that does not fit blocks those behind it, in whether
running jobs are in that order too and may lose their GPUs, and in how nodes are chosen. This module
has the rest: :func:`admit` for policies that never stop a job, :func:`preempt` for those that do,
and :class:`Filling`, by which both put jobs into the free GPUs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Protocol

from dljob.core.contract import Decision, Share, View
from dljob.core.model import Cause, CauseCode, Cluster, JobId, JobState
from dljob.core.placement.counting import count_usable
from dljob.core.placement.free_gpus import Fit, Room
from dljob.core.placement.largest import acceptable_types, largest_possible, may_be_anywhere

# Shared objects, because thousands of waiting jobs are compared at every event.
NO_ROOM = Cause(CauseCode.NO_ROOM)
BEHIND = Cause(CauseCode.BEHIND)
NEXT_ROUND = Cause(CauseCode.NEXT_ROUND)

Count = Callable[[JobState, View], int]
"""Returns the number of GPUs for a job without GPUs."""
Find = Callable[[Room, JobState, int, View], Fit | None]
"""The place for a job with a number of GPUs."""


# --- how many -----------------------------------------------------------------------------


def count_requested(state: JobState, view: View) -> int:
    """
    The number of GPUs that the user requested.

    Where the cluster could never give as many, it is the largest option that it could: a rigid
    job that is larger than the cluster would wait for ever, and block a strict line with it.
    """
    requested = state.job.gpus.requested
    smallest = min(view.cluster.largest_node.values())
    if not state.picky and requested <= smallest and may_be_anywhere(state, view.cluster):
        return requested
    return min(requested, largest_option(state, view.cluster))


def largest_option(state: JobState, cluster: Cluster) -> int:
    """
    The largest number of GPUs the job can run on that this cluster could give it, if empty.

    The least of a job for which the cluster is too small: one that runs may have been edited so.
    """
    most = largest_possible(state, cluster)
    return max((n for n in state.job.gpus.options if n <= most), default=state.least)


# --- where --------------------------------------------------------------------------------


def rank_types(state: JobState, gpus: int, *, view: View) -> tuple[str, ...]:
    """The types that the job accepts, the one it is fastest on first, then by its user's liking."""
    if len(view.cluster.types) == 1:
        return view.cluster.types
    best = view.predictor.best_type(state.job, gpus)
    kinds = acceptable_types(state, view.cluster)
    return tuple(sorted(kinds, key=lambda kind: kind != best))


def find_packed(room: Room, state: JobState, gpus: int, view: View) -> Fit | None:
    """The fewest nodes of the best type that has room; a mixture if the job can do with one."""
    for kind in rank_types(state, gpus, view=view):
        fit = room.find(state, gpus, kind) if room.free[kind] >= gpus else None
        if fit is not None:
            return fit
    return room.find(state, gpus) if state.job.gpus.mixed else None


# --- who ----------------------------------------------------------------------------------


# There are few distinct shares, and a decision holds one for every running job.
@lru_cache(maxsize=4096)
def keep(gpus: int) -> Share:
    """Return the share that leaves a running job unchanged."""
    return Share(gpus)


def keep_all(states: Iterable[JobState]) -> dict[JobId, Share]:
    """Return the shares that leave all these jobs unchanged."""
    return {
        state.id: keep(state.placement.shape.gpus)
        for state in states
        if state.placement is not None
    }


class Filling:
    """Places jobs one by one on the GPUs that some running jobs leave free."""

    def __init__(
        self,
        view: View,
        staying: Sequence[JobState],
        *,
        count: Count = count_requested,
        find: Find = find_packed,
    ) -> None:
        self.view = view
        self.count = count
        self.find = find
        self.room = Room(view.cluster, [s.placement for s in staying if s.placement is not None])
        self.shares = keep_all(staying)
        self.most = self.room.total
        """How many GPUs are left; of one type there may be fewer."""
        self.waits: dict[JobId, Cause] = {}
        """Why those wait that there are GPUs enough for, but not where they could have them."""

    def start(self, state: JobState) -> bool:
        """Give a pending job its GPUs, if there is a place for it."""
        if state.least > self.most:
            return False
        gpus = self.count(state, self.view)
        fit = self.find(self.room, state, gpus, self.view)
        if fit is None:
            self._say_why_not(state, gpus)
            return False
        self.give(state, gpus, fit=fit)
        return True

    def give(self, state: JobState, gpus: int, *, fit: Fit) -> None:
        """Give a pending job these GPUs, which must be free."""
        self.room.take(fit.nodes, state)
        self.most -= gpus
        self.shares[state.id] = Share(gpus, gpu_type=fit.gpu_type, nodes=fit.nodes)
        self.waits.pop(state.id, None)

    def go_on(self, state: JobState) -> bool:
        """Let a running job keep its GPUs, unless a job that was put in before has some of them."""
        assert state.placement is not None
        held = count_usable(state.placement, self.view.cluster)
        if not self.room.has(held):
            return False
        self.room.take(held)
        self.most -= sum(held.values())
        self.shares[state.id] = keep(state.placement.shape.gpus)
        return True

    def _say_why_not(self, state: JobState, gpus: int) -> None:
        counts = [self.room.free[kind] for kind in acceptable_types(state, self.view.cluster)]
        if gpus <= (sum(counts) if state.job.gpus.mixed else max(counts, default=0)):
            code = CauseCode.NO_ROOM_ON_ONE_NODE
            if state.bound_to:
                code = CauseCode.CHECKPOINT_ELSEWHERE
            elif self.room.lacks_room_for_pod(state, gpus):
                code = CauseCode.NO_ROOM_FOR_POD
            self.waits[state.id] = Cause(code, gpus=gpus)


def admit(
    view: View, *, passing: bool, count: Count = count_requested, find: Find = find_packed
) -> Decision:
    """
    Let all running jobs go on, and start pending ones in order of arrival.

    With ``passing`` every job that fits may start; else the first that does not fit blocks the
    others.
    """
    filling = Filling(view, view.running, count=count, find=find)
    for block in view.pending.blocks:
        if filling.most == 0:
            break
        # Skip a whole block if all its jobs need more GPUs than are left.
        if block.ask(fewest_needed) <= filling.most:
            blocked = not _admit_block(filling, block, passing=passing)
        else:
            blocked = not passing
        if blocked:
            break
    if passing:
        return Decision(filling.shares, waits=filling.waits, wait=NO_ROOM)
    head = next((s.id for s in view.pending if s.id not in filling.shares), None)
    waits = {head: filling.waits.get(head, NO_ROOM)} if head is not None else {}
    return Decision(filling.shares, waits=waits, wait=BEHIND)


def fewest_needed(states: Iterable[JobState]) -> int:
    """The least number of GPUs that any of these jobs can run on."""
    return min(state.least for state in states)


def _admit_block(filling: "Filling", block: Iterable[JobState], *, passing: bool) -> bool:
    """Start the jobs that fit; return whether the jobs behind them may start too."""
    for state in block:
        # start() compares the same; doing so here saves thousands of calls.
        if (state.least > filling.most or not filling.start(state)) and not passing:
            return False
    return True


class Left(Protocol):
    """The part that gives GPUs away."""

    @property
    def most(self) -> int:
        """Return how many are left."""


Line = Callable[[Left], Iterator[JobState]]
"""
All jobs in order. It may leave out pending jobs that need more than is left, and is not asked
further when nothing is left; so thousands of waiting jobs need not be brought into order for it.
"""


def preempt(view: View, line: Line) -> Decision:
    """
    Give GPUs to the jobs that fit, running or pending, in order; the others lose theirs.

    It is decided by counts first, as if all GPUs of a type were alike. Then those that run and are
    taken again keep their GPUs untouched, and the newcomers look for a place next to them. When one
    finds none, because the free GPUs are scattered or out of its reach, all others are asked again
    in order, those that were to be stopped for it among them: so no job is stopped in vain, and a
    job that is hard to place waits for a better moment.
    """
    counting = _Counting(view)
    chosen = counting.choose(line)
    staying = [state for state in chosen if state.placement is not None]
    if len(chosen) == len(staying) == len(view.running):
        return Decision(keep_all(staying), wait=BEHIND)
    filling = Filling(view, staying)
    if not _start_as_counted(filling, counting, chosen=chosen):
        for state in line(filling):
            if state.id not in filling.shares:
                _ = filling.start(state) if state.placement is None else filling.go_on(state)
    return Decision(filling.shares, waits=filling.waits, wait=BEHIND)


def _start_as_counted(
    filling: Filling, counting: "_Counting", *, chosen: Iterable[JobState]
) -> bool:
    """Place the newcomers in order, until one finds no place or not the types counted for it."""
    expected = dict(filling.room.free)
    for state in chosen:
        if state.placement is None:
            for kind, gpus in counting.newcomers[state.id]:
                expected[kind] -= gpus
            if not filling.start(state) or filling.room.free != expected:
                return False
    return True


class _Counting:
    """Assigns GPUs by count only, from the number left of each type."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.left: dict[str, int] = dict(view.cluster.totals)
        self.most = view.cluster.total
        self.newcomers: dict[JobId, Iterable[tuple[str, int]]] = {}
        """The numbers by type for jobs that have nothing yet."""

    def choose(self, line: Line) -> list[JobState]:
        """List the jobs for which GPUs suffice, in order."""
        chosen: list[JobState] = []
        for state in line(self):
            if (state.placement is None and state.least > self.most) or not self._take(state):
                continue
            chosen.append(state)
            if self.most == 0:
                break
        if not self.view.cluster.flawless:
            # No other job could get the GPUs of these running jobs.
            known = {state.id for state in chosen}
            others = [state for state in self.view.running if state.id not in known]
            chosen += [s for s in others if not any(gpus for _, gpus in self._held(s))]
        return chosen

    def _take(self, state: JobState) -> bool:
        needs = self._needed(state) if state.placement is None else self._held(state)
        left = self.left
        for kind, gpus in needs:
            if left[kind] < gpus:
                return False
        for kind, gpus in needs:
            left[kind] -= gpus
            self.most -= gpus
        if state.placement is None:
            self.newcomers[state.id] = needs
        return True

    def _held(self, state: JobState) -> Iterable[tuple[str, int]]:
        placement, cluster = state.placement, self.view.cluster
        assert placement is not None
        if cluster.flawless and placement.gpu_type in cluster.totals:
            return ((placement.gpu_type, placement.shape.gpus),)
        held: dict[str, int] = {}
        for node, count in count_usable(placement, cluster).items():
            kind = cluster.by_name[node].gpu_type
            held[kind] = held.get(kind, 0) + count
        return held.items()

    def _needed(self, state: JobState) -> Iterable[tuple[str, int]]:
        """Return how many GPUs of which type the job needs, counted as it will be placed; too many if there is no way."""
        gpus = count_requested(state, self.view)
        kinds = rank_types(state, gpus, view=self.view)
        for kind in kinds:
            if self.left[kind] >= gpus:
                return ((kind, gpus),)
        if not state.job.gpus.mixed or sum(self.left[kind] for kind in kinds) < gpus:
            return ((kinds[0], gpus),)
        needs: dict[str, int] = {}
        for kind in kinds:
            needs[kind] = min(self.left[kind], gpus - sum(needs.values()))
        return needs.items()

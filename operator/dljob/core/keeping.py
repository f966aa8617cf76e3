"""
Jobs whose work nothing saves keep their GPUs, or some of them: the law ``work-kept``, held for all policies alike.

Called by :func:`dljob.core.cycle.schedule`. The policy sees such a job with its present number of GPUs
as the only option. One whose processes stay when its GPUs change (``is_live``) is seen with all its options,
because it may shrink and grow as long as some of its processes go on, until its last step; on several nodes it is seen
without those that are larger, because it only shrinks there. If the answer leaves all of these jobs their GPUs, it counts, so the order of
the policy holds: jobs behind do not get the GPUs that the first job in the queue waits for. Only if
the answer would cost a job its work, the policy decides once more and sees neither these jobs nor
their GPUs. They give their GPUs up where a law demands it (they are suspended, their node is lost,
their spec changes), and to a job of higher priority which the policy wanted to start at their cost:
then those go whose stop loses least, and no more of them than that job needs.

In that second answer a job that needs what others keep would be passed by newer jobs for ever. So
newer jobs wait behind it once it has waited as long as the last of the kept jobs still takes. GPUs
stay idle for it no longer than it has waited already.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dljob.core.contract import Decision, Share
from dljob.core.model import Cause, CauseCode, Cluster, JobId, JobState, Node, NodeName, Snapshot
from dljob.core.placement import placing
from dljob.core.placement.counting import count_usable
from dljob.core.placement.free_gpus import Room
from dljob.core.placement.limits import NamespaceLimits, namespace_of, sum_by_namespace
from dljob.core.placement.placing import Placed

_TURN = Cause(CauseCode.ITS_TURN)


def keeps(state: JobState) -> bool:
    """Return whether a job with GPUs keeps just these, because any change would lose its work."""
    is_unsaved = state.unsaved_from is not None and not state.may_change_live
    return is_unsaved and state.has_allowed_size


def remains(state: JobState) -> bool:
    """Return whether a job with GPUs is not stopped, because a stop would lose its work."""
    loses = state.unsaved_from is not None or state.lost_if_stopped
    return loses and state.has_allowed_size


def show_rigid(state: JobState) -> JobState:
    """Show a job that keeps its GPUs as one that can run on exactly that number, and one that may only
    shrink without its larger numbers; another as it is."""
    if state.placement is None or state.unsaved_from is None or not state.has_allowed_size:
        return state
    held, demand = state.gang or state.placement.gpus, state.job.gpus
    if keeps(state):
        options: tuple[int, ...] = (held,)
    elif not state.may_be_joined:
        options = tuple(gpus for gpus in demand.options if gpus <= held)
    else:
        return state
    demand = replace(
        demand, options=options, requested=min(held, max(options[0], demand.requested))
    )
    return replace(state, job=replace(state.job, gpus=demand))


def find_lost(placed: Placed, kept: Iterable[JobState]) -> list[JobState]:
    """Which of the kept jobs would lose their work by this."""
    stopped = {state.id for state in placed.stopped}
    changed = {state.id for state in placed.changed}
    return [
        state
        for state in kept
        if state.id in stopped
        or (
            state.id in changed
            and state.unsaved_from is not None
            and not state.keeps_work_on(placed.wanted[state.id].placement)
        )
    ]


def find_urgent(
    waiting: Iterable[JobState], wanted: Placed, *, kept: Iterable[JobState]
) -> list[JobState]:
    """
    The waiting jobs for which the policy wanted to take GPUs of a lower priority.

    ``wanted`` is the result of its first answer. A policy that leaves running jobs alone does so
    here.
    """
    lowest = min((state.job.priority for state in find_lost(wanted, kept)), default=None)
    if lowest is None:
        return []
    return [s for s in waiting if s.id in wanted.wanted and s.job.priority > lowest]


def hold_back(
    pending: Iterable[JobState],
    crowded: Iterable[JobState],
    *,
    kept: Iterable[JobState],
    now: float,
) -> dict[JobId, Cause]:
    """
    Return the jobs that wait behind one that needs GPUs which others keep, each with that job.

    These are jobs that came later with no higher priority, once the first has waited as long as the
    kept jobs still take.
    """
    # A job that does not train may take for ever.
    left = max(s.remaining_at(now) / s.speed if s.speed > 0.0 else math.inf for s in kept)
    ahead: dict[int, JobState] = {}
    for state in crowded:
        if now - state.job.submitted_at >= left:
            first = ahead.get(state.job.priority, state)
            ahead[state.job.priority] = min(first, state, key=lambda each: each.order)
    if not ahead:
        return {}
    behind: dict[JobId, Cause] = {}
    for state in pending:
        priority, order = state.job.priority, state.order
        there = [s for s in ahead.values() if s.job.priority >= priority and s.order < order]
        if there:
            first = min(there, key=lambda each: (-each.job.priority, each.order))
            behind[state.id] = Cause(CauseCode.BEHIND, first.id)
    return behind


def show_beside(snapshot: Snapshot, kept: Iterable[JobState]) -> Snapshot:
    """Show the rest of the decision without these jobs: the other GPUs, and the rest of the
    limits."""
    taken: dict[NodeName, dict[int, str]] = {}
    placed = [(state.id, state.placement) for state in kept if state.placement is not None]
    for job, placement in placed:
        for node, gpus in placement.slices:
            taken.setdefault(node, {}).update(dict.fromkeys(gpus, f"job {job} keeps it"))
    cluster = leave_out(snapshot.cluster, taken)
    limits = snapshot.limits
    if limits.max_gpus:
        limits = limits.less(sum_by_namespace((job, each.gpus) for job, each in placed))
    return replace(snapshot, cluster=cluster, limits=limits)


def leave_out(cluster: Cluster, taken: Mapping[NodeName, Mapping[int, str]]) -> Cluster:
    """Return the cluster in which these GPUs cannot be given away, with the reason of each."""
    nodes = cluster.nodes
    return Cluster(_without(n, taken[n.name]) if n.name in taken else n for n in nodes)


def _without(node: Node, taken: Mapping[int, str]) -> Node:
    gpus = tuple(
        replace(gpu, unavailable_because=gpu.unavailable_because or taken[gpu.index])
        if gpu.index in taken
        else gpu
        for gpu in node.gpus
    )
    return replace(node, gpus=gpus)


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of a decision among its jobs, before a job is outranked."""

    decision: Decision
    placed: Placed
    running: tuple[JobState, ...]
    kept: tuple[JobState, ...]
    newcomers: Sequence[JobState]

    def placements(self) -> Iterator[JobState]:
        """Every job that will have GPUs, as it will have them."""
        wanted = self.placed.wanted
        gone = {state.id for state in self.placed.stopped}
        for state in (*self.running, *self.kept, *self.newcomers):
            if state.id in wanted:
                yield replace(state, placement=wanted[state.id].placement)
            elif state.placement is not None and state.id not in gone:
                yield state


def outrank(
    settled: Settled, urgent: Iterable[JobState], *, snapshot: Snapshot
) -> tuple[Decision, Placed]:
    """
    Let the first of these jobs that can have GPUs of kept jobs of a lower priority.

    Everything stays as it was settled if none of them would find room even so, or would be within
    what its namespace may have.
    """
    cluster, now = snapshot.cluster, snapshot.now
    started = settled.placed.wanted.keys()
    waiting = (state for state in urgent if state.id not in started)
    for first in sorted(waiting, key=lambda state: (-state.job.priority, state.order)):
        lower = sorted(
            (state for state in settled.kept if state.job.priority < first.job.priority),
            key=lambda state: (
                state.job.priority,
                state.iterations_at(now) if state.lost_if_stopped else state.unsaved_at(now),
                -state.order,
            ),
        )
        room = Room(cluster, [s.placement for s in settled.placements() if s.placement is not None])
        victims = _choose_victims(first, lower, room=room, cluster=cluster)
        made = _place_anew(settled, first, victims=victims, snapshot=snapshot) if victims else None
        if made is not None:
            return made
    return settled.decision, settled.placed


def _choose_victims(
    first: JobState, lower: Iterable[JobState], *, room: Room, cluster: Cluster
) -> set[JobId]:
    """Take GPUs from these jobs, in this order, until the job fits; give back the surplus."""
    chosen: list[JobState] = []
    for state in lower:
        assert state.placement is not None
        chosen.append(state)
        room.give(count_usable(state.placement, cluster))
        if room.find(first, first.least, None) is not None:
            break
    else:
        return set()
    needed = set()
    for state in chosen:
        assert state.placement is not None
        held = count_usable(state.placement, cluster)
        room.take(held)
        if room.find(first, first.least, None) is None:
            room.give(held)
            needed.add(state.id)
    return needed


def _place_anew(
    settled: Settled, first: JobState, *, victims: Collection[JobId], snapshot: Snapshot
) -> tuple[Decision, Placed] | None:
    """Place the decision once more, with this job in the place of its victims."""
    shares = dict(settled.decision.shares)
    for state in settled.kept:
        if state.id not in victims and state.placement is not None:
            shares[state.id] = Share(state.placement.gpus)
    shares[first.id] = Share(first.least, _TURN)
    decision = replace(settled.decision, shares=shares)
    newcomers = [state for state in settled.newcomers if state.id != first.id]
    in_order = tuple(sorted((*settled.running, *settled.kept), key=lambda state: state.order))
    placed = placing.place(decision, in_order, (*newcomers, first), snapshot.cluster)
    # Only this job may profit from the GPUs that the victims give up.
    victims_had = [s.placement for s in placed.stopped if s.id in victims and s.placement]
    stopped = {ref for placement in victims_had for ref in placement.refs()}
    takers = {
        job for job, want in placed.wanted.items() if not stopped.isdisjoint(want.placement.refs())
    }
    if takers != {first.id} or _is_beyond(settled, placed, first=first, limits=snapshot.limits):
        return None
    return decision, placed


def _is_beyond(
    settled: Settled, placed: Placed, *, first: JobState, limits: NamespaceLimits
) -> bool:
    namespace = namespace_of(first.id)
    limit = limits.gpus_of(namespace)
    if limit is None:
        return False
    after = replace(settled, placed=placed, newcomers=(*settled.newcomers, first))
    own = {state.id: state for state in after.placements() if namespace_of(state.id) == namespace}
    return sum(max(s.gang, s.placement.gpus) for s in own.values() if s.placement) > limit

"""
Jobs whose work nothing saves keep their GPUs: the law ``work-kept``, seen to for all policies alike.

Called by :func:`dlcore.cycle.schedule`. A policy is shown neither these jobs nor their GPUs, so that
no policy has to think of them. They give their GPUs up where a law demands it (they are suspended,
their node is lost, their spec changes), and to a job of higher priority that finds no room otherwise:
then those go whose stop loses least, and no more of them than that job needs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dlcore import placing
from dlcore.contract import Decision, Share
from dlcore.limits import NamespaceLimits, namespace_of
from dlcore.model import Cause, CauseCode, Cluster, JobId, JobState, Node, NodeName, Snapshot
from dlcore.placing import Placed
from dlcore.rooms import Room, count_usable

_TURN = Cause(CauseCode.ITS_TURN)


def keeps(state: JobState) -> bool:
    """Whether a job with GPUs keeps just these, because a change would lose its work."""
    return state.unsaved_from is not None and state.has_allowed_size


def show_beside(snapshot: Snapshot, kept: Iterable[JobState]) -> Snapshot:
    """Show what is left to decide about besides these jobs: other GPUs, and what limits leave."""
    kept = tuple(kept)
    cluster, limits = _lend(snapshot.cluster, kept), _limits_beside(snapshot.limits, kept)
    return replace(snapshot, cluster=cluster, limits=limits)


def _lend(cluster: Cluster, kept: Iterable[JobState]) -> Cluster:
    """Show the cluster without the GPUs that these jobs keep."""
    taken: dict[NodeName, dict[int, str]] = {}
    for state in kept:
        for node, gpus in state.placement.slices if state.placement is not None else ():
            taken.setdefault(node, {}).update(dict.fromkeys(gpus, f"job {state.id} keeps it"))
    return Cluster(
        _without(node, taken[node.name]) if node.name in taken else node for node in cluster.nodes
    )


def _without(node: Node, taken: Mapping[int, str]) -> Node:
    gpus = tuple(
        replace(gpu, unavailable_because=gpu.unavailable_because or taken[gpu.index])
        if gpu.index in taken
        else gpu
        for gpu in node.gpus
    )
    return replace(node, gpus=gpus)


def _limits_beside(limits: NamespaceLimits, kept: Iterable[JobState]) -> NamespaceLimits:
    """Say what namespaces may have besides what these jobs keep."""
    if not limits.max_gpus:
        return limits
    held: dict[str, int] = {}
    for state in kept:
        if state.placement is not None:
            namespace = namespace_of(state.id)
            held[namespace] = held.get(namespace, 0) + state.placement.gpus
    return limits.less(held)


@dataclass(frozen=True, slots=True)
class Settled:
    """What a decision came to among the jobs that it was about, before anybody is outranked."""

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
    settled: Settled, waiting: Iterable[JobState], cluster: Cluster, now: float
) -> tuple[Decision, Placed]:
    """
    Let the first job of those that wait have GPUs of kept jobs of a lower priority.

    Everything stays as it was settled if none waits that is worth more than a kept one, or if it
    would find no room even so.
    """
    kept, unchanged = settled.kept, (settled.decision, settled.placed)
    lowest = min(state.job.priority for state in kept)
    started = settled.placed.wanted.keys()
    urgent = [s for s in waiting if s.job.priority > lowest and s.id not in started]
    if not urgent:
        return unchanged
    first = min(urgent, key=lambda state: (-state.job.priority, state.order))
    lower = sorted(
        (state for state in kept if state.job.priority < first.job.priority),
        key=lambda state: (state.job.priority, state.unsaved_at(now), -state.order),
    )
    room = Room(cluster, [s.placement for s in settled.placements() if s.placement is not None])
    victims = _choose_victims(first, lower, room, cluster)
    if not victims:
        return unchanged
    return _place_anew(settled, first, victims, cluster) or unchanged


def _choose_victims(
    first: JobState, lower: Iterable[JobState], room: Room, cluster: Cluster
) -> set[JobId]:
    """Take from these, in this order, until the job fits; and give back what was not needed."""
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
    settled: Settled, first: JobState, victims: Collection[JobId], cluster: Cluster
) -> tuple[Decision, Placed] | None:
    """Place what was decided once more, with this job in the place of its victims."""
    shares = dict(settled.decision.shares)
    for state in settled.kept:
        if state.id not in victims and state.placement is not None:
            shares[state.id] = Share(state.placement.gpus)
    shares[first.id] = Share(first.least, _TURN)
    decision = replace(settled.decision, shares=shares)
    newcomers = [state for state in settled.newcomers if state.id != first.id]
    everybody = tuple(sorted((*settled.running, *settled.kept), key=lambda state: state.order))
    placed = placing.place(decision, everybody, (*newcomers, first), cluster)
    # Only this job may profit from what the victims give up.
    stopped = {ref for s in placed.stopped if s.id in victims for ref in _refs(s)}
    takers = {
        job for job, want in placed.wanted.items() if not stopped.isdisjoint(want.placement.refs())
    }
    return (decision, placed) if takers == {first.id} else None


def _refs(state: JobState) -> tuple[object, ...]:
    return state.placement.refs() if state.placement is not None else ()

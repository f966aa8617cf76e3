"""
The difference between what runs and what should run, as a list of steps.

Called by :func:`dljob.core.cycle.schedule` after placing, in production and in the simulator alike.
Nothing here touches a cluster: the steps are values. The control loop and the simulator carry them
out; they release GPUs before they give them away, and initialise a newcomer before they stop its
victim. The steps say for this which job waits for which.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dljob.core.model import Cause, CauseCode, GpuRef, JobId, JobState, Placement, Snapshot
from dljob.core.placement.limits import Use
from dljob.core.queues import Queue


@dataclass(frozen=True, slots=True)
class Start:
    """Give a pending job its GPUs."""

    job: JobId
    placement: Placement
    cause: Cause
    after: tuple[JobId, ...] = ()
    """The jobs that must release GPUs first. The job's pods are initialised meanwhile."""
    gang: int = 0
    """More GPUs than the placement holds if a baseline starts gangs in parts."""
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Other GPUs for a job that has some: a :class:`Reshape` or a :class:`Move`."""

    job: JobId
    old: Placement
    new: Placement
    cause: Cause
    after: tuple[JobId, ...] = ()
    gang: int = 0
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class Reshape(Change):
    """The job keeps a node: its process restarts, the pod there stays."""


@dataclass(frozen=True, slots=True)
class Move(Change):
    """The job changes its nodes altogether: new pods are needed before it can go on."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Take all GPUs from a job, which writes a checkpoint and goes back to the queue."""

    job: JobId
    old: Placement
    cause: Cause


@dataclass(frozen=True, slots=True)
class Wait:
    """The reason why a pending job waits: a step only when the reason has changed."""

    job: JobId
    cause: Cause


Step = Start | Reshape | Move | Stop | Wait


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps to take now, in an order in which GPUs are released before they are given."""

    steps: tuple[Step, ...] = ()
    considered: int = 0
    """How many pending jobs the policy could look at."""
    wake_at: float | None = None
    """The latest time for the next call of the policy."""
    policy_state: object = None
    is_partial: bool = False
    """True if some pending jobs are still undecided."""
    worths: Mapping[JobId, float] = field(default_factory=dict, compare=False, repr=False)
    """The worth of a GPU to each job, where the policy states it; for the reasons that people read."""
    use: Use = Use()
    """The GPU time of users, where they are owed shares; else until 0."""

    def first(self, most: int, *, urgent: Collection[CauseCode] = ()) -> "Plan":
        """
        Take the first steps only, which are sound without the others.

        Always include the waits with an urgent reason, which depend on no other step.
        """
        if len(self.steps) <= most:
            return self
        waits: list[Step] = []
        others: list[Step] = []
        for step in self.steps:
            is_urgent = isinstance(step, Wait) and step.cause.code in urgent
            (waits if is_urgent else others).append(step)
        return self if len(others) <= most else replace(self, steps=(*waits, *others[:most]))


def count_after(running: Iterable[JobState], steps: Iterable[Step]) -> dict[JobId, int]:
    """Return how many GPUs each job has after these steps, with those that a gang still waits for."""
    gpus = {s.id: max(s.gang, s.placement.gpus) for s in running if s.placement is not None}
    for step in steps:
        if isinstance(step, Stop):
            gpus.pop(step.job, None)
        elif not isinstance(step, Wait):
            whole = step.placement if isinstance(step, Start) else step.new
            gpus[step.job] = max(step.gang, whole.gpus)
    return gpus


def settle(snapshot: Snapshot, steps: Sequence[Step]) -> Snapshot:
    """Return the snapshot as if these steps had been taken."""
    placed = {
        step.job: step.placement if isinstance(step, Start) else step.new
        for step in steps
        if isinstance(step, Start | Reshape | Move)
    }
    stopped = {step.job for step in steps if isinstance(step, Stop)}
    if not placed and not stopped:
        return snapshot
    states = (*snapshot.running, *snapshot.pending)
    changed = [
        replace(state, placement=placed.get(state.id), speed=0.0, adjusting=True)
        if state.id in placed or state.id in stopped
        else state
        for state in sorted(states, key=lambda state: state.order)
    ]
    return replace(
        snapshot,
        running=tuple(state for state in changed if state.placement is not None),
        pending=tuple(state for state in changed if state.placement is None),
    )


class Wanted(NamedTuple):
    """The result of placing one share: the job's placement, and why."""

    placement: Placement
    cause: Cause
    gang: int = 0
    batch_size: int | None = None


def diff(
    snapshot: Snapshot,
    wanted: Mapping[JobId, Wanted],
    *,
    changed: Sequence[JobState],
    stopped: Mapping[JobState, Cause],
    waits: Mapping[JobId, Cause],
    wait: Cause | None,
) -> tuple[Step, ...]:
    """
    Return the steps that turn what is decided now into ``wanted``.

    ``wanted`` holds the differences: the jobs ``changed``, and the started ones. Its order is
    the order in which placing gave GPUs away; it is kept, because a job may have been given what
    an earlier one left. The others wait for the reason in ``waits``, or for ``wait``; where there is
    no such reason, they get none.
    """
    steps: list[Step] = []
    if wanted or stopped:
        steps.extend(_iter_changes(wanted, changed, stopped=stopped))
    steps.extend(_iter_waits(snapshot.queue, wanted, waits=waits, wait=wait))
    return tuple(steps)


def _iter_changes(
    wanted: Mapping[JobId, Wanted],
    changed: Sequence[JobState],
    *,
    stopped: Mapping[JobState, Cause],
) -> Iterator[Step]:
    there = {state.id for state in changed}
    started = [job for job in wanted if job not in there]
    receivers = _find_receivers(wanted, changed, started=started)
    holders = _find_holders(stopped, changed)
    for state, cause in stopped.items():
        assert state.placement is not None
        named = _name_receiver(cause, state.placement, new=None, receivers=receivers)
        yield Stop(state.id, state.placement, named)
    # Shrinking comes before growing: on a full cluster the growing job gets the shrinking one's GPUs.
    growing: dict[JobId, JobState] = {}
    for state in changed:
        assert state.placement is not None
        old, new = state.placement, wanted[state.id].placement
        if new.gpus < old.gpus and set(new.refs()) <= set(old.refs()):
            yield _make_change(state, wanted[state.id], holders=holders, receivers=receivers)
        else:
            growing[state.id] = state
    takers = growing.keys() | set(started)
    for job, want in wanted.items():
        if job in growing:
            yield _make_change(growing[job], want, holders=holders, receivers=receivers)
        elif job in takers:
            after = _find_waited_for(job, want.placement, old=None, holders=holders)
            yield Start(job, want.placement, want.cause, after, want.gang, want.batch_size)


def _make_change(
    state: JobState,
    want: Wanted,
    *,
    holders: Mapping[GpuRef, JobId],
    receivers: Mapping[GpuRef, JobId],
) -> Reshape | Move:
    old, new = state.placement, want.placement
    assert old is not None
    cause = _name_receiver(want.cause, old, new=new, receivers=receivers)
    kind = Reshape if set(old.nodes) & set(new.nodes) else Move
    return kind(
        job=state.id,
        old=old,
        new=new,
        cause=cause,
        after=_find_waited_for(state.id, new, old=old, holders=holders),
        gang=want.gang,
        batch_size=want.batch_size,
    )


def _find_receivers(
    wanted: Mapping[JobId, Wanted], changed: Iterable[JobState], *, started: Iterable[JobId]
) -> dict[GpuRef, JobId]:
    """Return the new owner of every GPU that a job newly gets."""
    receivers: dict[GpuRef, JobId] = {}
    for job in started:
        receivers.update(dict.fromkeys(wanted[job].placement.refs(), job))
    for state in changed:
        assert state.placement is not None
        old = set(state.placement.refs())
        new = wanted[state.id].placement.refs()
        receivers.update((ref, state.id) for ref in new if ref not in old)
    return receivers


def _find_holders(stopped: Iterable[JobState], changed: Iterable[JobState]) -> dict[GpuRef, JobId]:
    """Return the present owner of every GPU of a job that is stopped or changed."""
    holders: dict[GpuRef, JobId] = {}
    for state in (*stopped, *changed):
        assert state.placement is not None
        holders.update(dict.fromkeys(state.placement.refs(), state.id))
    return holders


def _find_waited_for(
    job: JobId, new: Placement, *, old: Placement | None, holders: Mapping[GpuRef, JobId]
) -> tuple[JobId, ...]:
    kept = set(old.refs()) if old is not None else set()
    others = (holders.get(ref) for ref in new.refs() if ref not in kept)
    return tuple(dict.fromkeys(other for other in others if other is not None and other != job))


def _name_receiver(
    cause: Cause, old: Placement, *, new: Placement | None, receivers: Mapping[GpuRef, JobId]
) -> Cause:
    """Return the cause with the job that gets the lost GPUs, if the cause needs one."""
    if cause.code not in (CauseCode.MAKES_ROOM, CauseCode.OUTRANKED, CauseCode.FAIR_SHARE):
        return cause
    kept = set(new.refs()) if new is not None else set()
    for ref in old.refs():
        if ref not in kept and ref in receivers:
            return cause._replace(job=receivers[ref])
    return cause


def _told(states: Iterable[JobState]) -> Cause | None:
    """Return the reason for waiting if all of these jobs have the same."""
    causes = {state.waiting for state in states}
    return causes.pop() if len(causes) == 1 else None


def _iter_waits(
    queue: Queue[JobState],
    wanted: Mapping[JobId, Wanted],
    *,
    waits: Mapping[JobId, Cause],
    wait: Cause | None,
) -> Iterator[Wait]:
    if wait is None:
        for state in queue.select(waits.keys()).values():
            if state.waiting != waits[state.id] and state.id not in wanted:
                yield Wait(state.id, waits[state.id])
        return
    # Hot path of every replay: thousands of jobs wait, nearly all for the same reason.
    # Compare causes by value: after a restart the last reported cause is a different object.
    untold = [s for b in queue.blocks if b.ask(_told) != wait for s in b if s.waiting != wait]
    if waits:
        others = queue.select(waits.keys())
        untold += [state for state in others.values() if state.waiting == wait]
    for state in untold:
        cause = waits.get(state.id, wait)
        if state.waiting != cause and state.id not in wanted:
            yield Wait(state.id, cause)

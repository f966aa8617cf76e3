"""
One decision: from a snapshot to a checked plan, in five numbered steps.

Production and simulator both call :func:`schedule`. Same snapshot, same policy: same plan.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from dljob.core import checking, keeping, planning, sharing
from dljob.core.checking import Law
from dljob.core.contract import Decision, Policy, Share, View
from dljob.core.model import Cause, CauseCode, Cluster, GpuRef, JobId, JobState, NodeName, Snapshot
from dljob.core.placement import allotting, largest, placing
from dljob.core.placement.allotting import Allotted
from dljob.core.placement.needs import Needs
from dljob.core.placement.placing import Placed
from dljob.core.planning import Plan
from dljob.core.predicting.predictor import Predictor
from dljob.core.queues import FEW, Queue

ATTEMPTS = 4
"""Maximum number of policy calls in one decision when shares cannot be placed."""

_OUTRANKED = Cause(CauseCode.OUTRANKED)
_SPEC_CHANGED = Cause(CauseCode.SPEC_CHANGED)
_QUEUE_QUOTA = Cause(CauseCode.QUEUE_QUOTA)


def schedule(snapshot: Snapshot, policy: Policy, *, enough: int = 0) -> Plan:
    """
    Decide what shall happen now. Raises :class:`dljob.core.checking.BrokenLaw`, never returns it.

    ``enough`` newcomers suffice for a caller that takes only the first steps; 0: all.
    """
    if not any(snapshot.limits.shares.values()):
        return _schedule(snapshot, policy, enough=enough)

    def decide(each: Snapshot, enough: int = 0) -> Plan:
        return _schedule(each, policy, enough=enough)

    return sharing.share_out(snapshot, decide, enough=enough)


def _schedule(snapshot: Snapshot, policy: Policy, *, enough: int = 0) -> Plan:
    cluster = snapshot.cluster

    # 1. Find the runnable jobs: the policy does not see the others, which wait or stop.
    stop = find_ending(snapshot.running, cluster, policy=policy)
    running = tuple(s for s in snapshot.running if s.id not in stop) if stop else snapshot.running
    pending, set_aside = find_runnable(snapshot.queue, cluster)
    kept = tuple(filter(keeping.remains, running))
    rigid = tuple(filter(keeping.keeps, kept))

    # 2. and 3. Share out the GPUs. Ask the policy twice if its first answer loses a job's work.
    shown = tuple(map(keeping.show_rigid, running)) if kept else running
    behind = (
        _find_behind(snapshot, running, pending=pending, kept=rigid) if rigid and pending else {}
    )
    made = _decide(
        snapshot, shown, pending=leave_out(pending, behind), policy=policy, enough=enough
    )
    made = made._replace(set_aside={**behind, **made.set_aside}) if behind else made
    if kept and keeping.find_lost(made.placed, kept):
        made = _decide_beside(
            snapshot,
            running,
            pending=pending,
            policy=policy,
            enough=enough,
            kept=kept,
            wanted=made.placed,
        )
    decision, placed = made.decision, made.placed

    # 4. Plan the steps.
    set_aside = {**placed.unplaced, **set_aside, **made.set_aside}
    stopped = _name_causes(snapshot.running, placed, ending=stop)
    waits = {**decision.waits, **set_aside} if set_aside else decision.waits
    wait = None if made.is_partial else decision.wait
    steps = planning.diff(
        snapshot, placed.wanted, changed=placed.changed, stopped=stopped, waits=waits, wait=wait
    )
    plan = Plan(
        steps, made.considered, decision.wake_at, decision.state, made.is_partial, decision.worths
    )

    # 5. Check the plan against the laws.
    checking.check(plan, snapshot, policy=policy.name, breaks=policy.breaks)
    return plan


class _Made(NamedTuple):
    """The result of asking a policy."""

    decision: Decision
    placed: Placed
    newcomers: tuple[JobState, ...]
    """The waiting jobs that have a share, as the policy saw them."""
    waiting: Queue[JobState]
    """All waiting jobs that the policy saw."""
    set_aside: Mapping[JobId, Cause]
    considered: int
    is_partial: bool


def _decide(
    snapshot: Snapshot,
    running: tuple[JobState, ...],
    *,
    pending: Queue[JobState],
    policy: Policy,
    enough: int,
    beside: tuple[JobState, ...] = (),
) -> _Made:
    """Ask the policy about these jobs, and place its shares."""
    vain_before: dict[JobId, Cause] = {}
    attempts = ATTEMPTS
    while True:
        # 2. Choose the number of GPUs of each job: only this step differs between policies.
        allotted = allotting.allot(running, pending, limits=snapshot.limits)
        decision = policy.allocate(show(snapshot, allotted, enough, beside=beside))
        decision = fit_to_spec(decision, allotted.running)
        decision = allotting.keep_within(decision, allotted, limits=snapshot.limits)

        # 3. Choose the GPUs.
        new = decision.shares.keys() - {state.id for state in running}
        newcomers = allotted.pending.select(new)
        placed = placing.place(decision, running, tuple(newcomers.values()), snapshot.cluster)
        # A policy may have counted on GPUs that these jobs cannot get and others could use.
        vain = {
            job: cause
            for job, cause in placed.unplaced.items()
            if newcomers[job].needs is not None or job in allotted.allotments
        }
        attempts -= 1
        is_partial = decision.is_partial and len(placed.wanted) > len(placed.changed)
        if enough and decision.is_partial and (placed.unplaced or not is_partial):
            # Jobs that could start in place of the unplaced ones may be among the others.
            enough, attempts = 0, attempts + 1
            continue
        if not vain or not attempts:
            break
        # The policy counted on unavailable GPUs; other jobs may use the GPUs that it held back.
        vain_before |= vain
        pending = leave_out(pending, vain)
    return _Made(
        decision,
        placed,
        tuple(newcomers.values()),
        allotted.pending,
        {**vain_before, **allotted.set_aside},
        len(pending),
        is_partial,
    )


def _decide_beside(
    snapshot: Snapshot,
    running: tuple[JobState, ...],
    *,
    pending: Queue[JobState],
    policy: Policy,
    enough: int,
    kept: tuple[JobState, ...],
    wanted: Placed,
) -> _Made:
    """
    Ask the policy once more without the jobs that keep their GPUs, because it would stop some.

    A job of higher priority for which the policy wanted such GPUs gets them all the same.
    """
    others = tuple(state for state in running if not keeping.remains(state))
    shown = keeping.show_beside(snapshot, kept)
    beside = _look_beside(shown, others, pending=pending, kept=kept)
    rest, crowded, behind = beside.rest, beside.crowded, beside.behind
    made = _decide(
        shown,
        others,
        pending=leave_out(rest, behind),
        policy=policy,
        enough=enough,
        beside=kept,
    )
    roomless = pending.select(beside.found).values()
    aside = {state.id: Cause(CauseCode.NO_ROOM, gpus=state.least) for state in roomless}
    made = made._replace(set_aside={**aside, **behind, **made.set_aside})

    settled = keeping.Settled(made.decision, made.placed, others, kept, made.newcomers)
    urgent = keeping.find_urgent((*made.waiting, *crowded), wanted, kept=kept)
    decision, placed = keeping.outrank(settled, urgent, snapshot=snapshot)
    return made._replace(decision=decision, placed=placed)


class _Beside(NamedTuple):
    """The jobs that wait while others keep their GPUs."""

    rest: Queue[JobState]
    found: Collection[JobId]
    """Jobs that would have room but for the kept GPUs. They are set aside, because a policy could not place them."""
    crowded: tuple[JobState, ...]
    """The ones that are within the limits of their namespaces."""
    behind: Mapping[JobId, Cause]
    """The jobs that wait behind one of these."""


def _look_beside(
    shown: Snapshot,
    others: tuple[JobState, ...],
    *,
    pending: Queue[JobState],
    kept: tuple[JobState, ...],
) -> _Beside:
    rest, found = find_runnable(pending, shown.cluster)
    entitled = allotting.allot(others, pending, limits=shown.limits).pending
    crowded = tuple(entitled.select(found.keys()).values())
    behind = keeping.hold_back(rest, crowded, kept=kept, now=shown.now) if crowded else {}
    return _Beside(rest, found.keys(), crowded, behind)


def _find_behind(
    snapshot: Snapshot,
    running: tuple[JobState, ...],
    *,
    pending: Queue[JobState],
    kept: tuple[JobState, ...],
) -> Mapping[JobId, Cause]:
    """
    Return the jobs that wait behind one that needs GPUs which others keep.

    It would give idle GPUs to newer jobs, which keep them in their turn.
    """
    others = tuple(state for state in running if not keeping.keeps(state))
    return _look_beside(
        keeping.show_beside(snapshot, kept), others, pending=pending, kept=kept
    ).behind


def show(
    snapshot: Snapshot,
    allotted: Allotted,
    enough: int = 0,
    *,
    beside: tuple[JobState, ...] = (),
) -> View:
    """Make the policy's view."""
    if snapshot.whole is not None:
        shown = {state.id for state in snapshot.running}
        beside += tuple(state for state in snapshot.whole.running if state.id not in shown)
    return View(
        now=snapshot.now,
        cluster=snapshot.cluster,
        running=allotted.running,
        pending=allotted.pending,
        predictor=Predictor.of(snapshot),
        seed=snapshot.seed,
        state=snapshot.policy_state,
        enough=enough,
        beside=beside,
        find_there=snapshot.find_there,
    )


def fit_to_spec(decision: Decision, running: Iterable[JobState]) -> Decision:
    """
    Let those change that would keep a number of GPUs that their user, or the quota of their queue, no longer allows.

    They go to the next lower allowed number, which is available at once, or else to the next higher
    one. Only a job that finds no room for that loses all, so that an edit costs a reshape and no pod. A policy
    that has chosen an allowed number itself does not know that the user is the reason, which is said here.
    """
    fitted: dict[JobId, Share] = {}
    for state in running:
        # Hot path of every replay: nearly always there is nothing more to do.
        if state.has_allowed_size:
            continue
        share, options = decision.shares.get(state.id), state.job.gpus.options
        cause = _why_not_allowed(state)
        if share is not None and share.gpus not in options:
            lower = [n for n in options if n < share.gpus]
            fitted[state.id] = Share(lower[-1] if lower else state.least, cause)
        elif share is not None:
            fitted[state.id] = share._replace(cause=cause)
    return replace(decision, shares={**decision.shares, **fitted}) if fitted else decision


def _why_not_allowed(state: JobState) -> Cause:
    """Return why a job may not keep its number of GPUs."""
    return _QUEUE_QUOTA if state.exceeds_quota else _SPEC_CHANGED


def _name_causes(
    running: tuple[JobState, ...], placed: Placed, *, ending: Mapping[JobId, Cause]
) -> dict[JobState, Cause]:
    """Return the reason for each job that loses all its GPUs."""
    stopped = dict.fromkeys(placed.stopped, _OUTRANKED)
    for state in running:
        if state.id in ending:
            stopped[state] = ending[state.id]
        elif not state.has_allowed_size and state.id not in placed.wanted:
            # The job's allowed numbers of GPUs have changed, and none of them fits.
            stopped[state] = _why_not_allowed(state)
    return stopped


def find_ending(
    running: tuple[JobState, ...], cluster: Cluster, *, policy: Policy
) -> dict[JobId, Cause]:
    """
    Find the jobs that no decision of a policy can let keep their GPUs, with the reason.

    A platform normally takes a lost node from its jobs before, and never reports two jobs on one
    GPU; this check ensures that no decision relies on impossible data, and that one inconsistent
    job does not stop the decisions for all others.
    """
    ending = _find_second_masters(running)
    for state in running:
        placement = state.placement
        assert placement is not None
        if state.job.suspend:
            ending[state.id] = Cause(CauseCode.SUSPENDED)
        elif state.lacks_quota:
            ending[state.id] = _QUEUE_QUOTA
        elif not cluster.has(placement):
            are_there = all(node in cluster.devices for node in placement.nodes)
            ending[state.id] = Cause(CauseCode.GPUS_GONE if are_there else CauseCode.NODE_LOST)
        elif state.gang > placement.shape.gpus and Law.WHOLE_GANG not in policy.breaks:
            # Another policy started the gang in part; under this one it would never be complete.
            ending[state.id] = Cause(CauseCode.GANG_INCOMPLETE, gpus=state.gang)
        elif not state.may_be_at(placement) or (state.gang and not state.has_allowed_size):
            ending[state.id] = _why_not_allowed(state)
    return ending


def _find_second_masters(running: tuple[JobState, ...]) -> dict[JobId, Cause]:
    """Return the later job of each pair that has the same GPU, with the reason."""
    held, busy = 0, dict[NodeName, set[int]]()
    for state in running:
        if state.placement is not None:
            held += state.placement.shape.gpus
            for node, gpus in state.placement.slices:
                busy.setdefault(node, set()).update(gpus)
    if held == sum(map(len, busy.values())):
        return {}
    owners: dict[GpuRef, JobId] = {}
    ending: dict[JobId, Cause] = {}
    for state in running:
        refs = state.placement.refs() if state.placement is not None else ()
        first = next((owners[ref] for ref in refs if ref in owners), None)
        if first is None:
            owners.update(dict.fromkeys(refs, state.id))
        else:
            ending[state.id] = Cause(CauseCode.TWO_MASTERS, first)
    return ending


def find_runnable(
    pending: Queue[JobState], cluster: Cluster
) -> tuple[Queue[JobState], dict[JobId, Cause]]:
    """
    Split off the jobs that cannot run now under any policy, with the reason.

    A job too large for the cluster as it is today may fit again when a lost node is back, so it
    waits rather than fails.
    """
    # Usually every node takes every job. Check only the other jobs one by one,
    # because thousands may wait at every event of a replay.
    surely = min(cluster.largest_node.values(), default=0)
    blocks = [block for block in pending.blocks if block.ask(_most_needed) > surely]
    odd = [state for block in blocks for state in block if state.least > surely or state.picky]
    odd += _find_roomless(pending, surely, cluster=cluster)
    set_aside = {state.id: cause for state in odd if (cause := _why_not_runnable(state, cluster))}
    return leave_out(pending, set_aside), set_aside


def leave_out(pending: Queue[JobState], jobs: Collection[JobId]) -> Queue[JobState]:
    """Return the queue without these jobs. If they are few, reuse the blocks that hold none."""
    if not jobs:
        return pending
    if len(jobs) > FEW:
        return Queue.of(state for state in pending if state.id not in jobs)
    for state in pending.select(jobs).values():
        pending = pending.drop(state)
    return pending


def _find_roomless(pending: Queue[JobState], surely: int, *, cluster: Cluster) -> list[JobState]:
    """Find the jobs with too little room for their pods, checking jobs with equal needs once."""
    if not cluster.free:
        return []
    verdicts: dict[tuple[Needs, int], bool] = {}
    roomless: list[JobState] = []
    for block in pending.blocks:
        kinds = block.ask(_kinds_of_needs)
        for kind, example in kinds.items():
            if kind not in verdicts:
                verdicts[kind] = example.least > largest.largest_at_present(example, cluster)
        if any(verdicts[kind] for kind in kinds):
            alike = (s for s in block if s.needs is not None and not s.picky and s.least <= surely)
            roomless += [state for state in alike if verdicts[state.needs, state.least]]  # type: ignore[index]
    return roomless


def _kinds_of_needs(states: Iterable[JobState]) -> dict[tuple[Needs, int], JobState]:
    """Return one job of each group with equal needs, and every job with other constraints."""
    return {
        (state.needs, state.least): state
        for state in states
        if state.needs is not None and not state.picky
    }


def _most_needed(states: Iterable[JobState]) -> float:
    """Return the largest minimum of GPUs; infinite if a job cannot use every node."""
    return max(math.inf if state.picky else state.least for state in states)


def _why_not_runnable(state: JobState, cluster: Cluster) -> Cause | None:
    if state.job.suspend:
        return Cause(CauseCode.SUSPENDED)
    least = state.least
    if state.lacks_quota:
        return Cause(CauseCode.QUEUE_QUOTA, gpus=least)
    if least > largest.largest_possible(state, cluster):
        code = CauseCode.TOO_LARGE
        if least <= largest.largest_possible(replace(state, needs=None), cluster):
            code = CauseCode.POD_FITS_NOWHERE
        elif least <= largest.largest_possible(replace(state, bound_to=()), cluster):
            # The node of its checkpoint is cordoned, gone, or lacks GPUs that others have.
            code = CauseCode.CHECKPOINT_ELSEWHERE
        return Cause(code, gpus=least)
    if least > largest.largest_at_present(state, cluster):
        return Cause(CauseCode.NO_ROOM_FOR_POD, gpus=least)
    return None

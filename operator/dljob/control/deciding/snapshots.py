"""Makes the snapshot for a decision from a scene, and statuses from a plan.

The brain knows jobs, nodes and decisions. It does not see the reports of SideCars, or which GPUs
are still physically held, with one exception: this module marks a GPU as unavailable, with the
reason, if a pod without an answering SideCar may hold it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from typing import Final

from dljob.control.gpus.marking import marked
from dljob.control.judging.checkpoints import is_declared, keeps_first, risked_from, unsaved_from
from dljob.control.judging.conditions import BORROWED, OWED, tell_of_quota
from dljob.control.judging.progress import is_changing, progress_of, total_iterations
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import UNSCHEDULABLE, Entry, PodPhase
from dljob.control.situation.process_sets import find_intact
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.scene import SILENT_S, Scene
from dljob.control.situation.status import Condition, ConditionType, Status, Trust
from dljob.core import lifecycle, sharing
from dljob.core.assuming import Assumptions
from dljob.core.contract import Policy
from dljob.core.explaining import sentences as explaining
from dljob.core.lifecycle import Event
from dljob.core.model import (
    Cause,
    CauseCode,
    Ceiling,
    Cluster,
    GpuRef,
    JobId,
    JobState,
    Mechanism,
    NodeName,
    Phase,
    Snapshot,
)
from dljob.core.placement import largest
from dljob.core.placement.limits import NamespaceLimits, namespace_of
from dljob.core.placement.needs import Needs
from dljob.core.planning import Move, Plan, Reshape, Start, Step, Stop, Wait
from dljob.core.predicting import learning_curves
from dljob.core.profiles import Costs, JobType, Profile
from dljob.core.queues import Queue

REPORT_S = 30.0
"""An iteration that is late by more than this counts as done only once it is reported."""


def take_snapshot(
    scene: Scene,
    *,
    profiles: Mapping[JobType, Profile],
    costs: Costs,
    quarantine: Quarantine | None = None,
    forecasts: Mapping[JobId, learning_curves.Forecast] | None = None,
    seed: int = 0,
    limits: NamespaceLimits | None = None,
    policy_state: object = None,
) -> Snapshot:
    """Make the snapshot of the jobs that can be decided about and the GPUs that are available."""
    quarantine = quarantine if quarantine is not None else Quarantine()
    running: list[JobState] = []
    pending: list[JobState] = []
    paused: set[JobId] = set()
    kept: dict[GpuRef, str] = {}
    beyond: dict[str, int] = {}
    """The number of GPUs of these jobs by namespace."""
    for job, entry in scene.entries.items():
        # The record of a job holds as long as no newer one can be written.
        if not is_schedulable(scene, entry) and job not in quarantine.unwritable.jobs:
            if entry.may_come_back:
                # No other job can get these GPUs, so they count as used.
                _count(beyond, job, more=len(entry.status.leftover))
            if not entry.is_over:
                paused.add(job)
            continue
        state = None
        if not entry.problem and job not in quarantine.jobs:
            try:
                state = _state_of(scene, entry, forecasts=forecasts or {})
            except Exception as error:  # noqa: BLE001 - one job's data never stops the others
                quarantine.add(job, error)
        if state is not None:
            (running if state.placement is not None else pending).append(state)
            continue
        paused.add(job)
        if entry.status.placement is not None:
            kept |= dict.fromkeys(entry.status.placement.refs(), f"job {job} is set aside")
            _count(beyond, job, more=entry.status.placement.gpus)
    unavailable = kept | find_unproven(scene)
    return Snapshot(
        now=scene.now,
        cluster=Cluster(marked(node, unavailable) for node in scene.nodes.values()),
        running=tuple(sorted(running, key=lambda state: state.order)),
        pending=Queue.of(pending),
        profiles=profiles,
        costs=costs,
        mechanism=scene.mechanism,
        seed=seed,
        limits=(limits or NamespaceLimits()).less(beyond),
        policy_state=policy_state,
        paused=frozenset(paused),
    )


def _count(gpus: dict[str, int], job: JobId, *, more: int) -> None:
    namespace = namespace_of(job)
    gpus[namespace] = gpus.get(namespace, 0) + more


def is_schedulable(scene: Scene, entry: Entry) -> bool:
    """Return True if decisions include the job now."""
    status = entry.status
    if status.is_final or entry.cancelled:
        return False
    if status.placement is not None:
        return True
    # The job can start nowhere until all its processes are proven to have ended.
    # A SideCar that is back and has not reported may show that the job continues as it was.
    return scene.now >= status.retry_at and not any(
        job_pod.pod.phase is PodPhase.LOST or scene.is_awaited(job_pod)
        for job_pod in scene.pods_of(entry.job.id).values()
    )


def count_speeds(entry: Entry, profile: Profile | None) -> int:
    """Return the number of shapes with a known speed of the job, the present one included.

    The first known shape predicts the speed of the others.
    """
    measured = len(profile.speeds) if profile is not None else 0
    return measured or int(entry.status.speed > 0.0)


def _state_of(
    scene: Scene, entry: Entry, *, forecasts: Mapping[JobId, learning_curves.Forecast]
) -> JobState:
    status = entry.status
    trains = status.phase is Phase.RUNNING and status.speed > 0
    at = scene.now
    if trains and status.iterated_at:
        # A hanging job keeps its speed, so its estimate would soon approach the end.
        at = max(status.iterated_at, scene.now - 1.0 / status.speed - REPORT_S)
    checkpoint = entry.job.checkpoint
    # A checkpoint that ends with the pods of the job is gone once these have ended.
    is_anywhere = checkpoint.shared or bool(checkpoint.ends_with_pod and not status.pods)
    is_live = status.live is Trust.CONFIRMED and scene.mechanism is Mechanism.IN_PLACE
    # Processes that stay have the work of a job without a checkpoint, and hand it over to those that join elsewhere.
    is_anywhere = is_anywhere or (is_live and not is_declared(checkpoint))
    counted = max(status.counted_at, status.decided_at)
    predicted, needs = forecasts.get(entry.job.id), _needs_of(scene, entry.job.id)
    # The time up to which GPU time is counted may be later than the iteration; then it is counted back.
    held = status.placement.gpus * (at - counted) if status.placement is not None else 0.0
    progress = progress_of(scene.latest_start(entry.job.id))
    ceiling = scene.ceilings.get(entry.job.id)
    return JobState(
        job=ceiling.over(entry.job) if ceiling is not None else entry.job,
        order=entry.order,
        placement=status.placement,
        iterations_done=float(status.iteration),
        observed_at=at,
        speed=status.speed if trains else 0.0,
        iterations_total=total_iterations(entry.job, predicted and predicted.iterations) or inf,
        iterations_between=predicted and (predicted.low, predicted.high),
        metrics=progress.metrics if progress is not None else {},
        service=status.service + held,
        gang=status.gang,
        adjusting=is_changing(scene, entry),
        started_at=status.started_at,
        waiting=status.cause if status.placement is None else None,
        bound_to=() if is_anywhere else status.bound_to,
        batch_size=status.batch_size,
        needs=needs,
        pods_at=_pods_at(scene, entry.job.id) if needs is not None else (),
        unsaved_from=unsaved_from(entry.job, status, now=scene.now, mechanism=scene.mechanism),
        risked_from=risked_from(entry.job, status),
        keeps_first=keeps_first(entry.job, status, now=scene.now),
        lost_if_stopped=bool(entry.job.checkpoint.ends_with_pod) and status.phase is Phase.RUNNING,
        is_live=is_live,
        ceiling=ceiling,
    )


def _needs_of(scene: Scene, job: JobId) -> Needs | None:
    """Return the needs of a job's pods, without the nodes on which its last pods never answered."""
    needs, avoided = scene.needs.get(job), scene.avoided.get(job)
    if needs is None or not avoided:
        return needs
    allowed = needs.nodes if needs.nodes is not None else frozenset(scene.nodes)
    because = ("where its last SideCars never answered", len(allowed & avoided))
    return Needs(needs.amounts, allowed - avoided, (*needs.refusals, because))


def _pods_at(scene: Scene, job: JobId) -> tuple[NodeName, ...]:
    """Return the nodes where the job has a pod to train in, and so needs no new one."""
    return tuple(
        node
        for node, job_pod in scene.pods_of(job).items()
        if not job_pod.is_leaving and job_pod.pod.reason != UNSCHEDULABLE
    )


# --- GPUs that no job can get --------------------------------------------------------


def find_unproven(scene: Scene) -> dict[GpuRef, str]:
    """Find GPUs that an unresponsive pod may hold and that are not assigned to its job, and those of nodes that
    the controller does not reach."""
    silent = [
        job_pod
        for job_pods in scene.job_pods.values()
        for job_pod in job_pods.values()
        if not _answers(scene, job_pod)
    ]
    unproven = {
        ref: f"job {job_pod.key.job} may still use it, and its SideCar does not answer"
        for job_pod in silent
        for ref in scene.may_hold(job_pod)
        if scene.claims.get(ref) != job_pod.key.job
    }
    unreached = {
        ref: "too many SideCars are silent at once, and none on its node answers"
        for node in scene.unreached
        for ref in (GpuRef(node, gpu.index) for gpu in scene.nodes[node].gpus)
        if ref not in scene.claims
    }
    return unreached | unproven


def _answers(scene: Scene, job_pod: JobPod) -> bool:
    if job_pod.pod.phase is PodPhase.LOST or job_pod.untrusted:
        return False
    if job_pod.contact.reachable:
        return True
    # A pod that was lost with its node and has come back may continue on its GPUs.
    is_decided = scene.entries[job_pod.key.job].status.placement is not None
    return (is_decided or job_pod.is_known) and scene.now - scene.silent_since(job_pod) < SILENT_S


# --- from a plan to statuses --------------------------------------------------------------


def correct_waits(plan: Plan, snapshot: Snapshot, *, scene: Scene) -> Plan:
    """Let jobs wait for room that are too large only without the GPUs of jobs that are set aside or silent."""
    lacking = [s.job for s in plan.steps if isinstance(s, Wait) and s.cause.code in _TOO_LARGE]
    if not lacking:
        return plan
    cluster = Cluster(scene.nodes.values())
    states = _select(snapshot, lacking)
    waits = {
        job: Wait(job, Cause(CauseCode.NO_ROOM, gpus=state.least))
        for job, state in states.items()
        if state.least <= largest.largest_possible(state, cluster)
    }
    return replace(plan, steps=tuple(waits.get(step.job, step) for step in plan.steps))


_TOO_LARGE = frozenset({CauseCode.TOO_LARGE, CauseCode.POD_FITS_NOWHERE})


MOST_RENEWED: Final = 16
"""The number of outdated messages that one decision renews, because each costs a write."""

_NAMES: Final = re.compile(r"[\w/-]+(?:\.[\w-]+)*")


def find_outdated(
    plan: Plan, snapshot: Snapshot, *, scene: Scene, ended: Collection[JobId]
) -> tuple[Wait, ...]:
    """Find the first jobs that go on waiting with a message that names a job which has ended."""
    if not ended:
        return ()
    decided = {step.job for step in plan.steps}
    outdated = (
        Wait(state.id, state.waiting)
        for state in snapshot.pending
        if state.waiting is not None and state.id not in decided
        if any(name in ended for name in _NAMES.findall(scene.entries[state.id].status.message))
    )
    return tuple(islice(outdated, MOST_RENEWED))


def statuses_of(
    plan: Plan, snapshot: Snapshot, *, scene: Scene, policy: Policy
) -> dict[JobId, Status]:
    """Return the new status of each job in the plan."""
    borrowed = sharing.find_borrowed(snapshot, plan) if snapshot.limits.shares else {}
    sentences = explaining.sentences_for(snapshot, plan, borrowed)
    assumptions = Assumptions(snapshot, policy)
    states = _select(snapshot, {step.job for step in plan.steps})
    statuses: dict[JobId, Status] = {}
    for step in plan.steps:
        status = _after(step, scene, sentence=sentences[step.job])
        told = assumptions.of(states[step.job]) if step.job in states else ()
        informed = _informed(status, told, policy=policy)
        statuses[step.job] = status.with_condition(informed, scene.now) if informed else status
    if borrowed:
        statuses |= _iter_lent(statuses, borrowed, scene=scene)
    return statuses


def _iter_lent(
    statuses: Mapping[JobId, Status], borrowed: Mapping[JobId, int], *, scene: Scene
) -> Iterator[tuple[JobId, Status]]:
    """Yield the statuses of the jobs that borrow another number of GPUs than before."""
    for job, lent in borrowed.items():
        status, share = statuses.get(job, scene.entries[job].status), None
        if status.placement is not None:
            told = explaining.describe_lent(lent, status.placement)
            reason = BORROWED if lent else OWED
            share = Ceiling(status.placement.gpus, reason, told)
        after = tell_of_quota(status, share, now=scene.now)
        if after is not status:
            yield job, after


def _select(snapshot: Snapshot, jobs: Collection[JobId]) -> Mapping[JobId, JobState]:
    running = {state.id: state for state in snapshot.running if state.id in jobs}
    return running | snapshot.queue.select(jobs)


def _informed(status: Status, assumptions: Sequence[str], *, policy: Policy) -> Condition | None:
    """Return the condition about assumptions; "no assumptions" is set only if there were some
    before.
    """
    if assumptions:
        return Condition(
            ConditionType.INFORMED, status=False, reason="Assumed", message=". ".join(assumptions)
        )
    if status.condition(ConditionType.INFORMED) is None:
        return None
    known = f"all that {policy.name} uses of the job is known"
    return Condition(ConditionType.INFORMED, status=True, reason="Known", message=known)


def _after(step: Step, scene: Scene, *, sentence: str) -> Status:
    status, now = scene.entries[step.job].status, scene.now
    match step:
        case Wait():
            status = _waiting(status, step)
        case Stop():
            status = _stopped(status, step, scene=scene)
        case Start() | Reshape() | Move():
            status = _changed(status, step, scene=scene)
    status = replace(status, message=sentence)
    scheduled = Condition(
        ConditionType.SCHEDULED,
        status=not isinstance(step, Wait | Stop),
        reason=step.cause.code.value,
        message=sentence,
    )
    return status.with_condition(scheduled, now)


def _waiting(status: Status, step: Wait) -> Status:
    event = Event.SUSPENDED if step.cause.code is CauseCode.SUSPENDED else Event.PASSED_OVER
    return replace(status, phase=lifecycle.advance(status.phase, event), cause=step.cause)


def _stopped(status: Status, step: Stop, *, scene: Scene) -> Status:
    event = Event.SUSPENDED if step.cause.code is CauseCode.SUSPENDED else Event.DISPLACED
    status = status.decided(None, now=scene.now, cause=step.cause)
    started, broken = scene.latest_start(step.job), status.broken
    if len(started) > 1 and any(job_pod.key.node not in scene.nodes for job_pod in started):
        # The processes on the other nodes would wait for the broken ones in their checkpoint.
        broken = max(broken, started[0].start)
    phase = lifecycle.advance(status.phase, event)
    return replace(status, phase=phase, broken=broken, speed=0.0, paused_at=None)


def _changed(status: Status, step: Start | Reshape | Move, *, scene: Scene) -> Status:
    now, was_running = scene.now, status.phase is Phase.RUNNING
    placement = step.placement if isinstance(step, Start) else step.new
    event = Event.PLACED if isinstance(step, Start) else Event.CHANGED
    status = status.decided(
        placement, now=now, gang=step.gang, batch_size=step.batch_size, cause=step.cause
    )
    status = replace(
        status,
        phase=lifecycle.advance(status.phase, event),
        started_at=status.started_at if status.started_at is not None else now,
    )
    start = find_intact(scene, step.job) if scene.mechanism is Mechanism.IN_PLACE else None
    batch_size = status.batch_size or scene.entries[step.job].job.training.batch_size
    if start is None or (start.gpus, start.batch_size) != (frozenset(placement.refs()), batch_size):
        return replace(status, reshapes=status.reshapes + was_running)
    # The job continues on its GPUs: the change of an earlier decision never began.
    is_back = not was_running and status.phase is Phase.ADJUSTING
    return replace(
        start.adopted_by(status, scene.held_by(step.job)),
        phase=lifecycle.advance(status.phase, Event.STARTED) if start.is_running else status.phase,
        reshapes=max(0, status.reshapes - is_back),
    )

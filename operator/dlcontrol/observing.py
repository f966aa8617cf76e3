"""
From a scene to the snapshot that a decision is made from, and from a plan back to statuses.

The brain knows jobs, nodes and what was decided. Which SideCar has said what, and what is still
physically held, is none of its business, with one exception: a GPU that somebody may hold who
cannot be asked is marked as unavailable here, with the reason.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dlcontrol.platforms import Entry, PodPhase
from dlcontrol.records import Condition, ConditionType, Status
from dlcontrol.scene import Scene, Seat
from dlcore import explaining, fitting, lifecycle
from dlcore.lifecycle import Event
from dlcore.model import (
    Cause,
    CauseCode,
    Cluster,
    GpuRef,
    JobId,
    JobState,
    Node,
    Phase,
    Snapshot,
)
from dlcore.planning import Move, Plan, Reshape, Start, Step, Stop, Wait
from dlcore.profiles import AccuracyPoint, Costs, JobType, Profile
from dlcore.queues import Queue

SILENT_S = 10.0
"""A SideCar that was silent for so long is not counted on to release anything soon."""


def take_snapshot(
    scene: Scene,
    *,
    profiles: Mapping[JobType, Profile],
    costs: Costs,
    set_aside: Iterable[JobId] = (),
    forecasts: Mapping[JobId, float] | None = None,
    seed: int = 0,
    policy_state: object = None,
) -> Snapshot:
    """Show the brain the jobs it can decide about, and the GPUs that it can give away."""
    aside = set(set_aside)
    running: list[JobState] = []
    pending: list[JobState] = []
    kept: dict[GpuRef, str] = {}
    for job, entry in scene.entries.items():
        status = entry.status
        if job in aside or entry.problem:
            if status.placement is not None:
                kept |= dict.fromkeys(status.placement.refs(), f"job {job} is set aside")
        elif is_schedulable(entry, scene.now):
            state = _state_of(scene, entry, forecasts or {})
            (running if state.placement is not None else pending).append(state)
    unavailable = kept | _find_unproven(scene)
    return Snapshot(
        now=scene.now,
        cluster=Cluster(_without(node, unavailable) for node in scene.nodes.values()),
        running=tuple(sorted(running, key=lambda state: state.order)),
        pending=Queue.of(sorted(pending, key=lambda state: state.order)),
        profiles=profiles,
        costs=costs,
        mechanism=scene.mechanism,
        seed=seed,
        policy_state=policy_state,
    )


def is_schedulable(entry: Entry, now: float) -> bool:
    """Whether anything is to be decided for the job now."""
    status = entry.status
    if status.is_final or entry.cancelled or entry.problem:
        return False
    return status.placement is not None or now >= status.retry_at


def total_iterations(entry: Entry, forecast: float | None) -> float:
    """How many iterations the job needs in all, as far as anybody knows."""
    if forecast is not None:
        return forecast
    asked = entry.job.training.iterations
    return float(asked) if asked is not None else float("inf")


def forecast(
    entry: Entry, profile: Profile | None, points: Iterable[AccuracyPoint]
) -> fitting.Forecast:
    """Predict when a job that trains to a target will reach it."""
    target = entry.job.training.target
    assert target is not None
    known = profile.accuracy if profile is not None else ()
    return fitting.predict_iterations(
        known, tuple(points), target, asked=entry.job.training.iterations
    )


def _state_of(scene: Scene, entry: Entry, forecasts: Mapping[JobId, float]) -> JobState:
    status = entry.status
    trains = status.phase is Phase.RUNNING and status.speed > 0
    at = status.iterated_at if trains and status.iterated_at else scene.now
    counted = max(status.counted_at, status.decided_at)
    held = status.placement.gpus * max(0.0, at - counted) if status.placement is not None else 0.0
    return JobState(
        job=entry.job,
        order=entry.order,
        placement=status.placement,
        iterations_done=float(status.iteration),
        observed_at=at,
        speed=status.speed if trains else 0.0,
        iterations_total=total_iterations(entry, forecasts.get(entry.job.id)),
        service=status.service + held,
        gang=status.gang,
        adjusting=status.phase in (Phase.INITIALIZED, Phase.ADJUSTING),
        started_at=status.started_at,
        waiting=status.cause if status.placement is None else None,
        bound_to=() if entry.job.checkpoint.shared else status.bound_to,
        batch_size=status.batch_size,
    )


# --- GPUs that nobody can be given --------------------------------------------------------


def _find_unproven(scene: Scene) -> dict[GpuRef, str]:
    """GPUs that a pod may hold which does not answer, and that are not decided for its job."""
    silent = [
        seat
        for seats in scene.seats.values()
        for seat in seats.values()
        if not _answers(scene, seat)
    ]
    return {
        ref: f"job {seat.key.job} may still use it, and its SideCar does not answer"
        for seat in silent
        for ref in scene.may_hold(seat)
        if scene.claims.get(ref) != seat.key.job
    }


def _answers(scene: Scene, seat: Seat) -> bool:
    if seat.pod.phase is PodPhase.LOST:
        return False
    return seat.contact.reachable or scene.now - seat.contact.since < SILENT_S


def _without(node: Node, unavailable: Mapping[GpuRef, str]) -> Node:
    """Mark what cannot be given away; the same object comes back where nothing is."""
    marked = {}
    for gpu in node.gpus:
        because = unavailable.get(GpuRef(node.name, gpu.index), "")
        if because and not gpu.unavailable_because:
            marked[gpu.index] = replace(gpu, unavailable_because=because)
    if not marked:
        return node
    return replace(node, gpus=tuple(marked.get(gpu.index, gpu) for gpu in node.gpus))


# --- from a plan to statuses --------------------------------------------------------------


def statuses_of(
    plan: Plan, snapshot: Snapshot, entries: Mapping[JobId, Entry]
) -> dict[JobId, Status]:
    """Say what each step of the plan makes of the status of its job."""
    return {
        step.job: _after(
            step, entries[step.job], explaining.sentence_for_step(snapshot, step), snapshot.now
        )
        for step in plan.steps
    }


def _after(step: Step, entry: Entry, sentence: str, now: float) -> Status:
    status = entry.status
    if isinstance(step, Wait):
        return _waiting(status, step.cause, sentence, now)
    if isinstance(step, Stop):
        status = status.decided(None, now=now, cause=step.cause)
        event = Event.SUSPENDED if step.cause.code is CauseCode.SUSPENDED else Event.DISPLACED
        status = replace(status, speed=0.0)
    else:
        placement = step.placement if isinstance(step, Start) else step.new
        grows = isinstance(step, Reshape | Move) and status.phase is Phase.RUNNING
        status = status.decided(
            placement, now=now, gang=step.gang, batch_size=step.batch_size, cause=step.cause
        )
        status = replace(status, reshapes=status.reshapes + grows)
        event = Event.PLACED if isinstance(step, Start) else Event.CHANGED
    status = replace(status, phase=lifecycle.advance(status.phase, event), message=sentence)
    return status.with_condition(_scheduled(step, sentence), now)


def _waiting(status: Status, cause: Cause, sentence: str, now: float) -> Status:
    event = Event.SUSPENDED if cause.code is CauseCode.SUSPENDED else Event.PASSED_OVER
    status = replace(
        status, phase=lifecycle.advance(status.phase, event), cause=cause, message=sentence
    )
    return status.with_condition(_scheduled(Wait(JobId(""), cause), sentence), now)


def _scheduled(step: Step, sentence: str) -> Condition:
    has_gpus = not isinstance(step, Wait | Stop)
    return Condition(
        ConditionType.SCHEDULED, status=has_gpus, reason=step.cause.code.value, message=sentence
    )

"""Records the progress of a job by the reports of its SideCars, and adds up its GPU time.

These figures change in every cycle. They are shown and used at once, but written only with the next
record that has other changes, or when :func:`count_every` has passed.
"""

from collections.abc import Sequence
from dataclasses import replace

from dljob.control.judging.checkpoints import count_laps, note_loss
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Condition, ConditionType, Status
from dljob.core.measuring import FIRST_STEP_S, Resumption
from dljob.core.model import Direction, Job, Phase, Target
from dljob_wire.kinds import LARGEST_WHOLE
from dljob_wire.messages import Progress

COUNT_EVERY_S = 30.0
"""The interval at which GPU-seconds and progress are written: every record costs a write."""
COUNTS_PER_S = 2.0
"""The average number of jobs counted each second; with many jobs each is counted less often."""

_LONGEST_LAP = 1.1
"""Laps may differ by this factor."""


def count_every(jobs: int) -> float:
    """Return the interval between counts when this number of jobs holds GPUs."""
    return max(COUNT_EVERY_S, jobs / COUNTS_PER_S)


def counted(status: Status, now: float, *, is_held: bool, every: float = COUNT_EVERY_S) -> Status:
    """Add the GPU-seconds since the last count, when it is time again."""
    since = max(status.counted_at, status.decided_at)
    if status.placement is None or not is_held or now - since < every:
        return status
    service = status.service + status.placement.gpus * (now - since)
    return replace(status, service=service, counted_at=now)


def total_iterations(job: Job, forecast: float | None) -> float:
    """Return how many iterations the job needs in total; 0 if unknown."""
    return forecast if forecast is not None else float(job.training.iterations or 0)


def follow_progress(
    status: Status, job: Job, *, started: Sequence[JobPod], now: float, forecast: float | None
) -> Status:
    """Take over the progress of the latest start, which the job's leader reports for all."""
    figures: dict[str, object] = {"iterations_total": total_iterations(job, forecast)}
    progress = progress_of(started)
    if progress is not None:
        total = job.training.iterations or 0
        was_at_end = 0 < total <= status.iteration
        # A count beyond a lap shows that the counter does not begin again there.
        is_within = progress.iteration <= _LONGEST_LAP * status.lap
        lap = progress.lap or (status.lap if is_within else 0)
        start = max(job_pod.start for job_pod in started)
        if start != status.heard and progress.begun and progress.iteration:
            was_at_end = False
            status = replace(status, lap=lap)
            lapped = count_laps(status, job.checkpoint, iteration=progress.iteration)
            # The work that this start repeats was lost with the start before.
            iteration = lapped + progress.iteration
            status = note_loss(replace(status, lapped=lapped), job, iteration=iteration, now=now)
            # Only now, because the loss is judged by the start that reported last.
            status = replace(status, heard=start)
        lapped = status.lapped if lap else 0
        figures |= {"lap": lap, "lapped": lapped}
        iteration = min(lapped + progress.iteration, LARGEST_WHOLE)
        if progress.iteration and iteration != status.iteration:
            figures["iteration"] = iteration
            # A job keeps its GPUs for some time after its last step; later reports do not extend that time.
            figures["iterated_at"] = status.iterated_at if was_at_end else now
        speed = progress.iterations_per_second if status.phase is Phase.RUNNING else 0.0
        metric, reached = _follow_metric(status, job.training.target, progress=progress)
        figures |= {"speed": speed, "metric": metric, "reached": reached}
        figures["pace"] = speed or status.pace
    if all(getattr(status, name) == value for name, value in figures.items()):
        return status
    return replace(status, **figures)  # type: ignore[arg-type]


def progress_of(started: Sequence[JobPod]) -> Progress | None:
    """Return what the leader of these processes reports."""
    states = [
        job_pod.state
        for job_pod in started
        if job_pod.state is not None and job_pod.state.processes
    ]
    leader = min(states, key=lambda state: state.processes[0].rank, default=None)
    return leader.progress if leader is not None else None


def count_change(
    status: Status, started: Sequence[JobPod], *, resumption: Resumption | None
) -> Status:
    """Add the cost of a change of GPUs once the new start has taken a step."""
    progress = progress_of(started)
    if progress is None or not progress.begun:
        return status
    if status.phase is not Phase.RUNNING or status.paused_at is None:
        return status
    seconds = status.reshape_seconds
    # Without a resumption, another controller led in between, and the duration of the pause is
    # unknown.
    if resumption is not None and resumption.generation == status.generation:
        seconds += max(resumption.at - status.paused_at, resumption.lost_seconds)
    return replace(status, reshape_seconds=seconds, paused_at=None)


def idle_seconds(status: Status, job: Job, *, started: Sequence[JobPod], now: float) -> float:
    """Return how long the iterations have stood still; 0 if no stall is reported.

    A SideCar reports a stall once, and nothing more until the training moves.
    """
    progress = progress_of(started)
    told = status.condition(ConditionType.PROGRESSING)
    if progress is None or not progress.stalled:
        return 0.0
    if told is None or told.status:
        return progress.idle_seconds
    # The condition may have been set by a start before this one.
    since = max(told.since, status.decided_at)
    return max(progress.idle_seconds, job.progress.stall_seconds + now - since)


def _follow_metric(
    status: Status, target: Target | None, *, progress: Progress
) -> tuple[float | None, int]:
    metric = progress.metrics.get(target.metric) if target is not None else None
    if metric is None or target is None or metric == status.metric:
        return status.metric, status.reached
    rises = target.direction is Direction.RISES
    is_reached = metric >= target.value if rises else metric <= target.value
    return metric, status.reached + 1 if is_reached else 0


def tell_of_stall(status: Status, started: Sequence[JobPod], *, now: float) -> Status:
    """Set the condition about progress, from the first stall on."""
    progress = progress_of(started)
    told = status.condition(ConditionType.PROGRESSING)
    if progress is None or (told.status if told is not None else True) is not progress.stalled:
        return status
    if not progress.stalled and not progress.begun:
        return status  # The job has restarted, and has taken no step yet.
    condition = Condition(
        ConditionType.PROGRESSING,
        status=not progress.stalled,
        reason="Stalled" if progress.stalled else "Moving",
        message=(
            f"no iteration for {progress.idle_seconds:.0f} s"
            if progress.stalled
            else "its iterations advance again"
        ),
    )
    return status.with_condition(condition, now)


def is_changing(scene: Scene, entry: Entry) -> bool:
    """Return True during a change of GPUs, which ends with the first step of the training."""
    phase = entry.status.phase
    if phase is not Phase.RUNNING:
        return phase in (Phase.INITIALIZED, Phase.ADJUSTING)
    states = (job_pod.state for job_pod in scene.latest_start(entry.job.id))
    # Only the leader may report progress; which node leads makes no difference here.
    told = [state.progress for state in states if state is not None]
    return bool(told) and all(
        not progress.begun and progress.idle_seconds < FIRST_STEP_S for progress in told
    )

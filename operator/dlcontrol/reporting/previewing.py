"""
The decision that would follow if these jobs were submitted now, and the jobs that would lose by it: ``submit --dry-run``.

It makes the loop's own decision twice, without the jobs and with them, and reports the differences.
It records nothing and sends nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dlcontrol.situation.ports import Entry
from dlcontrol.situation.scene import Scene
from dlcontrol.situation.status import Status
from dlcore import cycle
from dlcore.contract import Policy
from dlcore.explaining import sentences as explaining
from dlcore.model import Job, JobId, JobState, Placement, Snapshot
from dlcore.planning import Move, Plan, Reshape, Start, Step, Stop, Wait
from dlcore.predicting.predictor import Estimate, Predictor


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect on one job."""

    job: JobId
    step: Step | None
    """``None`` for one that loses a step which would be taken without them."""
    sentence: str
    is_new: bool
    """Whether it is one of those that are asked about."""
    seconds_before: float | None = None
    """In how many seconds it ends without them; ``None`` where that is unknown."""
    seconds_after: float | None = None
    speed: Estimate | None = None
    """Of a job that would start: how fast it is believed to be."""

    @property
    def old(self) -> Placement | None:
        return self.step.old if isinstance(self.step, Reshape | Move | Stop) else None

    @property
    def new(self) -> Placement | None:
        return None if self.step is None or isinstance(self.step, Wait) else _outcome(self.step)


def joined(scene: Scene, jobs: Sequence[Job]) -> Scene:
    """Show the scene as if these jobs had just been submitted."""
    order = 1 + max((entry.order for entry in scene.entries.values()), default=-1)
    newcomers = {
        job.id: Entry(job, order + place, Status(submitted_at=scene.now))
        for place, job in enumerate(jobs)
    }
    return replace(scene, entries={**scene.entries, **newcomers})


def preview(before: Snapshot, after: Snapshot, policy: Policy) -> tuple[Effect, ...]:
    """Say what differs if all is as in ``after``, where there are more jobs than ``before``."""
    new = set(_states(after)) - set(_states(before))
    without = cycle.schedule(before, policy)
    with_them = cycle.schedule(after, policy)
    return tuple(_iter_effects(new, (before, without), after=(after, with_them)))


def _iter_effects(
    new: set[JobId], before: tuple[Snapshot, Plan], *, after: tuple[Snapshot, Plan]
) -> Iterator[Effect]:
    """Yield what differs between the two plans, the newcomers first."""
    old_steps = {step.job: step for step in before[1].steps}
    new_steps = {step.job: step for step in after[1].steps}
    sentences = explaining.sentences_for(after[0], after[1].steps, after[1].worths)
    former = explaining.sentences_for(before[0], before[1].steps, before[1].worths)
    states = _states(after[0])
    predictor = Predictor.of(after[0])
    jobs = [*new_steps, *(job for job in old_steps if job not in new_steps)]
    for job in sorted(jobs, key=lambda job: job not in new):
        old, step = old_steps.get(job), new_steps.get(job)
        if _is_same(old, step):
            continue
        state = states.get(job)
        yield Effect(
            job=job,
            step=step,
            sentence=sentences.get(job) or f"stays as it is; without them: {former[job]}",
            is_new=job in new,
            seconds_before=_ends(predictor, state, step=old, now=after[0].now),
            seconds_after=_ends(predictor, state, step=step, now=after[0].now),
            speed=_speed(predictor, state, step),
        )


def _is_same(old: Step | None, new: Step | None) -> bool:
    """Whether the change makes no difference to the job: it keeps as many GPUs on the same
    nodes."""
    if isinstance(old, Wait) or isinstance(new, Wait) or old is None or new is None:
        return old == new
    before, after = _outcome(old), _outcome(new)
    if before is None or after is None:
        return before is after
    return before.shape == after.shape and before.nodes == after.nodes


def _outcome(step: Start | Reshape | Move | Stop) -> Placement | None:
    if isinstance(step, Start):
        return step.placement
    return step.new if isinstance(step, Reshape | Move) else None


def _states(snapshot: Snapshot) -> Mapping[JobId, JobState]:
    return {state.id: state for state in (*snapshot.running, *snapshot.pending)}


def _ends(
    predictor: Predictor, state: JobState | None, *, step: Step | None, now: float
) -> float | None:
    """In how many seconds the job will have ended if this is done to it."""
    if state is None or state.iterations_total == float("inf"):
        return None
    match step:
        case None:
            seconds = predictor.remaining(state, now)
        case Start():
            seconds = predictor.completion(state, step.placement.shape, now)
        case Reshape() | Move():
            moves = not set(step.new.nodes) <= set(step.old.nodes)
            seconds = predictor.remaining_after(state, step.new.shape, now, moves=moves)
        case _:
            return None
    return None if seconds == float("inf") else seconds


def _speed(predictor: Predictor, state: JobState | None, step: Step | None) -> Estimate | None:
    if state is None or not isinstance(step, Start):
        return None
    return predictor.estimate(state.job, step.placement.shape)

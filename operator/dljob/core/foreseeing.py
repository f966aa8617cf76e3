"""
The scheduler played ahead: when waiting jobs start, and which jobs a new one would affect.

:func:`foresee` repeats the decision of the loop. Running jobs train as predicted until the first of them is done, the
next decision follows, and so on until every waiting job has started or the policy can say no more. The answer rests on the
same policy, placement and predictions as the decision itself and assumes that no further job comes and none fails.
A length that a policy only supposes counts as unknown. ``dljob why``, ``get`` and ``top`` show it.

:func:`foresee_courses` plays until jobs end. Its bounds come from two further plays, in which all jobs are as quick and as
slow as the bounds of their remaining times allow.

:func:`preview` makes one decision twice, with and without some jobs, and returns the differences: ``submit --dry-run``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from dljob.core import cycle
from dljob.core.contract import Policy
from dljob.core.explaining import sentences as explaining
from dljob.core.model import CauseCode, JobId, JobState, Placement, Snapshot
from dljob.core.planning import Move, Plan, Reshape, Start, Step, Stop, Wait
from dljob.core.predicting.predictor import Estimate, Predictor, Span
from dljob.core.predicting.spans import span_remaining
from dljob.core.recording.expecting import remaining_with
from dljob_wire.messages import Shape
from dljob_wire.problems import listed

MOST_DECISIONS: Final = 200
"""No start beyond this number of decisions is predicted."""
NO_TIME: Final = "the scheduler could not be played that far ahead in time"
"""The reason for a start that is unknown for want of time only, so that an earlier forecast still holds."""
TOO_LARGE: Final = "all nodes together could not give it enough GPUs"
MOST_NAMED: Final = 3
SOON_S: Final = 1e-3


class Turn(NamedTuple):
    """The place of a waiting job in the queue."""

    ahead: int
    """The number of waiting jobs that start before it, without those that the next decision starts."""
    starts_in: float | None
    """Seconds until its expected start; ``None`` if unknown."""
    unknown_because: str = ""


class Course(NamedTuple):
    """The start and the end of a job, in seconds from now; infinite if unknown."""

    start: Span
    end: Span
    unknown_because: str = ""


class _Pace(Enum):
    """How fast all jobs are in a play: the places of the times in a :class:`Span`."""

    EXPECTED = 0
    QUICK = 1
    SLOW = 2


def foresee(
    snapshot: Snapshot, policy: Policy, *, is_late: Callable[[], bool] = lambda: False
) -> dict[JobId, Turn]:
    """Return the turn of each waiting job; :data:`MOST_DECISIONS` or ``is_late`` ends the search."""
    waiting = {state.id: state for state in snapshot.pending if not state.job.suspend}
    play = _Play(snapshot, policy, set(waiting))
    play.run(is_late)
    # The first decision of the play is the next one; no job waits behind the jobs that it starts.
    at_once = sum(begun <= snapshot.now for begun in play.starts.values())
    turns = {
        job: Turn(max(0, place - at_once), begun - snapshot.now)
        for place, (job, begun) in enumerate(play.starts.items())
    }
    rest = sorted(play.missing, key=lambda job: (-waiting[job].job.priority, waiting[job].order))
    because, states = play.why_no_further(), _states(play.snapshot)
    for place, job in enumerate(rest, start=len(turns) - at_once):
        turns[job] = Turn(place, None, TOO_LARGE if _is_too_large(states[job]) else because)
    return turns


def foresee_courses(
    snapshot: Snapshot,
    policy: Policy,
    *,
    jobs: Iterable[JobId],
    is_late: Callable[[], bool] = lambda: False,
) -> dict[JobId, Course]:
    """Return the courses of some waiting jobs, if no further job comes and none fails."""
    jobs = tuple(jobs)
    plays = [_Play(snapshot, policy, set(jobs), unended=set(jobs), pace=pace) for pace in _Pace]
    for play in plays:
        play.run(is_late)
    return {
        job: Course(
            _span([play.starts.get(job, math.inf) - snapshot.now for play in plays]),
            _span([play.ends.get(job, math.inf) - snapshot.now for play in plays]),
            "" if job in plays[0].ends else plays[0].explain(job),
        )
        for job in jobs
    }


def _span(played: Sequence[float]) -> Span:
    # Where the quick play did not come so far, the job may begin or end at any time.
    low = min(played) if math.isfinite(played[_Pace.QUICK.value]) else 0.0
    return Span(played[0], low, max(played))


@dataclass
class _Play:
    snapshot: Snapshot
    policy: Policy
    missing: set[JobId]
    """The jobs that waited at the beginning and have not started."""
    unended: set[JobId] = field(default_factory=set)
    """The jobs whose ends are to be found."""
    pace: _Pace = _Pace.EXPECTED

    def __post_init__(self) -> None:
        self.starts: dict[JobId, float] = {}
        self.ends: dict[JobId, float] = {}
        self.is_late = False
        self._is_stuck = False
        self._slowness: dict[tuple[JobId, Shape], float] = {}

    def run(self, is_late: Callable[[], bool]) -> None:
        for _ in range(MOST_DECISIONS):
            self.is_late = self._is_awaited and is_late()
            if not self._is_awaited or self.is_late or not self._go_on():
                return

    @property
    def _is_awaited(self) -> bool:
        return bool(self.missing or self.unended)

    def _go_on(self) -> bool:
        """Decide, and advance to the next decision; false if there is none."""
        plan = cycle.schedule(self.snapshot, self.policy)
        self._take(plan)
        then = self._find_next(plan)
        if then is None or not self._is_awaited:
            self._is_stuck = then is None
            return False
        self._go_to(then)
        return True

    def explain(self, job: JobId) -> str:
        """Return why the end of the job is not known."""
        state = _states(self.snapshot).get(job)
        is_too_large = job in self.missing and state is not None and _is_too_large(state)
        return TOO_LARGE if is_too_large else self.why_no_further()

    def why_no_further(self) -> str:
        if self.is_late:
            return NO_TIME
        running = self.snapshot.running
        endless = [s.id for s in running if math.isinf(s.iterations_total)]
        if endless:
            return f"how long {_name(endless)} train{'s' if len(endless) == 1 else ''} is not known"
        remaining = self._remaining()
        unmeasured = [state.id for state in running if math.isinf(remaining[state.id])]
        if unmeasured:
            return f"the speed of {_name(unmeasured)} is not known yet"
        if self._is_stuck:
            return "it does not start when the jobs that run now have ended"
        return "it is too many decisions ahead"

    def _take(self, plan: Plan) -> None:
        snapshot, now = self.snapshot, self.snapshot.now
        predictor = Predictor.of(snapshot)
        states = _states(snapshot)
        for step in plan.steps:
            state = states[step.job]
            if isinstance(step, Wait):
                states[step.job] = replace(state, waiting=step.cause)
                continue
            gang = 0 if isinstance(step, Stop) else step.gang
            states[step.job] = _placed(
                state, _outcome(step), predictor=predictor, now=now, gang=gang
            )
            if isinstance(step, Start):
                pods = predictor.costs_of(state.job).pod_start(step.placement.gpus)
                states[step.job] = replace(states[step.job], observed_at=now + pods)
            if isinstance(step, Start) and step.job in self.missing:
                self.missing.discard(step.job)
                self.starts[step.job] = now
        self.snapshot = _with_states(snapshot, states.values(), policy_state=plan.policy_state)

    def _find_next(self, plan: Plan) -> float | None:
        now = self.snapshot.now
        if plan.is_partial:
            return now + SOON_S
        ends = [now + left for left in self._remaining().values() if math.isfinite(left)]
        if plan.wake_at is not None and plan.wake_at > now and (ends or self._is_awaited):
            ends.append(plan.wake_at)
        # Without the minimum a job that ends at once would stop the clock.
        return max(min(ends), now + SOON_S) if ends else None

    def _remaining(self) -> Mapping[JobId, float]:
        predictor, now = Predictor.of(self.snapshot), self.snapshot.now
        return {
            state.id: predictor.remaining(state, now) * self._find_slowness(predictor, state)
            if math.isfinite(state.iterations_total) and predictor.is_measured(state)
            else math.inf
            for state in self.snapshot.running
        }

    def _find_slowness(self, predictor: Predictor, state: JobState) -> float:
        """Return how much longer than expected the job takes in its present shape at the pace of this play."""
        if self.pace is _Pace.EXPECTED or state.placement is None:
            return 1.0
        key = state.id, state.placement.shape
        if key not in self._slowness:
            # Later the predicted speed of the play would count as an observation.
            span = span_remaining(predictor, state, now=self.snapshot.now)
            is_known = 0.0 < span.expected < math.inf
            self._slowness[key] = span[self.pace.value] / span.expected if is_known else 1.0
        return self._slowness[key]

    def _go_to(self, then: float) -> None:
        snapshot, remaining = self.snapshot, self._remaining()
        passed = then - snapshot.now
        # Not `> passed`: with the seconds of a clock the difference of two times is rounded.
        over = {job: at for job, left in remaining.items() if (at := snapshot.now + left) <= then}
        self.ends |= over
        self.unended -= over.keys()
        running = [
            _advanced(state, remaining[state.id], passed=passed, now=then)
            for state in snapshot.running
            if state.id not in over
        ]
        self.snapshot = replace(
            _with_states(
                snapshot, (*running, *snapshot.pending), policy_state=snapshot.policy_state
            ),
            now=then,
        )


def _name(jobs: Sequence[JobId]) -> str:
    others = len(jobs) - MOST_NAMED
    return listed([*jobs[:MOST_NAMED], *([f"{others} others"] if others > 0 else [])], "and")


def _placed(
    state: JobState, placement: Placement | None, *, predictor: Predictor, now: float, gang: int = 0
) -> JobState:
    done = state.iterations_at(now)
    speed = 0.0
    if placement is not None:
        seconds = predictor.training_time(state, placement.shape, now=now)
        left = state.iterations_total - done
        if 0.0 < seconds < math.inf and left < math.inf:
            speed = left / seconds
    return replace(
        state,
        placement=placement,
        gang=gang,
        iterations_done=done,
        observed_at=now,
        # An adjusting job has the speed of its profile; this speed counts from the next decision on.
        speed=0.0 if placement is None else speed,
        adjusting=placement is not None,
        started_at=state.started_at if state.started_at is not None else now,
        waiting=None,
    )


def _advanced(state: JobState, remaining: float, *, passed: float, now: float) -> JobState:
    if not math.isfinite(remaining):
        return replace(
            state, iterations_done=state.iterations_at(now), observed_at=now, adjusting=False
        )
    then = now - passed
    left = state.iterations_total - state.iterations_at(then)
    done = state.iterations_total - left * (remaining - passed) / remaining
    return replace(state, iterations_done=done, observed_at=now, adjusting=False)


def _with_states(
    snapshot: Snapshot, states: Iterable[JobState], *, policy_state: object
) -> Snapshot:
    ordered = sorted(states, key=lambda state: state.order)
    return replace(
        snapshot,
        running=tuple(state for state in ordered if state.placement is not None),
        pending=tuple(state for state in ordered if state.placement is None),
        policy_state=policy_state,
    )


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of new jobs on one job."""

    job: JobId
    step: Step | None
    """``None`` if the new jobs only take away a step that the job would have had."""
    sentence: str
    is_new: bool
    seconds_before: float | None = None
    """Seconds until the job ends without the new jobs; ``None`` if unknown."""
    seconds_after: float | None = None
    speed: Estimate | None = None
    """The predicted speed of a job that would start."""

    @property
    def old(self) -> Placement | None:
        return self.step.old if isinstance(self.step, Reshape | Move | Stop) else None

    @property
    def new(self) -> Placement | None:
        return None if self.step is None or isinstance(self.step, Wait) else _outcome(self.step)


def preview(before: Snapshot, after: Snapshot, policy: Policy) -> tuple[Effect, ...]:
    """Compare the decisions for two snapshots, of which ``after`` has more jobs than ``before``."""
    new = set(_states(after)) - set(_states(before))
    without = cycle.schedule(before, policy)
    with_them = cycle.schedule(after, policy)
    return tuple(_iter_effects(new, (before, without), after=(after, with_them)))


def _iter_effects(
    new: set[JobId], before: tuple[Snapshot, Plan], *, after: tuple[Snapshot, Plan]
) -> Iterator[Effect]:
    old_steps = {step.job: step for step in before[1].steps}
    new_steps = {step.job: step for step in after[1].steps}
    sentences = explaining.sentences_for(after[0], after[1].steps, worths=after[1].worths)
    former = explaining.sentences_for(before[0], before[1].steps, worths=before[1].worths)
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
    """Return true if the job has the same number of GPUs on the same nodes after both steps."""
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


def _states(snapshot: Snapshot) -> dict[JobId, JobState]:
    return {state.id: state for state in (*snapshot.running, *snapshot.pending)}


def _is_too_large(state: JobState) -> bool:
    return state.waiting is not None and state.waiting.code is CauseCode.TOO_LARGE


def _ends(
    predictor: Predictor, state: JobState | None, *, step: Step | None, now: float
) -> float | None:
    """Return the seconds until the job ends if the step is taken."""
    if state is None or state.iterations_total == float("inf") or isinstance(step, Wait | Stop):
        return None
    if not predictor.is_measured(state):
        return None
    seconds = (
        predictor.remaining(state, now)
        if step is None
        else remaining_with(predictor, state, step=step, now=now)
    )
    return None if seconds == float("inf") else seconds


def _speed(predictor: Predictor, state: JobState | None, step: Step | None) -> Estimate | None:
    if state is None or not isinstance(step, Start):
        return None
    return predictor.estimate(state.job, step.placement.shape)

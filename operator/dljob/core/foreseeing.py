"""
The one play of the future: the scheduler played ahead from a snapshot, until jobs have started or ended.

:func:`foresee` repeats the decision of the loop. Running jobs train as predicted until the first of them is done, the
next decision follows, and so on until every waiting job has started or the policy can say no more. The answer rests on the
same policy, placement and predictions as the decision itself and assumes that no further job comes and none fails.
A length that a policy only supposes counts as unknown. ``dljob why``, ``get`` and ``top`` show it.

:func:`foresee_courses` plays until jobs end. Its bounds come from two further plays, in which all jobs are as quick and as
slow as the bounds of their remaining times allow.

:func:`foresee_all` plays until all jobs end, and returns the GPUs of each meanwhile: ``what-if``.

:func:`preview` makes one decision twice, with and without some jobs, and returns the differences: ``submit --dry-run``.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from dljob.core import cycle
from dljob.core.contract import Policy
from dljob.core.explaining import sentences as explaining
from dljob.core.model import CauseCode, JobId, JobState, Placement, Snapshot
from dljob.core.planning import Move, Plan, Reshape, Start, Step, Stop, Wait
from dljob.core.predicting.predictor import SUPPOSED_S, Estimate, Predictor, Span
from dljob.core.predicting.spans import span_remaining
from dljob.core.recording.expecting import remaining_with
from dljob.core.sharing import find_borrowed
from dljob_wire.problems import listed

MOST_DECISIONS: Final = 200
"""No start beyond this number of decisions is predicted."""
NO_TIME: Final = "the scheduler could not be played that far ahead in time"
"""The reason for a start that is unknown for want of time only, so that an earlier forecast still holds."""
TOO_LARGE: Final = "all nodes together could not give it enough GPUs"
NO_QUOTA: Final = "another program decides when its queue has quota for it"
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


class Future(NamedTuple):
    """The GPUs of a job over time, and its end; all times are seconds from now."""

    gpus: int
    """The number of GPUs that the next decision leaves or gives the job."""
    spans: tuple[tuple[float, float, int], ...]
    """From when until when the job has how many GPUs; without an end, until the last decision that was played."""
    ends_in: float | None
    """``None`` if unknown."""
    unknown_because: str = ""
    supposes: bool = False
    """True if its end is after a supposed time, because its length or its speed is not known."""


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
        turns[job] = Turn(place, None, _why_never(states[job]) or because)
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


def foresee_all(
    snapshot: Snapshot, policy: Policy, *, is_late: Callable[[], bool] = lambda: False
) -> dict[JobId, Future]:
    """
    Return the futures of all jobs but suspended ones; only ``is_late`` ends the search.

    A job of unknown length or speed trains for a supposed time, so that those behind it have a future.
    """
    jobs = [state.id for state in (*snapshot.running, *snapshot.pending) if not state.job.suspend]
    play = _Play(snapshot, policy, set(), unended=set(jobs), supposes=True)
    play.run(is_late, is_whole=True)
    return {job: play.tell_future(job) for job in jobs}


def _span(played: Sequence[float]) -> Span:
    # Where the quick play did not come so far, the job may begin or end at any time.
    low = min(played) if math.isfinite(played[_Pace.QUICK.value]) else 0.0
    return Span(played[0], low, max(played))


class _Play:
    """
    A future, decision by decision.

    A job's state changes only with its GPUs, so that a decision costs what changes, as in the loop.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        missing: set[JobId],
        *,
        unended: Collection[JobId] = (),
        pace: _Pace = _Pace.EXPECTED,
        supposes: bool = False,
    ) -> None:
        """
        Play until the ``missing`` jobs have started and the ``unended`` ones have ended.

        ``supposes``: a job whose end is not known ends, too.
        """
        self.snapshot = snapshot
        self.missing = missing
        self.starts: dict[JobId, float] = {}
        self.ends: dict[JobId, float] = {}
        self._begun_at = snapshot.now
        self._policy = policy
        self._unended = set(unended)
        self._pace = pace
        self._supposes = supposes
        self._supposed: set[JobId] = set()
        self._is_late = self._is_stuck = False
        self._ends_at: dict[JobId, float] = {}
        """When each running job ends at the pace of this play; infinite if unknown."""
        self._slowness: dict[JobId, float] = {}
        """How much longer than expected each running job takes for the rest of its work."""
        self._gpus: dict[JobId, list[tuple[float, int]]] = {}
        """The numbers of GPUs that each job has had, with the times from which on it had them."""
        self._running = {state.id: self._let_train(state) for state in snapshot.running}

    def run(self, is_late: Callable[[], bool], *, is_whole: bool = False) -> None:
        """Make :data:`MOST_DECISIONS`; if ``is_whole``, decisions before the end of a job do not count."""
        left = MOST_DECISIONS
        while left and self._is_awaited:
            self._is_late = is_late()
            if self._is_late or not self._go_on():
                return
            if not is_whole or all(map(math.isinf, self._ends_at.values())):
                left -= 1

    @property
    def _is_awaited(self) -> bool:
        return bool(self.missing or self._unended)

    def _go_on(self) -> bool:
        """Decide, and advance to the next decision; false if there is none."""
        plan = cycle.schedule(self.snapshot, self._policy)
        self._take(plan)
        then = self._find_next(plan)
        if then is None or not self._is_awaited:
            self._is_stuck = then is None
            return False
        over = {job: at for job, at in self._ends_at.items() if at <= then}
        for job, at in over.items():
            self._give(job, 0, at=at)
            del self._running[job], self._ends_at[job]
        self.ends |= over
        self._unended -= over.keys()
        self.snapshot = replace(self.snapshot, now=then, running=self._sort_running())
        return True

    def explain(self, job: JobId) -> str:
        """Return why the end of the job is not known."""
        state = self.snapshot.queue.select({job}).get(job)
        return (state and _why_never(state)) or self.why_no_further()

    def why_no_further(self) -> str:
        if self._is_late:
            return NO_TIME
        running = self.snapshot.running
        endless = [s.id for s in running if math.isinf(s.iterations_total)]
        if endless:
            return f"how long {name_some(endless)} train{'s' if len(endless) == 1 else ''} is not known"
        unmeasured = [state.id for state in running if math.isinf(self._ends_at[state.id])]
        if unmeasured:
            return f"the speed of {name_some(unmeasured)} is not known yet"
        if self._is_stuck:
            return "it does not start when the jobs that run now have ended"
        return "it is too many decisions ahead"

    def tell_future(self, job: JobId) -> Future:
        begun, end = self._begun_at, self.ends.get(job)
        changes = self._gpus.get(job, [])
        ends = [*(at for at, _ in changes[1:]), self.snapshot.now]
        spans = tuple(
            (at - begun, then - begun, gpus)
            for (at, gpus), then in zip(changes, ends, strict=False)
            if gpus and then > at
        )
        gpus = next((gpus for at, gpus in reversed(changes) if at <= begun), 0)
        if end is None:
            return Future(gpus, spans, None, self.explain(job))
        return Future(gpus, spans, end - begun, supposes=job in self._supposed)

    def _take(self, plan: Plan) -> None:
        now, pending = self.snapshot.now, self.snapshot.queue
        waiting = pending.select({step.job for step in plan.steps})
        for step in plan.steps:
            state = waiting.get(step.job) or self._running[step.job]
            if isinstance(step, Wait):
                pending = pending.put(replace(state, waiting=step.cause))
            elif isinstance(step, Stop):
                del self._running[step.job], self._ends_at[step.job]
                self._give(step.job, 0, at=now)
                pending = pending.put(
                    replace(self._pause(state), placement=None, gang=0, speed=0.0)
                )
            else:
                if isinstance(step, Start):
                    pending = pending.drop(state)
                self._running[step.job] = self._start(step, self._pause(state))
            if isinstance(step, Start) and step.job in self.missing:
                self.missing.discard(step.job)
                self.starts[step.job] = now
        self.snapshot = replace(
            self.snapshot,
            running=self._sort_running(),
            pending=pending,
            policy_state=plan.policy_state,
            use=plan.use,
        )

    def _sort_running(self) -> tuple[JobState, ...]:
        return tuple(sorted(self._running.values(), key=lambda state: state.order))

    def _pause(self, state: JobState) -> JobState:
        """Sum up what a job has done, with the speed that it has without the pace of this play."""
        now = self.snapshot.now
        return replace(
            state,
            iterations_done=state.iterations_at(now),
            service=state.service_at(now),
            observed_at=now,
            speed=state.speed * self._slowness.pop(state.id, 1.0),
            waiting=None,
        )

    def _start(self, step: Start | Reshape | Move, state: JobState) -> JobState:
        now, predictor, placement = self.snapshot.now, Predictor.of(self.snapshot), _outcome(step)
        assert placement is not None
        begun = state.started_at if state.started_at is not None else now
        return self._let_train(
            replace(
                state,
                placement=placement,
                gang=step.gang,
                speed=0.0,
                adjusting=True,
                started_at=begun,
            ),
            remaining=remaining_with(predictor, state, step=step, now=now),
            training=predictor.training_time(state, placement.shape, now=now),
        )

    def _let_train(
        self, state: JobState, *, remaining: float | None = None, training: float | None = None
    ) -> JobState:
        """
        Let a job with GPUs train without a pause until its end, at the pace of this play.

        ``remaining`` are the seconds until it ends, of which it trains for ``training``; both as predicted.
        """
        now, predictor, placement = self.snapshot.now, Predictor.of(self.snapshot), state.placement
        assert placement is not None
        self._give(state.id, placement.gpus, at=now)
        if remaining is None:
            remaining = predictor.remaining(state, now)
        if training is None:
            training = predictor.training_time(state, placement.shape, now=now)
        self._ends_at[state.id] = math.inf
        has_length = math.isfinite(state.iterations_total)
        is_known = has_length and predictor.is_measured(state) and math.isfinite(remaining)
        if self._supposes and not is_known:
            self._supposed.add(state.id)
            if math.isinf(remaining):
                training = SUPPOSED_S
                remaining = training + predictor.costs_of(state.job).end
        if is_known or self._supposes:
            slowness = self._find_slowness(predictor, state)
            end = self._ends_at[state.id] = now + remaining * slowness
            if training > 0.0 and has_length:
                self._slowness[state.id] = slowness
                begin = max(now, end - training * slowness - predictor.costs_of(state.job).end)
                state = replace(
                    state,
                    iterations_done=state.iterations_at(now),
                    # As at `begin`, until which the last change goes on.
                    service=state.service_at(now) + placement.gpus * (begin - now),
                    observed_at=begin,
                    speed=state.remaining_at(now) / (training * slowness),
                )
        return replace(state, adjusting=False)

    def _give(self, job: JobId, gpus: int, *, at: float) -> None:
        self._gpus.setdefault(job, []).append((at, gpus))

    def _find_next(self, plan: Plan) -> float | None:
        now = self.snapshot.now
        if plan.is_partial:
            return now + SOON_S
        ends = [at for at in self._ends_at.values() if at < math.inf]
        if plan.wake_at is not None and plan.wake_at > now and (ends or self._is_awaited):
            ends.append(plan.wake_at)
        # Without the minimum a job that ends at once would stop the clock.
        return max(min(ends), now + SOON_S) if ends else None

    def _find_slowness(self, predictor: Predictor, state: JobState) -> float:
        """Return how much longer than expected the job takes in its present shape at the pace of this play."""
        if self._pace is _Pace.EXPECTED:
            return 1.0
        span = span_remaining(predictor, state, now=self.snapshot.now)
        is_known = 0.0 < span.expected < math.inf
        return span[self._pace.value] / span.expected if is_known else 1.0


def name_some(jobs: Sequence[JobId]) -> str:
    """Name the first jobs, and count the others."""
    others = len(jobs) - MOST_NAMED
    return listed([*jobs[:MOST_NAMED], *([f"{others} others"] if others > 0 else [])], "and")


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
    sentences = explaining.sentences_for(*after, find_borrowed(*after))
    former = explaining.sentences_for(*before, find_borrowed(*before))
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


def _why_never(state: JobState) -> str:
    """Return why a job does not start however long it waits; empty if it may."""
    if state.lacks_quota:
        return NO_QUOTA
    is_too_large = state.waiting is not None and state.waiting.code is CauseCode.TOO_LARGE
    return TOO_LARGE if is_too_large else ""


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

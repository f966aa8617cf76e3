"""
When jobs that wait are expected to start, and how many start before them: the scheduler itself, played on.

The decision of the loop is made from what it saw last. Then the running jobs train as predicted until the
first of them is done, and the decision is made again, until every waiting job has started or no more can be
said. So the answer rests on the same policy, placement and predictions as the decision that will be made, and
on nothing else: no other job comes, no job fails, and what a policy supposes of an unknown length counts as not
known here. ``dljob why``, ``get``, ``top`` and ``submit --dry-run`` show it.

Pure, but for the clock that ends a game which takes too long.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from dlcontrol.situation.status_documents import Json, write_time
from dlcore import cycle
from dlcore.contract import Policy
from dlcore.model import JobId, JobState, Placement, Snapshot
from dlcore.planning import Move, Plan, Reshape, Start, Stop, Wait
from dlcore.predicting.predictor import Predictor
from dlcore.problems import listed

MOST_DECISIONS: Final = 200
"""The most decisions that are played ahead; a start beyond is too far away to be foretold."""
LONGEST_S: Final = 2.0
"""The longest time for which :func:`foresee_in_time` plays the scheduler ahead."""
MOST_NAMED: Final = 3
SOON_S: Final = 1e-3


class Turn(NamedTuple):
    """The place of a waiting job in the queue."""

    ahead: int
    """How many of the jobs that wait start before it."""
    starts_in: float | None
    """In how many seconds it is expected to start; ``None``: not known."""
    unknown_because: str = ""


def foresee(
    snapshot: Snapshot, policy: Policy, *, is_late: Callable[[], bool] = lambda: False
) -> dict[JobId, Turn]:
    """Say of each job that waits for its turn when that comes; it takes as long as its decisions do."""
    waiting = {state.id: state for state in snapshot.pending if not state.job.suspend}
    play = _Play(snapshot, policy, set(waiting))
    decisions = 0
    while play.missing and decisions < MOST_DECISIONS and not is_late() and play.go_on():
        decisions += 1
    turns = {
        job: Turn(place, begun - snapshot.now)
        for place, (job, begun) in enumerate(play.starts.items())
    }
    rest = sorted(play.missing, key=lambda job: (-waiting[job].job.priority, waiting[job].order))
    because = play.why_no_further()
    for place, job in enumerate(rest, start=len(turns)):
        turns[job] = Turn(place, None, because)
    return turns


def foresee_in_time(snapshot: Snapshot, policy: Policy) -> dict[JobId, Turn]:
    """Do the same for :data:`LONGEST_S` at most; the starts that were not found by then are not known."""
    until = time.monotonic() + LONGEST_S
    return foresee(snapshot, policy, is_late=lambda: time.monotonic() > until)


def turn_document(turn: Turn, now: float) -> Json:
    """Show a turn: how many are ahead, when the job is expected to start, or why that is not known."""
    if turn.starts_in is None:
        return {"ahead": turn.ahead, "unknownBecause": turn.unknown_because}
    return {"ahead": turn.ahead, "expectedStart": write_time(now + turn.starts_in)}


@dataclass
class _Play:
    """The present, as it goes on."""

    snapshot: Snapshot
    policy: Policy
    missing: set[JobId]
    """The jobs that waited at the beginning and have not started."""

    def __post_init__(self) -> None:
        self.starts: dict[JobId, float] = {}
        self._is_stuck = False

    def go_on(self) -> bool:
        """Decide, and go to the instant at which the next decision is due; false: there is none."""
        plan = cycle.schedule(self.snapshot, self.policy)
        self._take(plan)
        then = self._find_next(plan)
        if then is None or not self.missing:
            self._is_stuck = then is None
            return False
        self._go_to(then)
        return True

    def why_no_further(self) -> str:
        """Say why the start of those that are missing is not known."""
        endless = [s.id for s in self.snapshot.running if math.isinf(s.iterations_total)]
        if endless:
            others = len(endless) - MOST_NAMED
            named = [*endless[:MOST_NAMED], *([f"{others} others"] if others > 0 else [])]
            return f"how long {listed(named, 'and')} train{'s' if len(endless) == 1 else ''} is not known"
        if self._is_stuck:
            return "it does not start when the jobs that run now have ended"
        return "it is too many decisions ahead"

    # --- what a decision makes of the jobs

    def _take(self, plan: Plan) -> None:
        snapshot, now = self.snapshot, self.snapshot.now
        predictor = Predictor.of(snapshot)
        states = {state.id: state for state in (*snapshot.running, *snapshot.pending)}
        for step in plan.steps:
            state = states[step.job]
            match step:
                case Wait():
                    states[step.job] = replace(state, waiting=step.cause)
                case Stop():
                    states[step.job] = _placed(state, None, predictor=predictor, now=now)
                case Start():
                    states[step.job] = _placed(
                        state, step.placement, predictor=predictor, now=now, gang=step.gang
                    )
                    self._note_start(step.job, now)
                case Reshape() | Move():
                    states[step.job] = _placed(
                        state, step.new, predictor=predictor, now=now, gang=step.gang
                    )
        self.snapshot = _with_states(snapshot, states.values(), policy_state=plan.policy_state)

    def _note_start(self, job: JobId, now: float) -> None:
        if job in self.missing:
            self.missing.discard(job)
            self.starts[job] = now

    # --- what time makes of them

    def _find_next(self, plan: Plan) -> float | None:
        """When the next decision is due: a job is done, or the policy wants to be asked again."""
        now = self.snapshot.now
        if plan.is_partial:
            return now + SOON_S
        ends = [now + left for left in self._remaining().values() if math.isfinite(left)]
        if plan.wake_at is not None and plan.wake_at > now and (ends or self.missing):
            ends.append(plan.wake_at)
        # A job that is done at once would stop the clock.
        return max(min(ends), now + SOON_S) if ends else None

    def _remaining(self) -> Mapping[JobId, float]:
        predictor, now = Predictor.of(self.snapshot), self.snapshot.now
        return {
            state.id: predictor.remaining(state, now)
            if math.isfinite(state.iterations_total)
            else math.inf
            for state in self.snapshot.running
        }

    def _go_to(self, then: float) -> None:
        snapshot, remaining = self.snapshot, self._remaining()
        passed = then - snapshot.now
        running = [
            _advanced(state, remaining[state.id], passed=passed, now=then)
            for state in snapshot.running
            if remaining[state.id] > passed + 1e-9
        ]
        self.snapshot = replace(
            _with_states(
                snapshot, (*running, *snapshot.pending), policy_state=snapshot.policy_state
            ),
            now=then,
        )


def _placed(
    state: JobState, placement: Placement | None, *, predictor: Predictor, now: float, gang: int = 0
) -> JobState:
    """Show a job with other GPUs, as fast as it is believed to be there."""
    done = state.iterations_at(now)
    speed = 0.0
    if placement is not None:
        seconds = predictor.training_time(state, placement.shape, now)
        left = state.iterations_total - done
        if 0.0 < seconds < math.inf and left < math.inf:
            speed = left / seconds
    return replace(
        state,
        placement=placement,
        gang=gang,
        iterations_done=done,
        observed_at=now,
        # While it is adjusting, its speed is that of the profile; this one is seen after that.
        speed=0.0 if placement is None else speed,
        adjusting=placement is not None,
        started_at=state.started_at if state.started_at is not None else now,
        waiting=None,
    )


def _advanced(state: JobState, remaining: float, *, passed: float, now: float) -> JobState:
    """Return a job as it will be after ``passed`` seconds; its remaining work shrinks by the same share."""
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

"""
The expectation behind a decision: a job's predicted speed and remaining time with the GPUs that it gets.

The control loop and the simulator record it for each step of a plan, from the snapshot of that plan.
"""

import math
from collections.abc import Mapping, Sequence

from dljob.core.model import JobId, JobState, Snapshot
from dljob.core.planning import Move, Reshape, Start, Step
from dljob.core.predicting.predictor import Predictor
from dljob.core.recording.record import Expected


def expect(snapshot: Snapshot, steps: Sequence[Step]) -> Mapping[JobId, Expected]:
    """Return the expectation for each job that a step gives GPUs."""
    predictor = Predictor.of(snapshot)
    gaining = {step.job: step for step in steps if isinstance(step, Start | Reshape | Move)}
    states = dict(snapshot.queue.select(set(gaining)))
    states |= {state.id: state for state in snapshot.running if state.id in gaining}
    return {
        job: _expect(predictor, snapshot.now, state, gaining[job]) for job, state in states.items()
    }


def _expect(
    predictor: Predictor, now: float, state: JobState, step: Start | Reshape | Move
) -> Expected:
    remaining = remaining_with(predictor, state, step=step, now=now)
    if isinstance(step, Start):
        shape = step.placement.shape
        costs = predictor.costs_of(state.job)
        pause = costs.pod_start(shape.gpus) + costs.process_start(shape.gpus)
    else:
        shape = step.new.shape
        pause = predictor.change_cost(state, shape, stays=state.changes_live(step.new))
    estimate = predictor.estimate(state.job, shape)
    has_length = state.iterations_total > 0.0 and math.isfinite(remaining)
    is_known = has_length and predictor.is_measured(state)
    return Expected(
        iterations_per_second=_finite(estimate.value) or None,
        confidence=min(1.0, max(0.0, estimate.confidence)),
        remaining_seconds=max(0.0, remaining) if is_known else None,
        pause_seconds=_finite(pause),
    )


def remaining_with(
    predictor: Predictor, state: JobState, *, step: Start | Reshape | Move, now: float
) -> float:
    """Return the seconds until a job ends with the GPUs of a step."""
    if isinstance(step, Start):
        return predictor.completion(state, step.placement.shape, now)
    return predictor.remaining_on(state, step.new, now)


def _finite(number: float) -> float:
    return max(0.0, number) if math.isfinite(number) else 0.0

"""
The likely bounds of a job's end, for people.

The bounds follow from how much the latest observations of its speed differ, from how many there
are, from how far a speed never seen can be trusted, and from the bounds of its length.
"""

import math
from collections.abc import Sequence
from statistics import median

from dljob.core.model import JobState
from dljob.core.predicting.predictor import Predictor, Span
from dljob_wire.messages import Shape

NOT_SEEN = 0.3
"""The relative error of a predicted speed that was never observed; each observation reduces
it."""

SPREAD_FACTOR = 1.645 * 1.4826
"""The factor from the median distance of observations to the distance that nine of ten are
within."""

MOST_DOUBT = 0.9

UNSTEADY = 2.0
"""A start or an end of processes may take this many times as long as expected, or as short."""


def span_remaining(predictor: Predictor, state: JobState, *, now: float) -> Span:
    """
    Until a job with GPUs is done and gone if it is left as it is, with the bounds of that.

    A speed that only this start has shown is a guess, mostly too low: it gives an upper bound alone.
    """
    expected = predictor.remaining(state, now)
    if state.placement is None or expected == math.inf:
        return Span(expected, expected, expected)
    if not predictor.is_measured(state):
        return Span(math.inf, 0.0, expected)
    shape = state.placement.shape
    training = predictor.training_time(state, shape, now=now)
    done, total = state.iterations_at(now), state.iterations_total
    low, high = state.iterations_between or (total, total)
    doubt = _doubt(predictor, state, shape=shape)
    pace = training / max(total - done, 1e-9)
    ahead = expected - training
    return Span(
        expected,
        min(expected, ahead / UNSTEADY + max(0.0, low - done) * pace / (1.0 + doubt)),
        max(expected, ahead * UNSTEADY + max(0.0, high - done) * pace / (1.0 - doubt)),
    )


def _doubt(predictor: Predictor, state: JobState, *, shape: Shape) -> float:
    """The relative error of a job's speed in its present shape."""
    profile = predictor.profiles.get(state.job.type)
    seen = profile.speeds.get(shape) if profile is not None else None
    count, recent = (seen.weight, seen.recent) if seen is not None else (0.0, ())
    doubt = _spread(recent)
    if state.speed > 0.0 and not state.adjusting:
        # The present speed is one more observation.
        count += 1
    else:
        doubt += (1.0 - predictor.estimate(state.job, shape).confidence) / 2.0
    return min(MOST_DOUBT, doubt + NOT_SEEN / (1.0 + count))


def _spread(recent: Sequence[float]) -> float:
    """The median distance of observations from their median, as a share of it."""
    if len(recent) < 2:
        return 0.0
    middle = median(recent)
    return SPREAD_FACTOR * median(abs(each - middle) for each in recent) / middle

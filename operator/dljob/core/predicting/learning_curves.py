"""
The number of iterations of a job whose user only set a target for its metric.

The builder of a snapshot calls :func:`predict_iterations` with the points of the profile and those
that the job has reported, and puts the answer into ``JobState.iterations_total``.

The curves are those of Optimus: a loss that falls as ``1/(b0*k + b1) + b2``, and turned upside
down an accuracy that rises as ``c - 1/(b0*k + b1)``. No b is negative. For a given limit (b2 or c)
the reciprocal is a straight line in k, which non-negative least squares finds; the limit is
searched over a grid, and the one that leaves the least error in the metric itself wins.

Learning curves are often none of these: a lower learning rate makes a step that no curve foresees.
So the fit is repeated with the earlier and with the later points only, and where the answers
disagree the forecast says a wide range and a low confidence.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dljob.core.model import Direction, Target
from dljob.core.profiles import AccuracyPoint

Floats = npt.NDArray[np.float64]

FEWEST_POINTS = 3
"""Minimum number of points: fewer do not determine three unknowns."""

MOST_POINTS = 200
"""Maximum number of points; more cost time without improving the fit."""

OFFLINE_WEIGHT = 4.0
"""The points of the profile together weigh no more than this many points of the job itself."""

LIMITS = 9
"""Number of limits in the first grid and in each of its two refinements."""

LUCK = 0.5
"""
A noisy metric reaches a value before its mean does, because one good report is enough. A value counts
as reached within this many usual errors of the curve; within fewer if it must be reached several times.
"""


class Forecast(NamedTuple):
    """How many iterations a job needs in all, and how sure that is."""

    iterations: float
    """Infinite when the target seems out of reach."""
    low: float
    high: float
    confidence: float
    """1 is certain; 0 is a guess."""


@dataclass(frozen=True, slots=True)
class Curve:
    """``z(k) = 1/(b0*k + b1) + limit``, fitted to points that fall."""

    b0: float
    b1: float
    limit: float
    error: float
    """The weighted root mean square of its errors."""

    def iterations_to(self, value: float) -> float:
        """Return the iteration at which the curve reaches ``value``; infinite if never."""
        if value <= self.limit:
            return math.inf
        missing = 1.0 / (value - self.limit) - self.b1
        if missing <= 0.0:
            return 0.0
        return missing / self.b0 if self.b0 > 0.0 else math.inf


def predict_iterations(
    profile_points: Sequence[AccuracyPoint],
    online_points: Sequence[AccuracyPoint],
    *,
    target: Target,
    asked: int | None,
) -> Forecast:
    """
    Return at which iteration the target will be reached, ``patience`` times in a row.

    The points of the profile, from earlier jobs of the type, count for less and less as the job
    reports its own. ``asked`` is the number of iterations after which the job ends in any case.
    """
    offline, online = _tidy(profile_points), _tidy(online_points)
    reached = _find_reached(online, target)
    if reached is not None:
        return Forecast(reached, reached, reached, 1.0)
    most = math.inf if asked is None else float(asked)
    if len(offline) + len(online) < FEWEST_POINTS:
        return Forecast(most, min(most, _last(online)), most, 0.0)
    forecast = _fit_and_read(_Sample.of(offline, online, target), target.patience)
    # It was not reached so far, and the last of the required points in a row comes later still.
    wait = (target.patience - 1) * _interval(online or offline)
    soonest = _last(online) + _interval(online)
    low, likely, high = (
        min(max(iterations + wait, soonest), most)
        for iterations in (forecast.low, forecast.iterations, forecast.high)
    )
    trust = 1.0 if online else 0.5
    return Forecast(likely, low, high, trust * forecast.confidence)


# --- points -------------------------------------------------------------------------------


def _tidy(points: Iterable[AccuracyPoint]) -> list[AccuracyPoint]:
    """The points that count, thinned out, in the order of iterations."""
    sound = sorted(point for point in points if point.is_sound)
    if len(sound) <= MOST_POINTS:
        return sound
    step = (len(sound) - 1) / (MOST_POINTS - 1)
    return [sound[round(index * step)] for index in range(MOST_POINTS)]


def _find_reached(points: Sequence[AccuracyPoint], target: Target) -> float | None:
    in_a_row = 0
    for point in points:
        rises = target.direction is Direction.RISES
        good = point.value >= target.value if rises else point.value <= target.value
        in_a_row = in_a_row + 1 if good else 0
        if in_a_row >= target.patience:
            return point.iteration
    return None


def _last(points: Sequence[AccuracyPoint]) -> float:
    return points[-1].iteration if points else 0.0


def _interval(points: Sequence[AccuracyPoint]) -> float:
    """Return the recent number of iterations between two reports."""
    recent = points[-5:]
    if len(recent) < 2:
        return 0.0
    return (recent[-1].iteration - recent[0].iteration) / (len(recent) - 1)


class _Sample(NamedTuple):
    """The numbers to fit: they fall and are not negative."""

    iterations: Floats
    values: Floats
    weights: Floats
    target: float

    @classmethod
    def of(
        cls, offline: Sequence[AccuracyPoint], online: Sequence[AccuracyPoint], target: Target
    ) -> "_Sample":
        points = [*offline, *online]
        flip = _Flip.of(points, target)
        # Neighbours show which points are outliers, and the points of another run are no neighbours.
        values = np.concatenate(
            [_smooth(flip.apply([point.value for point in part])) for part in (offline, online)]
        )
        counts = max(len(offline), 1), max(len(online), 1)
        # Later points count more, because they predict the rest of the curve better.
        weights = np.concatenate(
            [
                np.full(len(offline), min(1.0, OFFLINE_WEIGHT / counts[0])),
                0.2 + np.arange(1, len(online) + 1) / counts[1],
            ]
        )
        iterations = np.array([point.iteration for point in points])
        order = np.argsort(iterations, kind="stable")
        unit = float(values.max()) or 1.0
        goal = float(flip.apply([target.value])[0])
        return cls(iterations[order], values[order] / unit, weights[order], goal / unit)

    def part(self, start: int, stop: int) -> "_Sample":
        """The points from one index to another."""
        return _Sample(
            self.iterations[start:stop],
            self.values[start:stop],
            self.weights[start:stop],
            self.target,
        )


class _Flip(NamedTuple):
    """The bound of a metric, from which what is left to learn is counted."""

    bound: float
    sign: float

    @classmethod
    def of(cls, points: Sequence[AccuracyPoint], target: Target) -> "_Flip":
        values = [target.value, *(point.value for point in points)]
        low, high = min(values), max(values)
        if target.direction is Direction.FALLS:
            # A loss is rarely negative; where it is, nothing is known of its bound.
            return cls(0.0 if low >= 0.0 else low - 2.0 * (high - low), 1.0)
        # A share, or a percentage; anything else may rise for long.
        known = [bound for bound in (1.0, 100.0) if high <= bound]
        return cls(known[0] if known else high + 2.0 * (high - low), -1.0)

    def apply(self, values: Sequence[float]) -> Floats:
        return self.sign * (np.array(values, dtype=np.float64) - self.bound)


def _smooth(values: Floats) -> Floats:
    """Put the median of the neighbours in the place of outliers, as Optimus does before it fits."""
    if len(values) < 5:
        return values
    # Two points at each end lack neighbours on one side, which misleads on a steep curve.
    inner = values[2:-2]
    windows = np.lib.stride_tricks.sliding_window_view(values, 5)
    off = np.abs(inner - np.median(windows, axis=1))
    usual = 1.4826 * float(np.median(off))
    # On a curve without noise a steep start is off too, but by a step or two only.
    others = windows[:, [0, 1, 3, 4]]
    step = np.median(np.abs(np.diff(others, axis=1)) / [1.0, 2.0, 1.0], axis=1)
    neighbours = np.median(others, axis=1)
    smooth = values.copy()
    smooth[2:-2] = np.where(off > np.maximum(4.0 * usual, 3.0 * step), neighbours, inner)
    return smooth


# --- curves -------------------------------------------------------------------------------


def _fit_and_read(sample: _Sample, patience: int) -> Forecast:
    """Fit all points, and then subsets, to measure how much the result depends on them."""
    curve = fit_curve(sample.iterations, sample.values, weights=sample.weights)
    target = sample.target + LUCK / patience * curve.error
    likely = curve.iterations_to(target)
    count = len(sample.iterations)
    most, some = max(FEWEST_POINTS, count * 3 // 4), max(FEWEST_POINTS, count * 3 // 5)
    others = [
        fit_curve(sample.iterations, sample.values, weights=np.ones(count)),
        *(
            fit_curve(part.iterations, part.values, weights=part.weights)
            for part in (sample.part(0, most), sample.part(count - some, count))
        ),
    ]
    answers = [likely, *(other.iterations_to(target) for other in others)]
    low, high = min(answers), max(answers)
    # The noise of the metric moves the crossing by this share, at most threefold.
    fall = curve.b0 * (target - curve.limit) ** 2 * likely if likely < math.inf else 0.0
    blur = min(curve.error / fall, math.log(3.0)) if fall > 0.0 else math.log(3.0)
    reach = float(sample.iterations[-1])
    if high == math.inf:
        confidence = 0.05 if likely < math.inf else 0.0
    else:
        agreement = (low + 1.0) / (high + 1.0)
        confidence = agreement * math.sqrt(min(1.0, reach / max(likely, 1.0)))
    return Forecast(
        likely,
        low * math.exp(-blur) if low < math.inf else reach,
        high * math.exp(blur),
        confidence / (1.0 + blur),
    )


def fit_curve(iterations: Floats, values: Floats, *, weights: Floats) -> Curve:
    """
    Fit a falling curve to values that are not negative.

    Where nothing falls, the best curve is a constant, which never reaches anything.
    """
    low, high = float(values.min()), float(values.max())
    span = max(high - low, 1e-9 * max(high, 1e-9))
    # Use the mean of the lowest tenth, because a single low value may be noise.
    base = float(np.sort(values)[: max(1, len(values) // 10)].mean())
    scale = max(float(iterations.max()), 1.0)
    # Round, because differences this small are numerical noise.
    x = np.round(iterations / scale, 12)
    best = Curve(0.0, 1.0 / max(high - base, span), base, math.inf)
    # Near the lowest values more limits are tried, because there each changes the curve more.
    shares = np.geomspace(min(1.0, 1e-3 * span / base) if base > 0.0 else 1.0, 1.0, LIMITS)
    for _ in range(3):
        limits = base * (1.0 - shares)
        b0, b1, errors = _fit_to_limits(
            x, values, weights=weights, limits=limits, least=1e-3 * span
        )
        first = int(np.argmin(errors))
        if errors[first] < best.error:
            found = (b0[first], b1[first], limits[first], errors[first])
            best = Curve(*(float(number) for number in found))
        shares = np.linspace(shares[max(0, first - 1)], shares[min(first + 1, LIMITS - 1)], LIMITS)
    return Curve(best.b0 / scale, best.b1, best.limit, best.error)


def _fit_to_limits(
    x: Floats, values: Floats, *, weights: Floats, limits: Floats, least: float
) -> tuple[Floats, Floats, Floats]:
    """
    Fit b0 and b1 for each limit, by non-negative least squares; return the errors in the metric.

    With two unknowns these have a closed form, so all limits are done at once: where one of the
    two would be negative, it is zero and the other is fitted alone.
    """
    above = np.maximum(values - limits[:, None], least)
    # An error of the metric grows as the square of its reciprocal; this undoes it.
    square = above * above
    trust = weights * square * square
    xx, xy = (trust * x * x).sum(axis=1), (trust * x / above).sum(axis=1)
    x1, y1 = (trust * x).sum(axis=1), (trust / above).sum(axis=1)
    ones = trust.sum(axis=1)
    determinant = xx * ones - x1 * x1
    # Where all points are at one iteration there is no slope.
    level = determinant <= 1e-12 * xx * ones
    solvable = np.where(level, 1.0, determinant)
    b0, b1 = (xy * ones - y1 * x1) / solvable, (y1 * xx - xy * x1) / solvable
    flat, steep = level | (b0 <= 0.0), b1 < 0.0
    b1 = np.where(flat, y1 / ones, np.maximum(b1, 0.0))
    b0 = np.where(flat, 0.0, np.where(steep, xy / np.where(xx > 0.0, xx, 1.0), b0))
    denominators = b0[:, None] * x + b1[:, None]
    # Infinite at the start: only where the first points are of no weight.
    finite = denominators.min(axis=1) > 0.0
    misses = limits[:, None] + 1.0 / np.where(finite[:, None], denominators, 1.0) - values
    errors = np.sqrt((weights * misses * misses).sum(axis=1) / weights.sum())
    return b0, b1, np.where(finite, errors, math.inf)

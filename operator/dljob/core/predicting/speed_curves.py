"""
How fast a type of job trains in a shape, as far as its own profile says.

:mod:`dljob.core.predicting.relating` calls this, and asks other profiles where this is not enough.
Measured speeds are returned as they are, never smoothed: real scaling peaks, falls and is noisy.
Between two measured counts of GPUs speed is taken as straight in log–log; beyond them the time of
an iteration is fitted as ``t(g) = a/g + b + c*g`` with no negative term, a curve that can level off
and fall but never grows faster than linearly.
"""

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

from dljob.core.profiles import Profile
from dljob_wire.messages import Shape

Numbers = Sequence[float]
IterationTime = tuple[float, float, float]
"""``a, b, c`` of the time of an iteration: the computing, constant and coordinating parts."""


SLOWEST, FASTEST = 1e-12, 1e12
"""The bounds of a believable measurement, in iterations per second."""


class Estimate(NamedTuple):
    """A speed in iterations per second, and how far it can be trusted."""

    value: float
    confidence: float
    """1: measured; 0: a guess."""


class Point(NamedTuple):
    """A measured speed of one type of GPU."""

    gpus: int
    nodes: int
    speed: float
    weight: float


# --- one profile alone ----------------------------------------------------------


def points_by_type(profile: Profile) -> Mapping[str, tuple[Point, ...]]:
    """The usable measurements of a profile by type of GPU, in order of count and nodes."""
    known: Mapping[str, tuple[Point, ...]] | None = profile.memo.get("points")
    if known is None:
        points: dict[str, list[Point]] = {}
        for shape, speed in sorted(profile.speeds.items()):
            if SLOWEST < speed.iterations_per_s < FASTEST:
                point = Point(shape.gpus, shape.nodes, speed.iterations_per_s, speed.weight)
                points.setdefault(shape.gpu_type, []).append(point)
        known = profile.memo["points"] = {kind: tuple(points[kind]) for kind in sorted(points)}
    return known


def estimate_alone(profile: Profile, shape: Shape) -> Estimate | None:
    """Estimate a measured shape, or one between two measured ones on the same number of nodes."""
    points = points_by_type(profile).get(shape.gpu_type, ())
    lower = upper = None
    for point in points:
        if point.nodes == shape.nodes:
            if point.gpus == shape.gpus:
                return Estimate(point.speed, 1.0)
            if point.gpus < shape.gpus:
                lower = point
            elif upper is None:
                upper = point
    if lower is None or upper is None:
        return None
    return _between(lower, upper, gpus=shape.gpus)


def _between(lower: Point, upper: Point, *, gpus: int) -> Estimate:
    gap = math.log(upper.gpus / lower.gpus)
    share = math.log(gpus / lower.gpus) / gap
    value = lower.speed * (upper.speed / lower.speed) ** share
    # Measurements at 1 and 64 say less about 8 than measurements at 4 and 16.
    return Estimate(value, 0.9 / max(1.0, gap / math.log(4.0)))


def spread_exponent_alone(profile: Profile) -> float | None:
    """How much this profile loses by spreading, from its shapes of equal count."""
    if "spread" not in profile.memo:
        seen = [
            -math.log(wide.speed / narrow.speed) / math.log(wide.nodes / narrow.nodes)
            for points in points_by_type(profile).values()
            for narrow, wide in _pairs(points)
        ]
        profile.memo["spread"] = max(0.0, median(seen)) if seen else None
    exponent: float | None = profile.memo["spread"]
    return exponent


def _pairs(points: Sequence[Point]) -> Iterator[tuple[Point, Point]]:
    """Yield each point with the narrowest point of the same number of GPUs, which comes first in the order."""
    narrow: Point | None = None
    for point in points:
        if narrow is None or narrow.gpus != point.gpus:
            narrow = point
        else:
            yield narrow, point


def type_ratio_alone(profile: Profile, old: str, *, new: str) -> float | None:
    """How much faster the new type is than the old one, at the shapes measured on both."""
    points = points_by_type(profile)
    if old not in points or new not in points:
        return None
    before = {(point.gpus, point.nodes): point.speed for point in points[old]}
    after = {(point.gpus, point.nodes): point.speed for point in points[new]}
    ratios = [after[key] / before[key] for key in before if key in after]
    return median(ratios) if ratios else None


# --- curves: speed by count, for one type and one number of nodes -------------------------


def pick_nearest(points: Iterable[Point], nodes: int) -> tuple[Point, ...]:
    """One point a count: the one that was measured over the most similar number of nodes."""
    nearest: dict[int, Point] = {}
    for point in points:
        rival = nearest.get(point.gpus)
        if rival is None or _distance(point.nodes, nodes) < _distance(rival.nodes, nodes):
            nearest[point.gpus] = point
    return tuple(nearest.values())


def make_curve(points: Iterable[Point], nodes: int, exponent: float) -> tuple[Point, ...]:
    """One point a count, in order, as if all had been measured over that many nodes."""
    return tuple(
        point._replace(speed=point.speed * (point.nodes / nodes) ** exponent, nodes=nodes)
        for point in pick_nearest(points, nodes)
    )


def _distance(one: int, other: int) -> float:
    return max(one, other) / min(one, other)


def read_curve(curve: Sequence[Point], gpus: int) -> Estimate | None:
    """The speed at that count if the curve reaches there."""
    lower: Point | None = None
    for point in curve:
        if point.gpus == gpus:
            return Estimate(point.speed, 1.0)
        if point.gpus > gpus:
            return _between(lower, point, gpus=gpus) if lower is not None else None
        lower = point
    return None


def fit_iteration_time(curve: Sequence[Point]) -> IterationTime:
    """
    Fit ``a, b, c >= 0`` of ``t(g) = a/g + b + c*g`` to the relative errors of a curve.

    Two points cannot distinguish a constant from a rising part, so they get no ``c``.
    """
    # A point needs some weight.
    trust = [math.sqrt(min(max(point.weight, 0.1), 10.0)) for point in curve]
    scale = [weight * point.speed for weight, point in zip(trust, curve, strict=True)]
    counts = [point.gpus for point in curve]
    terms: tuple[Numbers, ...] = ([1.0 / count for count in counts], [1.0] * len(counts), counts)
    columns = [
        [each * part for each, part in zip(scale, term, strict=True)]
        for term in terms[: 3 if len(curve) > 2 else 2]
    ]
    a, b, c = (*_fit_nonnegative(columns, trust), 0.0)[:3]
    return (a, b, c)


def _fit_nonnegative(columns: Sequence[Numbers], wanted: Numbers) -> list[float]:
    """
    Solve the least squares with no factor below zero.

    The columns in use at the optimum are fitted as if they were alone, so one subset of the few
    columns has the optimum. SciPy's solver takes as long to import as the rest of the brain.
    """
    every = range(len(columns))
    best, least = [0.0 for _ in every], math.inf
    for chosen in (some for size in every for some in combinations(every, size + 1)):
        factors, missed = _fit([columns[each] for each in chosen], wanted)
        if missed < least and min(factors) >= 0.0:
            of = dict(zip(chosen, factors, strict=True))
            best, least = [of.get(each, 0.0) for each in every], missed
    return best


def _fit(columns: Sequence[Numbers], wanted: Numbers) -> tuple[list[float], float]:
    """Solve the least squares, and return their sum, by making each column orthogonal to the
    former."""
    if not columns:
        return [], _dot(wanted, wanted)
    first, *others = columns
    # A column with no remainder depends on the former ones, and adds nothing.
    length = _dot(first, first) or 1.0
    shares = [_dot(first, each) / length for each in (*others, wanted)]
    *left, rest = (
        [value - share * along for value, along in zip(each, first, strict=True)]
        for each, share in zip((*others, wanted), shares, strict=True)
    )
    factors, missed = _fit(left, rest)
    return [shares[-1] - _dot(shares[:-1], factors), *factors], missed


def _dot(one: Numbers, other: Numbers) -> float:
    return math.fsum(map(operator.mul, one, other))


def iteration_time(terms: IterationTime, gpus: int, *, batch: float = 1.0) -> float:
    """The time of an iteration; with a larger batch only the computing part grows."""
    a, b, c = terms
    return a * batch / gpus + b + c * gpus


def fitted_growth(curve: Sequence[Point], start: int, *, gpus: int) -> float:
    """The factor of the fitted speed from one count to another."""
    terms = fit_iteration_time(curve)
    return iteration_time(terms, start) / iteration_time(terms, gpus)


def bound_growth(growth: float, measured: Sequence[Point], *, start: int, gpus: int) -> float:
    """Bound a growth: never faster than linear, and no growth after a fall at the end of a
    curve."""
    linear = gpus / start
    if gpus < start:
        return max(growth, linear)
    falls = len(measured) > 1 and measured[-1].speed <= measured[-2].speed
    return min(growth, 1.0 if falls else linear)

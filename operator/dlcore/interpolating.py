"""
How fast a type of job trains in a shape, measured or not, and how far that can be trusted.

Called by :mod:`dlcore.predicting` only, which adds the times of the paper to it. What a profile
holds is returned as it was measured, never smoothed: real scaling peaks, falls and is noisy. What
it does not hold is concluded from what is nearest, in this order, with falling confidence:

1. between two measured counts on as many nodes: straight in log–log;
2. the same type over another number of nodes: every doubling of the nodes costs a constant share,
   learnt from shapes of equal count (this profile's, else its relatives', else a default);
3. beyond the measured counts: along a curve that is known there (another type of GPU, a relative),
   else along a fitted time of one iteration ``t(g) = a/g + b + c*g`` with no negative term, which
   can level off and fall but never grow faster than linearly;
4. another type of GPU: by the ratio of speeds that profiles with both types show;
5. a type of job never seen: by its nearest relatives.

An :class:`Atlas` is one collection of profiles with the conclusions drawn from it. It is kept
between decisions for as long as the collection is the same object; a collection is a value and
must not be changed in place.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from dlcore.profiles import JobType, Profile
from dlwire.messages import Shape

SPREAD_EXPONENT = 0.14
"""
Speed over n nodes is n to the power of minus this: the median over the five models that Chronus
measured (``profiles/chronus``), where convolutional nets lie near 0.06 and VGG near 0.8.
"""

ITERATION_TIME = (0.8735, 0.1258, 0.0007)
"""
``a, b, c`` of the time of one iteration, relative to one GPU, when nothing else is known: fitted
to the median gain of each doubling over all curves of ``profiles/elasticflow``.
"""

TYPE_SPEED = {"K80": 1.0, "P100": 3.3, "V100": 4.1}
"""Relative speeds of types when no profile has both: medians of ``profiles/gavel`` on one GPU."""


class Estimate(NamedTuple):
    """A speed in iterations per second, and how far it can be trusted."""

    value: float
    confidence: float
    """1 was measured; 0 is a guess."""


class Point(NamedTuple):
    """A measured speed of one type of GPU."""

    gpus: int
    nodes: int
    speed: float
    weight: float


class Factor(NamedTuple):
    """Something to multiply a speed by, or an exponent, with the trust it deserves."""

    value: float
    confidence: float


UNKNOWN = Estimate(0.0, 0.0)


# --- what one profile says alone ----------------------------------------------------------


def points_by_type(profile: Profile) -> Mapping[str, tuple[Point, ...]]:
    """The usable measurements of a profile by type of GPU, in order of count and nodes."""
    known: Mapping[str, tuple[Point, ...]] | None = profile.memo.get("points")
    if known is None:
        points: dict[str, list[Point]] = {}
        for shape, speed in sorted(profile.speeds.items()):
            if 0.0 < speed.iterations_per_s < math.inf:
                point = Point(shape.gpus, shape.nodes, speed.iterations_per_s, speed.weight)
                points.setdefault(shape.gpu_type, []).append(point)
        known = profile.memo["points"] = {kind: tuple(points[kind]) for kind in sorted(points)}
    return known


def estimate_alone(profile: Profile, shape: Shape) -> Estimate | None:
    """What needs no other profile: a measured shape, or one between two on as many nodes."""
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
    return _between(lower, upper, shape.gpus)


def _between(lower: Point, upper: Point, gpus: int) -> Estimate:
    gap = math.log(upper.gpus / lower.gpus)
    share = math.log(gpus / lower.gpus) / gap
    value = lower.speed * (upper.speed / lower.speed) ** share
    # Measured 1 and 64 say less about 8 than measured 4 and 16 do.
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
    """Each point with the narrowest one of the same count, which comes first."""
    narrow: Point | None = None
    for point in points:
        if narrow is None or narrow.gpus != point.gpus:
            narrow = point
        else:
            yield narrow, point


def type_ratio_alone(profile: Profile, old: str, new: str) -> float | None:
    """How much faster the new type is than the old one, at the shapes measured on both."""
    points = points_by_type(profile)
    if old not in points or new not in points:
        return None
    before = {(point.gpus, point.nodes): point.speed for point in points[old]}
    after = {(point.gpus, point.nodes): point.speed for point in points[new]}
    ratios = [after[key] / before[key] for key in before if key in after]
    return median(ratios) if ratios else None


# --- curves: speed by count, for one type and one number of nodes -------------------------


def make_curve(points: Iterable[Point], nodes: int, exponent: float) -> tuple[Point, ...]:
    """
    One point a count, as if all had been measured over that many nodes.

    Where a count was measured over several numbers of nodes, the nearest speaks for it.
    """
    nearest: dict[int, Point] = {}
    for point in points:
        rival = nearest.get(point.gpus)
        if rival is None or _distance(point.nodes, nodes) < _distance(rival.nodes, nodes):
            nearest[point.gpus] = point
    return tuple(
        point._replace(speed=point.speed * (point.nodes / nodes) ** exponent)
        for point in nearest.values()
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
            return _between(lower, point, gpus) if lower is not None else None
        lower = point
    return None


def fit_iteration_time(curve: Sequence[Point]) -> tuple[float, float, float]:
    """
    Fit ``a, b, c >= 0`` of ``t(g) = a/g + b + c*g`` to the relative errors of a curve.

    Two points cannot tell a constant from a rising part, so they get no ``c``.
    """
    counts = np.array([float(point.gpus) for point in curve])
    speeds = np.array([point.speed for point in curve])
    trust = np.sqrt(np.minimum([point.weight for point in curve], 10.0))
    columns = [1.0 / counts, np.ones_like(counts), counts][: 3 if len(curve) > 2 else 2]
    rows = np.stack(columns, axis=1) * (speeds * trust)[:, None]
    solution = nnls(rows, trust)[0]
    a, b, c = (*map(float, solution), 0.0)[:3]
    return a, b, c


def iteration_time(terms: tuple[float, float, float], gpus: int, batch: float = 1.0) -> float:
    """The time of an iteration; with a larger batch only the part that is computed grows."""
    a, b, c = terms
    return a * batch / gpus + b + c * gpus


# --- what the profiles say together -------------------------------------------------------


class Atlas:
    """A collection of profiles and what was concluded from it so far."""

    __slots__ = ("_estimates", "_exponents", "_ratios", "_types", "profiles")

    def __init__(self, profiles: Mapping[JobType, Profile]) -> None:
        self.profiles = profiles
        self._estimates: dict[tuple[Profile | JobType, Shape], Estimate] = {}
        self._exponents: dict[Profile, Factor] = {}
        self._ratios: dict[tuple[str, str, str], Factor] = {}
        self._types: tuple[JobType, ...] | None = None

    def estimate(self, kind: JobType, shape: Shape) -> Estimate:
        """The speed of a type of job in a shape."""
        profile = self.profiles.get(kind)
        key = (kind if profile is None else profile, shape)
        known = self._estimates.get(key)
        if known is None:
            known = self._estimates[key] = self._conclude(kind, profile, shape)
        return known

    def _conclude(self, kind: JobType, profile: Profile | None, shape: Shape) -> Estimate:
        if profile is None or not points_by_type(profile):
            return self._from_relatives(kind, shape)
        alone = estimate_alone(profile, shape)
        if alone is not None:
            # Holds for as long as this profile does, whatever becomes of the others.
            profile.memo[shape] = alone
            return alone
        if shape.gpu_type in points_by_type(profile):
            return self._along(profile, shape)
        if "+" in shape.gpu_type:
            return self._of_slowest(kind, shape)
        return self._from_other_type(kind, profile, shape)

    # --- one profile, with what others teach about factors

    def _along(self, profile: Profile, shape: Shape) -> Estimate:
        exponent = self._spread_exponent(profile)
        curve = make_curve(points_by_type(profile)[shape.gpu_type], shape.nodes, exponent.value)
        trust = 1.0 if all(p.nodes == shape.nodes for p in curve) else exponent.confidence
        inside = read_curve(curve, shape.gpus)
        if inside is not None:
            return Estimate(inside.value, inside.confidence * trust)
        end = curve[0] if shape.gpus < curve[0].gpus else curve[-1]
        growth = self._growth(profile, curve, end.gpus, shape)
        return Estimate(end.speed * growth.value, growth.confidence * trust)

    def _growth(self, profile: Profile, curve: Sequence[Point], start: int, shape: Shape) -> Factor:
        """By what factor the speed changes from the end of a curve to a count beyond it."""
        factor = self._best_growth(profile, curve, start, shape)
        linear = shape.gpus / start
        if shape.gpus < start:
            return Factor(max(factor.value, linear), factor.confidence)
        falls = len(curve) > 1 and curve[-1].speed <= curve[-2].speed
        return Factor(min(factor.value, 1.0 if falls else linear), factor.confidence)

    def _best_growth(
        self, profile: Profile, curve: Sequence[Point], start: int, shape: Shape
    ) -> Factor:
        nearness = min(start, shape.gpus) / max(start, shape.gpus)
        own = self._shared_growth([profile], start, shape)
        if own is not None:
            return Factor(own, 0.6)
        if len(curve) >= 3:
            return Factor(_fitted_growth(curve, start, shape.gpus), 0.8 * nearness)
        same_model = self._shared_growth(
            self._relatives(lambda kind: kind.model == profile.type.model), start, shape
        )
        if same_model is not None:
            return Factor(same_model, 0.5)
        if len(curve) == 2:
            return Factor(_fitted_growth(curve, start, shape.gpus), 0.5 * nearness)
        anyone = self._shared_growth(self._relatives(lambda _: True), start, shape)
        if anyone is not None:
            return Factor(anyone, 0.3)
        usual = iteration_time(ITERATION_TIME, start) / iteration_time(ITERATION_TIME, shape.gpus)
        return Factor(usual, 0.3 * nearness)

    def _shared_growth(self, profiles: Iterable[Profile], start: int, shape: Shape) -> float | None:
        """The median growth over the curves that reach from ``start`` to the shape's count."""
        seen: list[float] = []
        for profile in profiles:
            exponent = self._spread_exponent(profile).value
            for points in points_by_type(profile).values():
                curve = make_curve(points, shape.nodes, exponent)
                before, after = read_curve(curve, start), read_curve(curve, shape.gpus)
                if before is not None and after is not None:
                    seen.append(after.value / before.value)
        return median(seen) if seen else None

    def _spread_exponent(self, profile: Profile) -> Factor:
        known = self._exponents.get(profile)
        if known is None:
            known = self._exponents[profile] = self._find_spread_exponent(profile)
        return known

    def _find_spread_exponent(self, profile: Profile) -> Factor:
        own = spread_exponent_alone(profile)
        if own is not None:
            return Factor(own, 0.8)
        relatives = [(p, spread_exponent_alone(p)) for p in self._relatives(lambda _: True)]
        model = profile.type.model
        same = [value for p, value in relatives if value is not None and p.type.model == model]
        if same:
            return Factor(median(same), 0.7)
        anyone = [value for _, value in relatives if value is not None]
        return Factor(median(anyone), 0.5) if anyone else Factor(SPREAD_EXPONENT, 0.4)

    # --- other types of GPU

    def _of_slowest(self, kind: JobType, shape: Shape) -> Estimate:
        """Synchronous training over mixed GPUs goes at the pace of the slowest of them."""
        parts = [
            self.estimate(kind, Shape(shape.gpus, shape.nodes, part))
            for part in shape.gpu_type.split("+")
        ]
        return Estimate(
            min(part.value for part in parts), 0.8 * min(part.confidence for part in parts)
        )

    def _from_other_type(self, kind: JobType, profile: Profile, shape: Shape) -> Estimate:
        best = UNKNOWN
        for source in points_by_type(profile):
            base = self.estimate(kind, Shape(shape.gpus, shape.nodes, source))
            ratio = self._type_ratio(kind.model, source, shape.gpu_type)
            rival = Estimate(base.value * ratio.value, base.confidence * ratio.confidence)
            if rival.confidence > best.confidence:
                best = rival
        return best

    def _type_ratio(self, model: str, old: str, new: str) -> Factor:
        key = (model, old, new)
        known = self._ratios.get(key)
        if known is None:
            known = self._ratios[key] = self._find_type_ratio(model, old, new)
        return known

    def _find_type_ratio(self, model: str, old: str, new: str) -> Factor:
        seen = [(p, type_ratio_alone(p, old, new)) for p in self._relatives(lambda _: True)]
        same = [ratio for p, ratio in seen if ratio is not None and p.type.model == model]
        if same:
            return Factor(median(same), 0.6)
        anyone = [ratio for _, ratio in seen if ratio is not None]
        if anyone:
            return Factor(median(anyone), 0.4)
        if old in TYPE_SPEED and new in TYPE_SPEED:
            return Factor(TYPE_SPEED[new] / TYPE_SPEED[old], 0.3)
        # The nameless type is "the one there is": most likely the very one that was measured.
        return Factor(1.0, 0.5 if "" in {old, new} else 0.1)

    # --- relatives

    def _relatives(self, are_related: Callable[[JobType], bool]) -> list[Profile]:
        if self._types is None:
            self._types = tuple(sorted(self.profiles))
        chosen = [self.profiles[kind] for kind in self._types if are_related(kind)]
        return [profile for profile in chosen if points_by_type(profile)]

    def _from_relatives(self, kind: JobType, shape: Shape) -> Estimate:
        same_model = self._relatives(lambda other: other.model == kind.model)
        if same_model:
            return self._from_same_model(kind, same_model, shape)
        same_data = self._relatives(
            lambda other: bool(kind.dataset) and other.dataset == kind.dataset
        )
        relatives, trust = (same_data, 0.2) if same_data else (self._relatives(lambda _: True), 0.1)
        seen = [self.estimate(profile.type, shape) for profile in relatives]
        if not seen:
            return UNKNOWN
        return Estimate(
            median(each.value for each in seen), trust * median(each.confidence for each in seen)
        )

    def _from_same_model(
        self, kind: JobType, relatives: Sequence[Profile], shape: Shape
    ) -> Estimate:
        """Take the one with the nearest batch size, and let the computed part grow with it."""
        nearest = min(relatives, key=lambda profile: _remoteness(kind, profile.type))
        base = self.estimate(nearest.type, shape)
        batches = (kind.batch_size, nearest.type.batch_size)
        if 0 in batches:
            return Estimate(base.value, 0.3 * base.confidence)
        terms = self._iteration_time(nearest, shape)
        slower = iteration_time(terms, shape.gpus, batches[0] / batches[1]) / iteration_time(
            terms, shape.gpus
        )
        return Estimate(base.value / slower, 0.5 * base.confidence)

    def _iteration_time(self, profile: Profile, shape: Shape) -> tuple[float, float, float]:
        points = points_by_type(profile)
        measured = points.get(shape.gpu_type) or next(iter(points.values()))
        curve = make_curve(measured, shape.nodes, self._spread_exponent(profile).value)
        return fit_iteration_time(curve) if len(curve) > 1 else ITERATION_TIME


def _fitted_growth(curve: Sequence[Point], start: int, gpus: int) -> float:
    terms = fit_iteration_time(curve)
    return iteration_time(terms, start) / iteration_time(terms, gpus)


def _remoteness(kind: JobType, other: JobType) -> tuple[bool, float, JobType]:
    """By dataset first, then by how far the batch sizes are apart; ties by name."""
    one, two = max(kind.batch_size, 1), max(other.batch_size, 1)
    return (kind.dataset != other.dataset, max(one, two) / min(one, two), other)


_latest: list[Atlas] = []


def atlas_of(profiles: Mapping[JobType, Profile]) -> Atlas:
    """
    The atlas of a collection, the same as the last time if it is the same object.

    A few are kept, because several simulations may take turns in one process. What is kept are
    conclusions only: without them the answers would be the same, but slower.
    """
    for atlas in _latest:
        if atlas.profiles is profiles:
            return atlas
    atlas = Atlas(profiles)
    _latest[:] = [atlas, *_latest[:3]]
    return atlas

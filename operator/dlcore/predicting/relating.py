"""
How fast a type of job trains in a shape, with what other profiles teach about it.

:class:`dlcore.predicting.predictor.Predictor` calls this. Where a profile alone cannot tell
(:mod:`dlcore.predicting.interpolating`), it is asked in this order, with falling confidence:

1. the same type of GPU over another number of nodes: every doubling of the nodes costs a constant
   share, learnt from shapes of equal count (this profile's, else its relatives', else a default);
2. counts beyond the measured ones: along a curve that reaches there (another type of GPU, else the
   same model with another batch size, else all), or a fitted one if this profile has enough points;
3. another type of GPU: by the ratio of speeds that profiles with both types show;
4. a type of job never seen: the same model with another batch size, else jobs on the same dataset,
   else what is usual.

An :class:`Atlas` is one collection of profiles with the conclusions drawn from it. It is kept
between decisions for as long as the collection is the same object; a collection is a value and
must not be changed in place.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import NamedTuple

from dlcore.predicting.conclusions import Kept
from dlcore.predicting.interpolating import (
    Estimate,
    IterationTime,
    Point,
    bound_growth,
    estimate_alone,
    fit_iteration_time,
    fitted_growth,
    iteration_time,
    make_curve,
    pick_nearest,
    points_by_type,
    read_curve,
    spread_exponent_alone,
    type_ratio_alone,
)
from dlcore.profiles import JobType, Profile
from dlwire.messages import Shape

SPREAD_EXPONENT = 0.14
"""
Speed over n nodes is n to the power of minus this: the median over the five models that Chronus
measured (``profiles/chronus``), where convolutional nets lie near 0.06 and VGG near 0.8.
"""

USUAL_TIME: IterationTime = (0.8735, 0.1258, 0.0007)
"""
The time of one iteration, relative to one GPU, when nothing else is known: fitted to the median
gain of each doubling over all curves of ``profiles/elasticflow``.
"""

TYPE_SPEED = {"K80": 1.0, "P100": 3.3, "V100": 4.1}
"""Relative speeds of types when no profile has both: medians of ``profiles/gavel`` on one GPU."""

UNKNOWN = Estimate(0.0, 0.0)


class Factor(NamedTuple):
    """Something to multiply a speed by, or an exponent, with the trust it deserves."""

    value: float
    confidence: float


def usual_growth(start: int, gpus: int) -> float:
    """By what factor the usual job becomes faster with that other number of GPUs."""
    return iteration_time(USUAL_TIME, start) / iteration_time(USUAL_TIME, gpus)


class Atlas:
    """A collection of profiles and what was concluded from it so far."""

    def __init__(self, profiles: Mapping[JobType, Profile]) -> None:
        self.profiles = profiles
        self._estimates: dict[tuple[Profile | JobType, Shape], Estimate] = {}
        self._exponents: dict[Profile, Factor] = {}
        self._ratios: dict[tuple[str, str, str], Factor] = {}
        self._usual_exponents: dict[str | None, float | None] = {}
        self._growths: dict[tuple[int, Shape], float | None] = {}
        self._usual_estimates: dict[tuple[str | None, Shape], Estimate] = {}

    def estimate(self, kind: JobType, shape: Shape) -> Estimate:
        """The speed of a type of job in a shape; 0 if there is nothing to conclude it from."""
        profile = self.profiles.get(kind)
        key = (kind if profile is None else profile, shape)
        known = self._estimates.get(key)
        if known is None:
            known = self._estimates[key] = self._conclude(kind, profile, shape)
        return known

    def _conclude(self, kind: JobType, profile: Profile | None, shape: Shape) -> Estimate:
        if shape.gpus < 1 or shape.nodes < 1:
            return UNKNOWN
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
        """Along what was measured on this type of GPU, as if all of it over as many nodes."""
        exponent = self._spread_exponent(profile)
        points = pick_nearest(points_by_type(profile)[shape.gpu_type], shape.nodes)
        curve = make_curve(points, shape.nodes, exponent.value)
        inside = read_curve(curve, shape.gpus)
        if inside is not None and inside.confidence == 1.0:
            # This very count was measured, but over another number of nodes.
            return Estimate(inside.value, exponent.confidence)
        # Where one node more comes with every few GPUs, an error in what nodes cost cancels out.
        spread = any(point.nodes != shape.nodes for point in points)
        trust = 0.5 + 0.5 * exponent.confidence if spread else 1.0
        if inside is not None:
            return Estimate(inside.value, inside.confidence * trust)
        end = curve[0] if shape.gpus < curve[0].gpus else curve[-1]
        growth = self._best_growth(profile, curve, end.gpus, shape)
        bounded = bound_growth(growth.value, points, end.gpus, shape.gpus)
        return Estimate(end.speed * bounded, growth.confidence * trust)

    def _best_growth(
        self, profile: Profile, curve: Sequence[Point], start: int, shape: Shape
    ) -> Factor:
        """By what factor the speed changes from the end of a curve to a count beyond it."""
        nearness = math.sqrt(min(start, shape.gpus) / max(start, shape.gpus))
        own = self._shared_growth([profile], start, shape)
        if own is not None:
            return Factor(own, 0.6)
        if len(curve) >= 3:
            return Factor(fitted_growth(curve, start, shape.gpus), 0.8 * nearness)
        same_model = self._growth_of_model(profile.type, start, shape)
        if same_model is not None:
            return Factor(same_model, 0.5)
        if len(curve) == 2:
            return Factor(fitted_growth(curve, start, shape.gpus), 0.5 * nearness)
        anyone = self._growth_of_anyone(start, shape)
        if anyone is not None:
            return Factor(anyone, 0.3 * nearness)
        return Factor(usual_growth(start, shape.gpus), 0.2 * nearness)

    def _growth_of_model(self, kind: JobType, start: int, shape: Shape) -> float | None:
        """How the same model grows at the nearest batch size that was measured so far."""
        relatives = self._same_model(kind)
        for relative in sorted(relatives, key=lambda each: _remoteness(kind, shape.gpu_type, each)):
            growth = self._shared_growth([relative], start, shape)
            if growth is not None:
                # With more to compute between two synchronisations a larger batch scales further.
                before = self._slowdown_by_batch(kind, relative, shape._replace(gpus=start))
                return growth * before / self._slowdown_by_batch(kind, relative, shape)
        return None

    def _growth_of_anyone(self, start: int, shape: Shape) -> float | None:
        key = (start, shape)
        if key not in self._growths:
            self._growths[key] = self._shared_growth(self._everyone, start, shape)
        return self._growths[key]

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
            return Factor(own, 0.7)
        for model, trust in ((_bare(profile.type.model), 0.6), (None, 0.5)):
            usual = self._usual_exponent(model)
            if usual is not None:
                return Factor(usual, trust)
        return Factor(SPREAD_EXPONENT, 0.4)

    def _usual_exponent(self, model: str | None) -> float | None:
        """The median over all profiles of a model, or over all of them."""
        if model not in self._usual_exponents:
            relatives = self._everyone if model is None else self._models.get(model, ())
            seen = [spread_exponent_alone(relative) for relative in relatives]
            known = [exponent for exponent in seen if exponent is not None]
            self._usual_exponents[model] = median(known) if known else None
        return self._usual_exponents[model]

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
            ratio = self._type_ratio(kind, source, shape.gpu_type)
            rival = Estimate(base.value * ratio.value, base.confidence * ratio.confidence)
            if rival.confidence > best.confidence:
                best = rival
        return best

    def _type_ratio(self, kind: JobType, old: str, new: str) -> Factor:
        key = (kind.model, old, new)
        known = self._ratios.get(key)
        if known is None:
            known = self._ratios[key] = self._find_type_ratio(kind, old, new)
        return known

    def _find_type_ratio(self, kind: JobType, old: str, new: str) -> Factor:
        for relatives, trust in ((self._same_model(kind), 0.5), (self._everyone, 0.4)):
            seen = [type_ratio_alone(relative, old, new) for relative in relatives]
            known = [ratio for ratio in seen if ratio is not None]
            if known:
                return Factor(median(known), trust)
        if old in TYPE_SPEED and new in TYPE_SPEED:
            return Factor(TYPE_SPEED[new] / TYPE_SPEED[old], 0.3)
        # The nameless type is "the one there is": most likely the very one that was measured.
        return Factor(1.0, 0.5 if "" in {old, new} else 0.1)

    # --- relatives

    @cached_property
    def _everyone(self) -> Sequence[Profile]:
        """Every profile that holds a speed, in order of type."""
        chosen = (self.profiles[kind] for kind in sorted(self.profiles))
        return tuple(each for each in chosen if points_by_type(each))

    @cached_property
    def _models(self) -> Mapping[str, Sequence[Profile]]:
        """The same by model, however its name is spelt."""
        models: dict[str, list[Profile]] = {}
        for each in self._everyone:
            models.setdefault(_bare(each.type.model), []).append(each)
        return models

    def _same_model(self, kind: JobType) -> Sequence[Profile]:
        return self._models.get(_bare(kind.model), ())

    def _from_relatives(self, kind: JobType, shape: Shape) -> Estimate:
        same_model = self._same_model(kind)
        if same_model:
            return self._from_same_model(kind, same_model, shape)
        if kind.dataset:
            usual = self._usual_estimate(kind.dataset, shape)
            if usual is not UNKNOWN:
                return Estimate(usual.value, 0.2 * usual.confidence)
        usual = self._usual_estimate(None, shape)
        return Estimate(usual.value, 0.1 * usual.confidence)

    def _usual_estimate(self, dataset: str | None, shape: Shape) -> Estimate:
        """What is usual among jobs on a dataset, or among all."""
        key = (dataset, shape)
        known = self._usual_estimates.get(key)
        if known is None:
            chosen = [each for each in self._everyone if dataset in {None, each.type.dataset}]
            known = self._usual_estimates[key] = self._find_usual(chosen, shape)
        return known

    def _find_usual(self, relatives: Sequence[Profile], shape: Shape) -> Estimate:
        """
        The usual speed on one GPU, times the usual growth from there.

        Not the usual speed in this very shape: the medians of two shapes may be those of two very
        different jobs.
        """
        if not relatives:
            return UNKNOWN
        one = [self.estimate(each.type, Shape(1, 1, shape.gpu_type)) for each in relatives]
        many = [self.estimate(each.type, shape) for each in relatives]
        growth = median(after.value / before.value for before, after in zip(one, many, strict=True))
        return Estimate(
            median(each.value for each in one) * growth, median(each.confidence for each in many)
        )

    def _from_same_model(
        self, kind: JobType, relatives: Sequence[Profile], shape: Shape
    ) -> Estimate:
        """Take the one with the nearest batch size, and let the computed part grow with it."""
        nearest = min(relatives, key=lambda each: _remoteness(kind, shape.gpu_type, each))
        base = self.estimate(nearest.type, shape)
        known = kind.batch_size and nearest.type.batch_size
        return Estimate(
            base.value / self._slowdown_by_batch(kind, nearest, shape),
            base.confidence * (0.5 if known else 0.3),
        )

    def _slowdown_by_batch(self, kind: JobType, relative: Profile, shape: Shape) -> float:
        """By what factor an iteration takes longer than the relative's, if only the batch differs."""
        if not (kind.batch_size and relative.type.batch_size):
            return 1.0
        terms = self._iteration_time(relative, shape)
        ratio = kind.batch_size / relative.type.batch_size
        return iteration_time(terms, shape.gpus, ratio) / iteration_time(terms, shape.gpus)

    def _iteration_time(self, profile: Profile, shape: Shape) -> IterationTime:
        points = points_by_type(profile)
        measured = points.get(shape.gpu_type) or next(iter(points.values()))
        curve = make_curve(measured, shape.nodes, self._spread_exponent(profile).value)
        return fit_iteration_time(curve) if len(curve) > 1 else USUAL_TIME


def _remoteness(kind: JobType, gpu_type: str, relative: Profile) -> tuple[object, ...]:
    """First who ran on that type of GPU, then by dataset, then by batch size; ties by name."""
    other = relative.type
    one, two = max(kind.batch_size, 1), max(other.batch_size, 1)
    return (
        gpu_type not in points_by_type(relative),
        kind.dataset != other.dataset,
        max(one, two) / min(one, two),
        other,
    )


def _bare(name: str) -> str:
    """What is left of a name when spelling is: ``ResNet-50`` is ``resnet50``."""
    return "".join(c for c in name.casefold() if c.isalnum())


_kept: Kept[Atlas] = Kept(most=4)


def atlas_of(profiles: Mapping[JobType, Profile]) -> Atlas:
    """The atlas of a collection, the same as the last time if it is the same object."""
    return _kept.recall(lambda atlas: atlas.profiles is profiles, lambda: Atlas(profiles))

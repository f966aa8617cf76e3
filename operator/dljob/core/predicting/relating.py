"""
How fast a type of job trains in a shape, by its own profile and those of others.

:class:`dljob.core.predicting.predictor.Predictor` calls this. Where a profile alone does not suffice
(:mod:`dljob.core.predicting.speed_curves`), it is asked in this order, with falling confidence:

1. the same type of GPU over another number of nodes: every doubling of the nodes costs a constant
   share, learnt from shapes of equal count (this profile's, else its relatives', else a default);
2. counts beyond the measured ones: along a curve that reaches there (another type of GPU, else the
   same model with another batch size, else all), or a fitted one if this profile has enough points;
3. another type of GPU: by the ratio of speeds that profiles with both types show;
4. a type of job never seen: the same model with another batch size. Of a model never seen no speed
   is known.

An :class:`Atlas` is one collection of profiles with the conclusions drawn from it. It is kept
between decisions for as long as the collection is the same object; a collection is a value and
must not be changed in place.
"""

from collections.abc import Mapping
from statistics import median

from dljob.core.predicting.growths import Factor, Growths
from dljob.core.predicting.relatives import Relatives, remoteness
from dljob.core.predicting.speed_curves import (
    Estimate,
    bound_growth,
    estimate_alone,
    pick_nearest,
    points_by_type,
    read_curve,
    type_ratio_alone,
)
from dljob.core.profiles import JobType, Profile
from dljob_wire.messages import Shape

TYPE_SPEED = {"K80": 1.0, "P100": 3.3, "V100": 4.1}
"""Relative speeds of types when no profile has both: medians of ``profiles/gavel`` on one GPU."""

UNKNOWN = Estimate(0.0, 0.0)


class Atlas:
    """A collection of profiles and the conclusions from it so far."""

    def __init__(self, profiles: Mapping[JobType, Profile]) -> None:
        self.profiles = profiles
        self._estimates: dict[tuple[Profile | JobType, Shape], Estimate] = {}
        self._relatives = Relatives(profiles)
        self._growths = Growths(self._relatives)
        self._ratios: dict[tuple[str, str, str], Factor] = {}

    def estimate(self, kind: JobType, shape: Shape) -> Estimate:
        """The speed of a type of job in a shape; 0 if there is nothing to conclude it from."""
        profile = self.profiles.get(kind)
        key = (kind if profile is None else profile, shape)
        known = self._estimates.get(key)
        if known is None:
            known = self._estimates[key] = self._conclude(kind, profile, shape=shape)
        return known

    def _conclude(self, kind: JobType, profile: Profile | None, *, shape: Shape) -> Estimate:
        if shape.gpus < 1 or shape.nodes < 1:
            return UNKNOWN
        if profile is None or not points_by_type(profile):
            return self._from_relatives(kind, shape)
        alone = estimate_alone(profile, shape)
        if alone is not None:
            # Valid as long as this profile, independent of the others.
            profile.memo[shape] = alone
            return alone
        if shape.gpu_type in points_by_type(profile):
            return self._along(profile, shape)
        if "+" in shape.gpu_type:
            return self._of_slowest(kind, shape)
        return self._from_other_type(kind, profile, shape=shape)

    # --- one profile, with the factors from others

    def _along(self, profile: Profile, shape: Shape) -> Estimate:
        """The speed along the measurements of this type of GPU, all converted to the same number of
        nodes."""
        exponent = self._growths.spread_exponent(profile)
        points = pick_nearest(points_by_type(profile)[shape.gpu_type], shape.nodes)
        curve = self._growths.curves_over(profile, shape.nodes)[shape.gpu_type]
        inside = read_curve(curve, shape.gpus)
        if inside is not None and inside.confidence == 1.0:
            # This very count was measured, but over another number of nodes.
            return Estimate(inside.value, exponent.confidence)
        # Where nodes grow in step with GPUs, an error in the cost of nodes cancels out.
        spread = any(point.nodes != shape.nodes for point in points)
        trust = 0.5 + 0.5 * exponent.confidence if spread else 1.0
        if inside is not None:
            return Estimate(inside.value, inside.confidence * trust)
        end = curve[0] if shape.gpus < curve[0].gpus else curve[-1]
        growth = self._growths.best(profile, curve, end.gpus, shape)
        bounded = bound_growth(growth.value, points, start=end.gpus, gpus=shape.gpus)
        return Estimate(end.speed * bounded, growth.confidence * trust)

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

    def _from_other_type(self, kind: JobType, profile: Profile, *, shape: Shape) -> Estimate:
        best = UNKNOWN
        for source in points_by_type(profile):
            base = self.estimate(kind, Shape(shape.gpus, shape.nodes, source))
            key = (kind.model, source, shape.gpu_type)
            ratio = self._ratios.get(key)
            if ratio is None:
                ratio = _find_type_ratio(self._relatives, kind, old=source, new=shape.gpu_type)
                self._ratios[key] = ratio
            rival = Estimate(base.value * ratio.value, base.confidence * ratio.confidence)
            if rival.confidence > best.confidence:
                best = rival
        return best

    # --- relatives

    def _from_relatives(self, kind: JobType, shape: Shape) -> Estimate:
        """Take the one with the nearest batch size, and let the computed part grow with it."""
        # Jobs of other models say nothing: they are faster or slower by orders of magnitude.
        relatives = self._relatives.same_model(kind)
        if not relatives:
            return UNKNOWN
        nearest = min(relatives, key=lambda each: remoteness(kind, shape.gpu_type, relative=each))
        base = self.estimate(nearest.type, shape)
        known = kind.batch_size and nearest.type.batch_size
        return Estimate(
            base.value / self._growths.slowdown_by_batch(kind, nearest, shape=shape),
            base.confidence * (0.5 if known else 0.3),
        )


def _find_type_ratio(relatives: Relatives, kind: JobType, *, old: str, new: str) -> Factor:
    for profiles, trust in ((relatives.same_model(kind), 0.5), (relatives.everyone, 0.4)):
        seen = [type_ratio_alone(relative, old, new=new) for relative in profiles]
        known = [ratio for ratio in seen if ratio is not None]
        if known:
            return Factor(median(known), trust)
    if old in TYPE_SPEED and new in TYPE_SPEED:
        return Factor(TYPE_SPEED[new] / TYPE_SPEED[old], 0.3)
    # The nameless type is "the one there is": most likely the very one that was measured.
    return Factor(1.0, 0.5 if "" in {old, new} else 0.1)

"""
By what factor jobs become faster with more GPUs, where one profile alone does not reach.

A curve is what was measured on one type of GPU, as if all of it over the same number of nodes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from dljob.core.predicting.relatives import Relatives, bare, remoteness
from dljob.core.predicting.speed_curves import (
    IterationTime,
    Point,
    fit_iteration_time,
    fitted_growth,
    iteration_time,
    make_curve,
    points_by_type,
    read_curve,
    spread_exponent_alone,
)
from dljob.core.profiles import JobType, Profile
from dljob_wire.messages import Shape

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


class Factor(NamedTuple):
    """Something to multiply a speed by, or an exponent, with the trust it deserves."""

    value: float
    confidence: float


def usual_growth(start: int, gpus: int) -> float:
    """The speed-up of the usual job with that other number of GPUs."""
    return iteration_time(USUAL_TIME, start) / iteration_time(USUAL_TIME, gpus)


class Growths:
    """The curves of a collection of profiles, and the factors that follow from them."""

    def __init__(self, relatives: Relatives) -> None:
        self._relatives = relatives
        self._exponents: dict[Profile, Factor] = {}
        self._curves: dict[tuple[Profile, int], Mapping[str, tuple[Point, ...]]] = {}
        self._times: dict[tuple[Profile, str, int], IterationTime] = {}
        self._usual_exponents: dict[str | None, float | None] = {}
        self._growths: dict[tuple[int, Shape], float | None] = {}
        self._growths_of: dict[tuple[Profile, int, int, int], float | None] = {}

    def best(self, profile: Profile, curve: Sequence[Point], start: int, shape: Shape) -> Factor:
        """The factor of the speed from the end of a curve to a count beyond it."""
        nearness = math.sqrt(min(start, shape.gpus) / max(start, shape.gpus))
        own = self._growth_of(profile, start, shape=shape)
        if own is not None:
            return Factor(own, 0.6)
        # Three points distinguish a fit from noise; with two it is only better than others' curves in general.
        if len(curve) >= 3:
            return Factor(fitted_growth(curve, start, gpus=shape.gpus), 0.8 * nearness)
        same_model = self._growth_of_model(profile.type, start, shape=shape)
        if same_model is not None:
            return Factor(same_model, 0.5)
        if len(curve) == 2:
            return Factor(fitted_growth(curve, start, gpus=shape.gpus), 0.5 * nearness)
        if (start, shape) not in self._growths:
            everyone = self._relatives.everyone
            self._growths[start, shape] = self._shared_growth(everyone, start, shape=shape)
        anyone = self._growths[start, shape]
        if anyone is not None:
            return Factor(anyone, 0.3 * nearness)
        return Factor(usual_growth(start, shape.gpus), 0.2 * nearness)

    def _growth_of_model(self, kind: JobType, start: int, *, shape: Shape) -> float | None:
        """The growth of the same model at the nearest batch size that was measured that far."""
        relatives = self._relatives.same_model(kind)
        for relative in sorted(
            relatives, key=lambda each: remoteness(kind, shape.gpu_type, relative=each)
        ):
            growth = self._growth_of(relative, start, shape=shape)
            if growth is not None:
                # With more to compute between two synchronisations a larger batch scales further.
                before = self.slowdown_by_batch(kind, relative, shape=shape._replace(gpus=start))
                return growth * before / self.slowdown_by_batch(kind, relative, shape=shape)
        return None

    def _growth_of(self, profile: Profile, start: int, *, shape: Shape) -> float | None:
        """The growth of one profile, cached for all others of its model."""
        key = (profile, start, shape.gpus, shape.nodes)
        if key not in self._growths_of:
            self._growths_of[key] = self._shared_growth([profile], start, shape=shape)
        return self._growths_of[key]

    def _shared_growth(
        self, profiles: Iterable[Profile], start: int, *, shape: Shape
    ) -> float | None:
        """The median growth over the curves that reach from ``start`` to the shape's count."""
        seen: list[float] = []
        for profile in profiles:
            for curve in self.curves_over(profile, shape.nodes).values():
                before, after = read_curve(curve, start), read_curve(curve, shape.gpus)
                if before is not None and after is not None:
                    seen.append(after.value / before.value)
        return median(seen) if seen else None

    def curves_over(self, profile: Profile, nodes: int) -> Mapping[str, tuple[Point, ...]]:
        """The measurements of a profile by type of GPU, as if all had been made over that many
        nodes."""
        known = self._curves.get((profile, nodes))
        if known is None:
            exponent = self.spread_exponent(profile).value
            known = self._curves[profile, nodes] = {
                kind: make_curve(points, nodes, exponent)
                for kind, points in points_by_type(profile).items()
            }
        return known

    def spread_exponent(self, profile: Profile) -> Factor:
        known = self._exponents.get(profile)
        if known is None:
            known = self._exponents[profile] = self._find_spread_exponent(profile)
        return known

    def _find_spread_exponent(self, profile: Profile) -> Factor:
        own = spread_exponent_alone(profile)
        if own is not None:
            return Factor(own, 0.7)
        for model, trust in ((bare(profile.type.model), 0.6), (None, 0.5)):
            usual = self._usual_exponent(model)
            if usual is not None:
                return Factor(usual, trust)
        return Factor(SPREAD_EXPONENT, 0.4)

    def _usual_exponent(self, model: str | None) -> float | None:
        """The median over all profiles of a model, or over all of them."""
        if model not in self._usual_exponents:
            relatives = (
                self._relatives.everyone if model is None else self._relatives.models.get(model, ())
            )
            seen = [spread_exponent_alone(relative) for relative in relatives]
            known = [exponent for exponent in seen if exponent is not None]
            self._usual_exponents[model] = median(known) if known else None
        return self._usual_exponents[model]

    def slowdown_by_batch(self, kind: JobType, relative: Profile, *, shape: Shape) -> float:
        """The ratio of an iteration's time to the relative's, if only the batch differs."""
        if not (kind.batch_size and relative.type.batch_size):
            return 1.0
        terms = self._iteration_time(relative, shape)
        ratio = kind.batch_size / relative.type.batch_size
        return iteration_time(terms, shape.gpus, batch=ratio) / iteration_time(terms, shape.gpus)

    def _iteration_time(self, profile: Profile, shape: Shape) -> IterationTime:
        key = (profile, shape.gpu_type, shape.nodes)
        known = self._times.get(key)
        if known is None:
            curves = self.curves_over(profile, shape.nodes)
            curve = curves.get(shape.gpu_type) or next(iter(curves.values()))
            known = fit_iteration_time(curve) if len(curve) > 1 else USUAL_TIME
            self._times[key] = known
        return known

"""
How far predicted speeds are from measured ones, from the same few points: ours and Coach's.

For :mod:`prediction`. Every shipped profile that was measured on at least four numbers of GPUs of one
type is cut down to its first few, as mini-epochs or a short offline profiling would leave it, and each
predictor is asked for the others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from dljob.core.predicting.relating import Atlas
from dljob.core.predicting.speed_curves import Point, points_by_type
from dljob.core.profiles import JobType, Profile, Speed
from dljob.sim.inputs.shipped import load_shipped
from dljob_lab import marginal_utility
from dljob_lab.marginal_utility import Sample
from dljob_wire.messages import Shape

FEWEST = 4
"""A curve with fewer counts leaves nothing to predict."""

KNOWN = (2, 3)
"""How many of the smallest counts are known: those of mini-epochs, and one more."""

Predict = Callable[[Shape], float]


class Curve(NamedTuple):
    """The measurements of a type of job on one type of GPU, each count on its fewest nodes."""

    kind: JobType
    gpu_type: str
    points: Sequence[Point]

    def cut(self, known: int) -> Profile:
        """The profile with the smallest counts only."""
        speeds = {self.shape(point): Speed(point.speed) for point in self.points[:known]}
        return Profile(self.kind, speeds)

    def shape(self, point: Point) -> Shape:
        """Where it was measured."""
        return Shape(point.gpus, point.nodes, self.gpu_type)


def read_curves() -> list[Curve]:
    """The curves of all shipped profiles."""
    curves = []
    for kind, profile in load_shipped().items():
        for gpu_type, points in points_by_type(profile).items():
            packed: dict[int, Point] = {}
            for point in points:
                packed.setdefault(point.gpus, point)
            if len(packed) >= FEWEST:
                curves.append(Curve(kind, gpu_type, tuple(packed.values())))
    return curves


# --- the predictors -----------------------------------------------------------------------


def predict_alone(curve: Curve, known: int, _: Mapping[JobType, Profile]) -> Predict:
    """Ours, if nothing was ever measured of another job."""
    atlas = Atlas({curve.kind: curve.cut(known)})
    return lambda shape: atlas.estimate(curve.kind, shape).value


def predict_with_others(curve: Curve, known: int, shipped: Mapping[JobType, Profile]) -> Predict:
    """Ours, with the shipped profiles of all other models."""
    others = {kind: each for kind, each in shipped.items() if _bare(kind) != _bare(curve.kind)}
    atlas = Atlas({**others, curve.kind: curve.cut(known)})
    return lambda shape: atlas.estimate(curve.kind, shape).value


def _bare(kind: JobType) -> str:
    """Sources spell one model in several ways."""
    return "".join(c for c in kind.model.casefold() if c.isalnum())


def predict_by_utility(curve: Curve, known: int, _: Mapping[JobType, Profile]) -> Predict:
    """Coach's, which looks at this job alone."""
    found = marginal_utility.fit([Sample(p.gpus, 1, p.speed) for p in curve.points[:known]])
    return lambda shape: found.speed(shape.gpus, 1)


PREDICTORS = {
    "ours, alone": predict_alone,
    "ours, with other models": predict_with_others,
    "marginal utility": predict_by_utility,
}


# --- the comparison -----------------------------------------------------------------------


class Miss(NamedTuple):
    """How a predictor did on one curve."""

    errors: Sequence[float]
    """Relative ones, of the counts that it did not know."""
    lost: float
    """The share of the best measured speed that is lost where the prediction chooses the count."""


def compare() -> Iterator[dict[str, Any]]:
    """One row for each number of known points and predictor, over all curves."""
    curves, shipped = read_curves(), load_shipped()
    for known in KNOWN:
        for name, make in PREDICTORS.items():
            misses = [_judge(curve, known, make(curve, known, shipped)) for curve in curves]
            errors = sorted(abs(error) for miss in misses for error in miss.errors)
            yield {
                "predictor": name,
                "known_points": known,
                "curves": len(curves),
                "predictions": len(errors),
                "median_error": round(median(errors), 4),
                "p90_error": round(errors[-(-9 * len(errors) // 10) - 1], 4),
                "within_20_percent": round(fmean(error <= 0.2 for error in errors), 4),
                "mean_speed_lost_by_choice": round(fmean(miss.lost for miss in misses), 4),
            }


def _judge(curve: Curve, known: int, predict: Predict) -> Miss:
    held_out = curve.points[known:]
    believed = {point.gpus: predict(curve.shape(point)) for point in curve.points}
    chosen = max(curve.points, key=lambda point: believed[point.gpus])
    best = max(point.speed for point in curve.points)
    return Miss(
        tuple(believed[point.gpus] / point.speed - 1.0 for point in held_out),
        1.0 - chosen.speed / best,
    )

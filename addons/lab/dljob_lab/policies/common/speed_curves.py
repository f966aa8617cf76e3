"""
Speed curves as seen by the policies that share GPUs out by the worth of each.

:mod:`dljob_lab.policies.common.sharing` makes a curve once for all jobs of a type that may run on the same numbers of
GPUs. :mod:`dljob_lab.policies.common.pricing` reads its upper concave hull.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dljob.core.policies.common.hulls import Step, make_steps


@dataclass(frozen=True, eq=False)
class Curve:
    """How fast a job is on its options, as a share of its speed at the peak."""

    options: tuple[int, ...]
    """Rising, up to the peak; each is faster than all before it."""
    speeds: tuple[float, ...]
    """One for each option; the last is 1."""

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The upper concave hull from no GPUs to the peak; the gains fall from step to step."""
        return make_steps(self.options, self.speeds)

    @cached_property
    def _exponents(self) -> tuple[float, ...]:
        """The exponents that fit the first two options, the first three, and so on."""
        points = [
            (math.log(k), math.log(v)) for k, v in zip(self.options, self.speeds, strict=True)
        ]
        return tuple(_fit_slope(points[:count]) for count in range(2, len(points) + 1))

    def fit_exponent(self, most: float) -> float | None:
        """
        The p of the k**p that fits best up to the first option that reaches ``most`` GPUs.

        At least two options are looked at; ``None`` where there is one only.
        """
        fits = self._exponents
        if not fits:
            return None
        return fits[min(len(fits), max(1, bisect_left(self.options, most))) - 1]

    @property
    def least(self) -> int:
        """The fewest GPUs that the job can run on."""
        return self.options[0]

    @property
    def peak(self) -> int:
        """With how many GPUs it is fastest."""
        return self.options[-1]

    def options_to(self, gpus: int) -> tuple[int, ...]:
        """The options up to ``gpus`` GPUs."""
        return self.options[: bisect_right(self.options, gpus)]

    def speed(self, gpus: int) -> float:
        """The speed with an option, or with the largest one below; 0 with fewer than the least."""
        place = bisect_right(self.options, gpus)
        return self.speeds[place - 1] if place else 0.0


def _fit_slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the straight line with the least squares of distances."""
    middle = sum(x for x, _ in points) / len(points)
    level = sum(y for _, y in points) / len(points)
    spread = sum((x - middle) ** 2 for x, _ in points)
    return sum((x - middle) * (y - level) for x, y in points) / spread


def make_curve(options: Sequence[int], speeds: Sequence[float]) -> Curve:
    """
    Make a curve of rising options and their predicted speeds.

    An option that is no faster than a smaller one is left out: GPUs would be wasted on it. The
    first is always kept.
    """
    kept = [(options[0], speeds[0])]
    for option, speed in zip(options[1:], speeds[1:], strict=True):
        if speed > kept[-1][1]:
            kept.append((option, speed))
    top = kept[-1][1]
    return Curve(tuple(option for option, _ in kept), tuple(speed / top for _, speed in kept))

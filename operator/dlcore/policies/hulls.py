"""
Speed curves as the policies see them that share GPUs out by what each one is worth.

A curve is made once for all jobs of a type that may run on the same numbers of GPUs, by
:mod:`dlcore.policies.sharing`. :mod:`dlcore.policies.pricing` reads its upper concave hull, on which
the best share is found step by step, greedily.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Step(NamedTuple):
    """A straight stretch of a hull."""

    gpus: float
    """How many GPUs further it leads; a whole number in every curve of a job."""
    gain: float
    """How much speed each of them adds."""


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
    def exponent(self) -> float | None:
        """The p of the k**p that fits best, by least squares of logarithms; ``None`` for one option."""
        if len(self.options) < 2:
            return None
        across = [math.log(option) for option in self.options]
        up = [math.log(speed) for speed in self.speeds]
        middle, level = sum(across) / len(across), sum(up) / len(up)
        spread = sum((x - middle) ** 2 for x in across)
        return sum((x - middle) * (y - level) for x, y in zip(across, up, strict=True)) / spread

    @property
    def least(self) -> int:
        """The fewest GPUs that the job can run on."""
        return self.options[0]

    @property
    def peak(self) -> int:
        """With how many GPUs it is fastest."""
        return self.options[-1]

    def speed(self, gpus: int) -> float:
        """The speed with an option, or with the largest one below; 0 with fewer than the least."""
        return max(
            (s for option, s in zip(self.options, self.speeds, strict=True) if option <= gpus),
            default=0.0,
        )


def make_curve(options: Sequence[int], speeds: Sequence[float]) -> Curve:
    """
    Make a curve of options that rise and of what was predicted for them.

    An option that is no faster than a smaller one is left out: GPUs would be wasted on it. The
    first is always kept.
    """
    kept = [(options[0], speeds[0])]
    for option, speed in zip(options[1:], speeds[1:], strict=True):
        if speed > kept[-1][1]:
            kept.append((option, speed))
    top = kept[-1][1]
    return Curve(tuple(option for option, _ in kept), tuple(speed / top for _, speed in kept))


def make_steps(gpus: Sequence[float], speeds: Sequence[float]) -> tuple[Step, ...]:
    """Find the upper concave hull of these points and of the origin; both sequences must rise."""
    corners = [(0.0, 0.0)]
    for point in zip(gpus, speeds, strict=True):
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-1], point):
            corners.pop()
        corners.append(point)
    return tuple(Step(b[0] - a[0], _slope(a, b)) for a, b in itertools.pairwise(corners))


def _slope(start: tuple[float, float], end: tuple[float, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])

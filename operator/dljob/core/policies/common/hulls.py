"""
The upper concave hull of a speed curve, on which a greedy policy finds the best share step by step.

:mod:`dljob.core.policies.foresight.curves` makes hulls, and so do curves of policies of add-ons.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """A straight stretch of a hull."""

    gpus: float
    """How many GPUs further it leads; a whole number in every curve of a job."""
    gain: float
    """How much speed each of them adds."""


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

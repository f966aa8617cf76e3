"""
How jobs of a trace scale: measured curves, laid out over every shape of a cluster.

:mod:`dljob.sim.jobs.scaling` calls it. Measurements have gaps: they come from other types of GPU,
from nodes of another size, and not from every count. The truth of a simulated world must have none,
so that a policy which asks for an odd shape gets the answer of a real cluster:

* A count is as fast as it was measured on the fewest nodes, for as long as the job is on no more
  nodes than that, or than the cluster at hand needs. On more nodes it is as fast as was measured
  there, or else slower by the share that spreading usually costs.
* Counts between and beyond the measured ones follow :mod:`dljob.core.predicting.relating`.
* A type of GPU on which the job was not measured is faster or slower than a measured one by
  their known ratio, and as fast if none is known. A cluster whose GPUs bear no name is taken for
  one of those on which the job was measured.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from dljob.core.predicting.growths import SPREAD_EXPONENT
from dljob.core.predicting.relating import TYPE_SPEED, Atlas
from dljob.core.predicting.speed_curves import points_by_type, spread_exponent_alone
from dljob.core.profiles import JobType, Profile, Speed
from dljob_wire.messages import Shape

STANDARD_TYPES = ("V100", "A100", "T4", "P100", "K80")
"""Which type speaks for GPUs of a type that was not measured, if there are several."""

MOST_NODES = 64
"""No policy spreads a job further, and the predictor can extrapolate if one does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The cluster that a workload is read for, as far as speeds depend on it."""

    gpu_types: tuple[str, ...]
    """Its types; the first is the one that durations and requests of a trace are about."""
    largest: int
    """How many GPUs one job can have at most."""
    node_gpus: int
    """How many GPUs the largest node has."""

    @property
    def reference(self) -> str:
        """The type that durations and requests of a trace are about."""
        return self.gpu_types[0]


class Curve:
    """The speed of one type of job against the number of GPUs, on the fewest nodes measured."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.type = profile.type
        self._homes: dict[Shape, int] = {}
        packed: dict[Shape, Speed] = {}
        for kind, points in points_by_type(profile).items():
            for point in points:
                # The first of a count is the one on the fewest nodes.
                shape = Shape(point.gpus, 1, kind)
                if shape not in packed:
                    packed[shape] = Speed(point.speed, point.weight)
                    self._homes[shape] = point.nodes
        self._atlas = Atlas({profile.type: Profile(profile.type, packed)})
        exponent = spread_exponent_alone(profile)
        self.spread_exponent = SPREAD_EXPONENT if exponent is None else exponent

    @property
    def types(self) -> frozenset[str]:
        """The types of GPU on which it was measured."""
        return frozenset(shape.gpu_type for shape in self._homes)

    def standard_type(self, ground: Ground) -> str:
        """The measured type that speaks for the others: the cluster's own if possible."""
        for kind in (*ground.gpu_types, *STANDARD_TYPES):
            if kind in self.types:
                return kind
        return min(self.types)

    def counts(self, gpu_type: str) -> tuple[int, ...]:
        """The counts that were measured on that type."""
        return tuple(sorted(shape.gpus for shape in self._homes if shape.gpu_type == gpu_type))

    def peak(self, gpu_type: str) -> int:
        """Up to how many GPUs every measured step up is a gain."""
        counts = self.counts(gpu_type)
        for fewer, more in pairwise(counts):
            if self.speed(more, gpu_type) <= self.speed(fewer, gpu_type):
                return fewer
        return counts[-1]

    def speed(self, gpus: int, gpu_type: str) -> float:
        """Return the speed of the job on a measured type of GPU, on as few nodes as possible."""
        return self._atlas.estimate(self.type, Shape(gpus, 1, gpu_type)).value

    def speed_on(self, gpus: int, gpu_type: str, *, ground: Ground) -> float:
        """Return how fast it is on any type of the cluster when it is packed."""
        if gpu_type in self.types:
            return self.speed(gpus, gpu_type)
        standard = self.standard_type(ground)
        return self.speed(gpus, standard) * type_ratio(standard, gpu_type, ground=ground)

    def spread(self, gpus: int, nodes: int, *, gpu_type: str, ground: Ground) -> float:
        """The share of its packed speed that it keeps on ``nodes`` nodes."""
        kind = gpu_type if gpu_type in self.types else self.standard_type(ground)
        packed = max(self._homes.get(Shape(gpus, 1, kind), 1), -(-gpus // ground.node_gpus))
        if nodes <= packed:
            return 1.0
        measured = self.profile.speeds.get(Shape(gpus, nodes, kind))
        if measured is not None:
            return measured.iterations_per_s / self.speed(gpus, kind)
        return float((packed / nodes) ** self.spread_exponent)


def type_ratio(measured: str, other: str, *, ground: Ground) -> float:
    """Return how much faster the other type is; of two of which nothing is known, neither is."""
    # A measured type of which nothing is known is put in the place of the cluster's first.
    known = measured if measured in TYPE_SPEED else ground.reference
    if known in TYPE_SPEED and other in TYPE_SPEED:
        return TYPE_SPEED[other] / TYPE_SPEED[known]
    return 1.0


def lay_out(
    curve: Curve, counts: Iterable[int], *, ground: Ground, norm: float = 1.0, unit: float = 1.0
) -> dict[Shape, Speed]:
    """
    Give the speed of every shape of these counts on this cluster.

    Speeds are divided by ``norm`` and then multiplied by ``unit``; in this order the speed that
    served as the norm becomes the unit exactly.
    """
    speeds: dict[Shape, Speed] = {}
    for kind in ground.gpu_types:
        for gpus in sorted(counts):
            packed = curve.speed_on(gpus, kind, ground=ground) / norm * unit
            for nodes in range(1, min(gpus, MOST_NODES) + 1):
                part = curve.spread(gpus, nodes, gpu_type=kind, ground=ground)
                speeds[Shape(gpus, nodes, kind)] = Speed(packed * part)
    return speeds


class Pool:
    """The curves that may be drawn for a job of which only its number of GPUs is known."""

    def __init__(self, profiles: Mapping[JobType, Profile], ground: Ground) -> None:
        curves = [Curve(profiles[kind]) for kind in sorted(profiles) if profiles[kind].speeds]
        # Curves that were measured on the type of GPU at hand come before others.
        at_hand = [curve for curve in curves if ground.reference in curve.types] or curves
        self._peaks = [(curve, curve.peak(curve.standard_type(ground))) for curve in at_hand]
        self.furthest = max(peak for _, peak in self._peaks)
        """The largest number of GPUs up to which any of them rises."""
        self._rising: dict[int, list[Curve]] = {}

    def draw(self, gpus: int, key: str) -> Curve:
        """
        Draw a curve that rises at least up to ``gpus`` GPUs, or else one that rises furthest.

        The draw depends on the key alone, in every process.
        """
        enough = min(gpus, self.furthest)
        pool = self._rising.get(enough)
        if pool is None:
            pool = [curve for curve, peak in self._peaks if peak >= enough]
            self._rising[enough] = pool
        digest = hashlib.sha256(key.encode()).digest()
        return pool[int.from_bytes(digest[:8], "big") % len(pool)]

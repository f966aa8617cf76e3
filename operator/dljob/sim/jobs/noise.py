"""
The cost of a larger batch in convergence: the statistical efficiency of a training.

:mod:`dljob.sim.engine.world` asks it when a job trains another batch than its own. With a noise scale phi, a
sample of a batch ``M`` is worth ``(phi + own) / (phi + M)`` of one of the job's own batch (Pollux, OSDI '21,
section 3; McCandlish et al., 2018). The scale grows while a job trains, so large batches cost most
at the beginning. ``profiles/pollux_noise.csv`` holds the scales that Pollux's training logs show.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import geometric_mean

from dljob.core.model import Job
from dljob.sim.inputs.shipped import find_folder
from dljob.sim.inputs.tables import Table


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise scale of a training, which changes with its progress."""

    begins: tuple[float, ...]
    """From which share of the training on each scale holds; the first is 0."""
    scales: tuple[float, ...]
    """In samples."""

    def worth(self, batch: int, *, own: int, progress: float) -> float:
        """The worth of a sample of this batch, as a share of one of the job's own batch."""
        scale = self.scales[bisect_right(self.begins, progress) - 1]
        return (scale + own) / (scale + batch)

    def next_change(self, progress: float) -> float:
        """At which share of the training the scale changes next; 1 when it does no more."""
        place = bisect_right(self.begins, progress)
        return self.begins[place] if place < len(self.begins) else 1.0


def noise_of(job: Job) -> Noise | None:
    """The noise of a job whose batch may change; a batch that stays costs nothing."""
    return find_noise(job.type.model, job.training.batch_size) if job.batch.elastic else None


def find_noise(model: str, batch: int) -> Noise:
    """
    The noise of a model, as it was measured, or else the usual one for a job of this batch.

    The usual one is the geometric mean of the scales of all applications, each in units of the
    batch that the application was written for. So no model gets large batches for nothing.
    """
    measured = _load()
    if model in measured:
        return measured[model][1]
    begins = next(iter(measured.values()))[1].begins
    scales = zip(
        *([scale / smallest for scale in noise.scales] for smallest, noise in measured.values()),
        strict=True,
    )
    return Noise(begins, tuple(batch * geometric_mean(each) for each in scales))


@cache
def _load() -> Mapping[str, tuple[int, Noise]]:
    columns = ("application", "smallest_batch", "progress", "noise_scale")
    found: dict[str, tuple[int, list[tuple[float, float]]]] = {}
    for row in Table.read(find_folder() / "pollux_noise.csv", required=columns):
        smallest = row.whole("smallest_batch", least=1)
        _, knots = found.setdefault(row.name("application"), (smallest, []))
        knots.append((float(row.fields["progress"]), row.positive("noise_scale")))
    return {
        name: (smallest, Noise(*zip(*sorted(knots), strict=True)))
        for name, (smallest, knots) in found.items()
    }

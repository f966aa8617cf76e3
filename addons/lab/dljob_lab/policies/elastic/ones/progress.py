"""
How far jobs are, as Beta distributions (ONES, section 3.2.1, Eq. 5 to 8).

The progress of a job is ``Be(alpha, beta)``, with alpha the epochs it has processed and
``beta = max(A x + b, 1)`` the epochs it still has to process. ``A`` and ``b`` are fitted to what was
seen of jobs that have completed, by maximum likelihood. The policy keeps those samples in its state.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dljob.core.model import Direction, JobState

Floats = NDArray[np.float64]

MOST_SAMPLES: Final = 256
"""The paper keeps "a limited size of training dataset" without a number."""

SMALLEST: Final = 1e-3
"""A progress of 0 or of 1 has no density."""

TINY: Final = 1e-9

STEPS: Final = 25
"""Of Newton's method, which needs about ten."""

ANCHOR: Final = 4.0
"""The prior line weighs as much as this many samples, so that few jobs cannot overturn it."""


class Reported(NamedTuple):
    """How well a job learns, by its own reports."""

    first_loss: float | None = None
    loss: float | None = None
    accuracy: float | None = None

    def after(self, state: JobState) -> "Reported":
        """Add what the job reports now, under these names or the name of its target."""
        metrics, target = state.metrics, state.job.training.target
        loss, accuracy = metrics.get("loss"), metrics.get("accuracy")
        if target is not None and target.direction is Direction.FALLS:
            loss = metrics.get(target.metric, loss)
        elif target is not None:
            accuracy = metrics.get(target.metric, accuracy)
        return Reported(
            self.first_loss if self.first_loss is not None else loss,
            loss if loss is not None else self.loss,
            accuracy if accuracy is not None else self.accuracy,
        )

    @property
    def is_empty(self) -> bool:
        """Return whether the job has reported neither."""
        return self.loss is None and self.accuracy is None

    @property
    def improvement(self) -> float:
        """The part of its first loss that is gone: the paper's ``r_L``."""
        if not self.first_loss or self.loss is None:
            return 0.0
        return max(-1.0, 1.0 - self.loss / self.first_loss)

    @property
    def share(self) -> float:
        """Its accuracy as a share, where it reports percents too."""
        accuracy = self.accuracy or 0.0
        return accuracy / 100.0 if accuracy > 1.0 else accuracy


class Features(NamedTuple):
    """The knowledge about a job at one moment: the paper's x, and what stands for it in a job without reports."""

    processed: float
    """Epochs processed."""
    expected: float
    """Epochs expected to be left: by the declared length, or for a job that reports as many as any job has."""
    epoch_size: float
    """Samples in an epoch: the paper's ``||D||``."""
    first_loss: float = 0.0
    improvement: float = 0.0
    accuracy: float = 0.0


class Sample(NamedTuple):
    """The knowledge about a job at one moment, and how far it turned out to have been."""

    features: Features
    progress: float


class Line(NamedTuple):
    """``A`` and ``b`` of Eq. 6, for the columns of :func:`_tabulate`."""

    weights: tuple[float, ...]

    def epochs_left(self, jobs: Sequence[Features]) -> Floats:
        """Beta of each job."""
        epochs: Floats = np.maximum(_tabulate(jobs) @ np.asarray(self.weights), 1.0)
        return epochs


PRIOR: Final = Line((1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
"""Without history, as many epochs are left as are expected."""


def fit(samples: Sequence[Sample]) -> Line:
    """Maximise the log likelihood of the progress seen, held near the prior by a few samples."""
    if not samples:
        return PRIOR
    # An extra brings scipy, and the other policies need to be importable without it.
    from scipy.special import digamma, polygamma  # noqa: PLC0415

    features = _tabulate([sample.features for sample in samples])
    alpha = np.maximum([sample.features.processed for sample in samples], 1.0)
    rho = np.clip([sample.progress for sample in samples], SMALLEST, 1.0 - SMALLEST)
    prior = np.asarray(PRIOR.weights)
    weights, anchor = prior.copy(), np.zeros((0, 0))
    for _ in range(STEPS):
        raw = features @ weights
        beta, is_free = np.maximum(raw, 1.0), raw > 1.0
        slope = (digamma(alpha + beta) - digamma(beta) + np.log1p(-rho)) * is_free
        bend = polygamma(1, beta) - polygamma(1, alpha + beta)
        if not anchor.size:
            known = (bend[:, None] * features**2).mean(axis=0)
            # A prediction moves with all weights, so each is held as strongly as all together.
            anchor = np.diag(ANCHOR * len(prior) * np.maximum(known, TINY))
        # Newton's step: the likelihood is concave in beta. A step that would more than halve or
        # double a beta is shortened, because the curvature holds no further.
        curvature = (features * (bend * is_free)[:, None]).T @ features + anchor
        step = np.linalg.solve(curvature, features.T @ slope - anchor @ (weights - prior))
        weights = weights + step / max(1.0, float(np.max(np.abs(features @ step) / beta)) * 2.0)
    found = tuple(float(each) for each in weights)
    return Line(found) if np.isfinite(weights).all() else PRIOR


def draw_left(alpha: Floats, beta: Floats, *, rng: np.random.Generator, draws: int) -> Floats:
    """
    Draw the epochs left of each job, ``draws`` times (Eq. 7).

    The paper's alpha is at least 1, so a job that has not finished its first epoch counts with
    one; else its remaining work would be nothing.
    """
    rho = rng.beta(alpha, beta, size=(draws, len(alpha)))
    return alpha * (1.0 / np.clip(rho, SMALLEST, 1.0 - SMALLEST) - 1.0)


def _tabulate(jobs: Sequence[Features]) -> Floats:
    """A row for each job, of columns that a line can follow: epochs and samples grow by orders of magnitude."""
    table = np.asarray(jobs, dtype=float).reshape(-1, len(Features._fields))
    processed, expected, epoch_size, *reported = table.T
    columns = [expected, np.log1p(processed), np.log1p(epoch_size), *reported, np.ones(len(jobs))]
    return np.stack(columns, axis=1)

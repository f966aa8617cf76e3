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


class Sample(NamedTuple):
    """The knowledge about a job at one moment, and how far it turned out to have been."""

    processed: float
    """Epochs processed then."""
    expected: float
    """Epochs that were expected to be left then."""
    epoch_size: float
    """Samples in an epoch: the paper's ``||D||``."""
    progress: float


class Line(NamedTuple):
    """``A`` and ``b`` of Eq. 6, for the features of :func:`_features`."""

    weights: tuple[float, ...]

    def epochs_left(self, processed: Floats, expected: Floats, *, epoch_size: Floats) -> Floats:
        """Beta of each job."""
        found = _features(processed, expected, epoch_size=epoch_size) @ np.asarray(self.weights)
        epochs: Floats = np.maximum(found, 1.0)
        return epochs


PRIOR: Final = Line((1.0, 0.0, 0.0, 0.0))
"""Without history, as many epochs are left as are expected."""


def fit(samples: Sequence[Sample]) -> Line:
    """Maximise the log likelihood of the progress seen, held near the prior by a few samples."""
    if not samples:
        return PRIOR
    # An extra brings scipy, and the other policies need to be importable without it.
    from scipy.special import digamma, polygamma  # noqa: PLC0415

    table = np.asarray(samples, dtype=float)
    features = _features(table[:, 0], table[:, 1], epoch_size=table[:, 2])
    alpha = np.maximum(table[:, 0], 1.0)
    rho = np.clip(table[:, 3], SMALLEST, 1.0 - SMALLEST)
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


def _features(processed: Floats, expected: Floats, *, epoch_size: Floats) -> Floats:
    """
    The paper's x as far as a policy can see it.

    It has the size of an epoch, the samples processed, the loss and the accuracy. Here the epochs
    expected to be left stand for loss and accuracy: of a job that trains to a target they are
    predicted from that very curve.
    """
    ones = np.ones_like(processed)
    return np.stack([expected, np.log1p(processed), np.log1p(epoch_size), ones], axis=1)

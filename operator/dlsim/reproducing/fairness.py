"""
Finish-time fairness, as Shockwave's tables have it.

Called by :mod:`dlsim.reproducing.shockwave`. The definition is that of Zheng et al. (NSDI 2023) as
released: the completion time of a job over the time that it would take with its fair share of the
cluster from its submission to its end, which is its time alone times the number of jobs for each
GPU, and never less than its time alone. A job is treated unfairly above 1.05.
"""

from collections.abc import Sequence

UNFAIR = 1.05


def measure_rho(jct_s: float, alone_s: float, *, jobs: int, gpus: int) -> float:
    """Measure the fairness of one job; ``jobs`` are all of the trace, ``gpus`` those of the cluster."""
    return jct_s / (alone_s * max(1.0, jobs / gpus))


def count_unfair(rhos: Sequence[float]) -> float:
    """The share of jobs that are treated unfairly."""
    return sum(rho > UNFAIR for rho in rhos) / len(rhos)

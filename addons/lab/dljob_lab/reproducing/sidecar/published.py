"""
The published results of the SideCar paper's workloads (section VI).

:mod:`dljob_lab.reproducing.sidecar.evaluation` and its pictures read them. The figures of the case study are in
:mod:`dljob_lab.reproducing.sidecar.case`. The bars and curves of Figures 6 to 11 have no numbers, so
they are known only as far as the text gives them.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Reduction(NamedTuple):
    """By how many percent SideCar takes less than a baseline."""

    makespan_s: float
    avg_jct_s: float


REDUCTIONS: Mapping[str, Mapping[str, Reduction]] = {
    "workload-1": {"default": Reduction(45, 63), "termination": Reduction(17, 27)},
    "workload-2": {"default": Reduction(34, 58), "termination": Reduction(20, 37)},
    "workload-3": {"default": Reduction(42, 61), "termination": Reduction(17, 35)},
    "workload-4": {"default": Reduction(36, 55), "termination": Reduction(18, 36)},
}
"""Sections VI.A and VI.B."""

SHARES: Mapping[str, Mapping[str, float]] = {
    "workload-1": {"termination": 29.3, "sidecar": 8.9},
    "workload-2": {"termination": 21.9, "sidecar": 6.7},
    "workload-3": {"termination": 27.1, "sidecar": 7.6},
    "workload-4": {"termination": 28.6, "sidecar": 8.3},
}
"""Table VIII, in percent of the time that jobs run."""

PENDING_AT_LAST: Mapping[str, float] = {"default": 12, "termination": 3, "sidecar": 0}
"""Section VI.A: how many jobs of Workload One are pending when its last one is submitted."""

ADDING: Mapping[str, float] = {"termination": 46, "sidecar": 16}
"""Section VI.D: how often GPUs are added to a running job of Workload One."""

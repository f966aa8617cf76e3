"""
The ten constants with which the SideCar paper's evaluation is played again.

They were fitted to the case study of its section II.C, once and for all three approaches, by
:mod:`dljob_lab.reproducing.sidecar.fitting`, and rounded to whole seconds. The workloads of its
section V are played with the same costs. They are frozen: what does not come out with them is
reported in ``docs/reproduction/sidecar.md``, never mended here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dljob.core.profiles import Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Values that the case study leaves open: seven costs, and three numbers about its two jobs."""

    costs: Costs
    work_1_s: float
    """How long job 1 trains if it has four GPUs all the time."""
    work_2_s: float
    """How long job 2 trains with its two GPUs."""
    ratio: float
    """The speed of job 1 with two GPUs over that with four."""


RATIO = 1.7 / 2.4
"""
Section I: a ResNet model trains 1.7 times as fast with two GPUs as with one, and 2.4 times with
four. Taken from there, not fitted.
"""

PROCESS_TERMINATION_S = 2.0
"""
The paper's times are for checkpoint and termination of the process together, not for each.
A process that has saved its model has nothing left to do but to go, so this is a guess.
"""


def make_constants(values: Iterable[float]) -> Constants:
    """The constants that fitted values stand for, in the order of :data:`dljob_lab.reproducing.sidecar.fitting.NAMES`."""
    pod, pod_rate, process, process_rate, stop, pod_stop, work_1, work_2 = map(float, values)
    costs = Costs(
        pod_initialization=pod,
        pod_initialization_per_gpu=pod_rate,
        process_initialization=process,
        process_initialization_per_gpu=process_rate,
        checkpoint=stop - PROCESS_TERMINATION_S,
        process_termination=PROCESS_TERMINATION_S,
        pod_termination=pod_stop,
    )
    return Constants(costs=costs, work_1_s=work_1, work_2_s=work_2, ratio=RATIO)


FROZEN = make_constants((40, 16, 20, 2, 4, 98, 504, 408))
"""All but the ratio and the termination of the process are fitted."""

HELD_OUT = {
    "default": make_constants((40, 16, 20, 2, 4, 98, 504, 408)),
    "termination": make_constants((12, 32, 18, 3, 4, 62, 476, 412)),
    "sidecar": make_constants((96, 19, 0, 0, 66, 0, 447, 415)),
}
"""
By the approach whose times the fit did not see.

A constant that the other two leave open has its smallest value: without SideCar, for instance, nothing separates the start
of a process from that of its pod.
"""

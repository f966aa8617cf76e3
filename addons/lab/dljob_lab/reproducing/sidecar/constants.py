"""
The ten constants with which the SideCar paper's evaluation is played again.

They were fitted to the case study of its section II.C, once and for all three approaches, by
:mod:`dljob_lab.reproducing.sidecar.fitting`, and rounded to whole seconds. The workloads of its
section V are played with the same costs. They are frozen: what does not come out with them is
reported in ``docs/reproduction/sidecar.md``, never mended here.
"""

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

FROZEN = Constants(
    costs=Costs(
        pod_initialization=40.0,
        pod_initialization_per_gpu=16.0,
        process_initialization=20.0,
        process_initialization_per_gpu=2.0,
        checkpoint=2.0,
        process_termination=PROCESS_TERMINATION_S,
        pod_termination=98.0,
    ),
    work_1_s=504.0,
    work_2_s=408.0,
    ratio=RATIO,
)
"""All but the ratio and the termination of the process are fitted."""

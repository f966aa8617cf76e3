"""
The default cost of a change of GPUs in a simulation.

Used by :mod:`dljob.sim.simulating`. Jobs whose profile holds measured costs go by those instead.
"""

from dljob.core.profiles import Costs

LIVE_SHRINK_S, LIVE_GROW_S = 0.05, 0.35
"""The default pauses of live changes: those of a training with 100 MB of state on CPUs (``benchmarks/live_worth.py``)."""

DEFAULT_COSTS = Costs(
    pod_initialization=88.0,
    process_initialization=26.0,
    checkpoint=2.0,
    process_termination=2.0,
    pod_termination=98.0,
)
"""
In seconds: 30 for a restart in place and 216 for a recreation of pods.

They are the constants that were fitted to the case study of the SideCar paper, section II.C
(:mod:`dljob_lab.reproducing.sidecar.constants`), for three GPUs: in the middle of the two and four
that were measured there, with 27 and 37 s in place and 204 and 242 s by recreation. They do not
rise with the number of GPUs as those do, because the paper measured no more than four, and five
minutes to start the processes of a large job would be made up.
"""


def costs_of_change(seconds: float) -> Costs:
    """
    Costs by which every change takes ``seconds``, with either mechanism.

    All of it is the start of the process, so a job pays it for its first start as well, and none
    of it after its last step.
    """
    return Costs(process_initialization=seconds)

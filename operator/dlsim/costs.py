"""
What a change of GPUs costs in a simulation when nobody says otherwise.

Used by :mod:`dlsim.simulating`. Jobs whose profile holds measured costs go by those instead.
"""

from dlcore.profiles import Costs

DEFAULT_COSTS = Costs(
    pod_initialization=97.0,
    process_initialization=25.0,
    checkpoint=5.0,
    process_termination=2.0,
    pod_termination=94.0,
)
"""
Between the two measurements of the SideCar paper, section II.C, in seconds.

Restarting a process inside its pod took 27 s with two GPUs and 37 s with four, so 32 s here;
recreating its pods took 204 s and 242 s, so 223 s here. The newcomer of that study trained 110 s
after its submission, of which the last 27 s were a restart, which leaves 83 s for two GPUs and
111 s for four to initialise its pods; the rest of a recreation is termination. The paper does not
divide the restart further; checkpoint and termination of small models take seconds. The costs do
not rise with the number of GPUs, because nobody measured more than four.
"""


def costs_of_change(seconds: float) -> Costs:
    """
    Costs by which every change takes so long, with either mechanism.

    All of it is the start of the process, so a job pays it for its first start as well, and none
    of it after its last step.
    """
    return Costs(process_initialization=seconds)

"""
AFS's elastic forms of SRTF and SRSF: the GPUs that these leave idle go to the most efficient jobs.

:class:`Altruistic` is all of ``srtf-e`` and ``srsf-e`` but the order of the jobs.
"""

from dataclasses import dataclass
from typing import ClassVar

from dljob.core.assuming import Assumes
from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.options import check
from dljob.core.policies.common import ranking
from dljob.core.policies.common.ordering import BEHIND, count_requested
from dljob_lab.policies.elastic.afs import places
from dljob_lab.policies.elastic.afs.curves import BY_CURVES
from dljob_lab.policies.elastic.afs.sharing import Contender, Sharing, Terms


@dataclass(frozen=True, slots=True)
class Altruistic:
    """
    The first jobs in order have the GPUs they request, and all others what is left.

    The altruistic baseline of AFS (NSDI '21), section 5.5: "it first schedules jobs to achieve the primary
    goal (assigning the user-requested number of GPUs) and then distributes leftover resources for
    the secondary goal (assigning more GPUs to achieve the largest throughput)".

    Where the text leaves room: throughput is counted in GPUs' worth, as in the paper's cluster
    efficiency, because iterations of two models cannot be added; each GPU in turn goes to the job
    to whose speed it adds the largest share of the gain of its first GPU. A job that is left without
    its request has its least of the rest before others grow: nothing gains more from a GPU. A
    job that is no faster with its request than with fewer gets the fewer.
    """

    paper: ClassVar[str] = "AFS (NSDI '21) 5.5 (baseline)"
    needs: ClassVar[str] = "speeds, iterations"
    assumes: ClassVar[Assumes] = BY_CURVES
    breaks: ClassVar[frozenset[Law]] = frozenset()
    by_service: ClassVar[bool]
    """True if the order is that of GPU-seconds left; else of seconds."""

    packing: bool = True
    """True if shares are factors or multiples of a machine's GPUs; it means nothing on one machine."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        line = ranking.rank(view, by_service=self.by_service, count=count_requested)
        sharing = Sharing(view, packing=self.packing)
        sharing.admit(line, count_requested)
        sharing.admit(line)
        sharing.hand_out(Terms(lambda each: float(each.state.order), saturation=_price, band=0.0))
        sharing.regulate()
        return places.settle(sharing, line, wait=BEHIND)


def _price(contender: Contender) -> float:
    """Return how many more GPUs would bring as much as the job's first one."""
    curve = contender.curve
    return curve.speeds[0] / curve.options[0] / curve.gain(contender.count)

"""SRTF-E: SRTF whose idle GPUs go to the jobs that gain most from them."""

from dataclasses import dataclass
from typing import ClassVar

from dlcore.assuming import BY_CURVES, Assumes
from dlcore.checking import Law
from dlcore.contract import Decision, View
from dlcore.options import check
from dlcore.policies.common import ordering, ranking
from dlcore.policies.elastic import leftovers


@dataclass(frozen=True, slots=True)
class SrtfE:
    """
    The jobs that need the least time yet have the GPUs they request, and all others what is left.

    The altruistic baseline of AFS (NSDI '21), section 5.5: "it first schedules jobs to achieve the primary
    goal (assigning the user-requested number of GPUs) and then distributes leftover resources for
    the secondary goal (assigning more GPUs to achieve the largest throughput)".

    Where the text leaves room: throughput is counted in GPUs' worth, as in the paper's cluster
    efficiency, because iterations of two models cannot be added; each GPU in turn goes to the job
    to whose speed it adds the largest share of what its first GPU does. A job that is left without
    its request has its least of the rest before others grow: nothing gains more from a GPU. A
    job that is no faster with its request than with fewer gets the fewer.
    """

    name: ClassVar[str] = "srtf-e"
    paper: ClassVar[str] = "AFS (NSDI '21) 5.5 (baseline)"
    needs: ClassVar[str] = "speeds, iterations"
    assumes: ClassVar[Assumes] = BY_CURVES
    breaks: ClassVar[frozenset[Law]] = frozenset()

    packing: bool = True
    """Whether shares are factors or multiples of a machine's GPUs; it means nothing on one machine."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        line = ranking.rank(view, by_service=False, count=ordering.count_requested)
        return leftovers.share(view, line, packing=self.packing)

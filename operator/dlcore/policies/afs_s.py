"""AFS-S: AFS-P that knows of each job only on how many GPUs it is fastest."""

from dataclasses import dataclass
from typing import ClassVar

from dlcore.assuming import GUESSES, Assumes, Knowledge
from dlcore.checking import Law
from dlcore.contract import Decision, View
from dlcore.options import check, declare
from dlcore.policies.elastic import places
from dlcore.policies.elastic.sharing import (
    Contender,
    Draw,
    Sharing,
    Terms,
)
from dlcore.policies.elastic.turns import Taking


@dataclass(frozen=True, slots=True)
class AfsS:
    """
    Jobs take turns while they outnumber the GPUs; else the poorest gets more, up to its peak.

    Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning" (NSDI '21), appendix D: AFS-P
    that "only obtains the number of GPUs that lead to the maximum throughput", by which the paper
    shows how little the exact speeds matter. Of jobs with equally many GPUs a lot decides, as in
    AFS-P.
    """

    name: ClassVar[str] = "afs-s"
    paper: ClassVar[str] = "AFS (NSDI '21) appendix D"
    needs: ClassVar[str] = "nothing; speeds, where known, tell on how many GPUs a job is fastest"
    assumes: ClassVar[Assumes] = {
        Knowledge.SPEED: "takes it to be fastest on the most GPUs that it allows",
        Knowledge.MEASURED: GUESSES,
    }
    breaks: ClassVar[frozenset[Law]] = frozenset()

    unit_s: float = declare(7200.0, at_least=1.0)
    """How long a turn is while jobs outnumber GPUs; the paper's 2 h."""
    packing: bool = True
    """Whether shares are factors or multiples of a machine's GPUs; it means nothing on one machine."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        taking = Taking(view, self.unit_s)
        line = taking.rank()
        sharing = Sharing(view, packing=self.packing)
        sharing.admit(line)
        sharing.hand_out(Terms(Draw(view.seed), saturation=_count, band=0.0))
        sharing.regulate()
        return taking.remember(places.settle(sharing, line))


def _count(contender: Contender) -> float:
    return float(contender.count)

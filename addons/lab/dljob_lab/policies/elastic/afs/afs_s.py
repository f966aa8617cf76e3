"""AFS-S: AFS-P that knows of each job only on how many GPUs it is fastest."""

from dataclasses import dataclass
from typing import ClassVar

from dljob.core.assuming import GUESSES, Assumes, Knowledge
from dljob.core.contract import View
from dljob_lab.policies.elastic.afs.sharing import (
    Contender,
    Draw,
    Sharing,
    Terms,
)
from dljob_lab.policies.elastic.afs.turns import TurnTaking


@dataclass(frozen=True, slots=True)
class AfsS(TurnTaking):
    """
    Jobs take turns while they outnumber the GPUs; else the poorest gets more, up to its peak.

    Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning" (NSDI '21), appendix D: AFS-P
    that "only obtains the number of GPUs that lead to the maximum throughput", by which the paper
    shows how little the exact speeds matter. Of jobs with equally many GPUs a lot decides, as in
    AFS-P.
    """

    name: ClassVar[str] = "afs-s"
    paper: ClassVar[str] = "AFS (NSDI '21) appendix D"
    needs: ClassVar[str] = "nothing; speeds, where known, show on how many GPUs a job is fastest"
    assumes: ClassVar[Assumes] = {
        Knowledge.SPEED: "takes it to be fastest on the most GPUs that it allows",
        Knowledge.MEASURED: GUESSES,
    }

    def open_sharing(self, view: View) -> Sharing:
        return Sharing(view, packing=self.packing)

    def make_terms(self, view: View) -> Terms:
        return Terms(Draw(view.seed), saturation=_count, band=0.0)


def _count(contender: Contender) -> float:
    return float(contender.count)

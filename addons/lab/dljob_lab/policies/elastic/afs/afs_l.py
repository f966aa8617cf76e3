"""AFS-L: GPUs go one by one to short jobs and to efficient ones, by one comparison."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from dljob.core.assuming import Assumes
from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.model import JobState
from dljob.core.options import check
from dljob.core.policies.common import ordering, ranking
from dljob_lab.policies.elastic.afs import places
from dljob_lab.policies.elastic.afs.curves import BY_CURVES
from dljob_lab.policies.elastic.afs.sharing import Draw, Sharing, Terms, measure_length


@dataclass(frozen=True, slots=True)
class AfsL:
    """
    Every job has one GPU, the shortest first; the next goes to the longer of two if that pays more.

    Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning" (NSDI '21), section 3.3 and
    Algorithm 1. At every arrival and end all shares are found from nothing. In stage one each job
    gets the least that it can run on, in order of its length there; where GPUs do not suffice for
    all, the longest wait. In stage two rule (3) says to whom each further GPU goes. Network packing
    (section 4.4) then allows 1, 2 or 4n GPUs on machines of four.

    Where the text leaves room:

    - Algorithm 1 alone would give a second GPU before another job has its first, where two GPUs
      are exactly twice as fast, because (3) is then a draw. The text says that stage one comes
      first, and so it does here; for curves that bend the two are the same.
    - The comparison is not transitive, so that the order of the scan matters, which the paper
      leaves open; :func:`dljob_lab.policies.elastic.afs.sharing.hand_out` says which one is taken.
    - A job whose least is more than one GPU gets that in stage one; where it does not fit, those
      behind it are tried.
    - A job of higher priority comes first in stage one. Beyond its least it is a job like others.
    - With several types of GPU each type is divided for itself. A running job keeps its type.
    """

    name: ClassVar[str] = "afs-l"
    paper: ClassVar[str] = "AFS (NSDI '21) 3.3, Algorithm 1, and 4.4"
    needs: ClassVar[str] = "speeds, iterations"
    assumes: ClassVar[Assumes] = BY_CURVES
    breaks: ClassVar[frozenset[Law]] = frozenset()

    packing: bool = True
    """True if shares are factors or multiples of a machine's GPUs; it means nothing on one machine."""
    by_length: bool = True
    """True if the shorter job comes first; else chance says, by the seed."""
    by_efficiency: bool = True
    """True if efficiency counts; else the shortest job takes all that makes it faster."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        by_length = self.by_length
        line = ranking.rank(view, count=_count_least) if by_length else _rank_by_arrival(view)
        sharing = Sharing(view, packing=self.packing)
        sharing.admit(line)
        sharing.weigh()
        sharing.hand_out(self._make_terms(view))
        sharing.regulate()
        return places.settle(sharing, line, wait=ordering.BEHIND)

    def _make_terms(self, view: View) -> Terms:
        precedence = measure_length if self.by_length else Draw(view.seed)
        return (
            Terms(precedence) if self.by_efficiency else Terms(precedence, saturation=lambda _: 0.0)
        )


def _count_least(state: JobState, view: View) -> int:  # noqa: ARG001
    return state.least


def _rank_by_arrival(view: View) -> ordering.Line:
    def line(left: ordering.Left) -> Iterator[JobState]:
        jobs = heapq.merge(view.running, view.pending, key=lambda state: state.order)
        return (job for job in jobs if job.placement is not None or job.least <= left.most)

    return line

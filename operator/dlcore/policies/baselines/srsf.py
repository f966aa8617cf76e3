"""Shortest remaining service first."""

from dataclasses import dataclass
from typing import ClassVar

from dlcore.assuming import BY_RANK, Assumes
from dlcore.checking import Law
from dlcore.contract import Decision, View
from dlcore.policies.common import ordering, ranking


@dataclass(frozen=True, slots=True)
class Srsf:
    """
    At every decision the jobs that need the fewest GPU-seconds yet have the GPUs they request.

    Like SRTF, but a job counts for as many as it has GPUs (Tiresias, section 3.2): the order is
    that of remaining time x GPUs, ties by arrival.
    """

    name: ClassVar[str] = "srsf"
    paper: ClassVar[str] = "Tiresias (NSDI '19) 3.2"
    needs: ClassVar[str] = "speeds, iterations"
    assumes: ClassVar[Assumes] = BY_RANK
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        return ordering.preempt(view, ranking.rank(view, by_service=True))

"""Shortest remaining time first, and shortest remaining service first."""

from dataclasses import dataclass
from typing import ClassVar

from dljob.core.assuming import BY_RANK, Assumes
from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.policies.common import ordering, ranking


@dataclass(frozen=True, slots=True)
class Srtf:
    """
    At every decision the jobs that need the least time yet have the GPUs they request.

    The baseline of AFS (section 5.1). All jobs are ordered by the time they have still to train,
    ties by arrival; who fits is taken, who does not is skipped, and running jobs that are not
    taken are stopped. The time is predicted for the requested GPUs of the type that suits the job
    best, and knows no cost of stopping and starting: the text leaves preemption free of charge.
    """

    name: ClassVar[str] = "srtf"
    paper: ClassVar[str] = "AFS (NSDI '21) 5.1"
    needs: ClassVar[str] = "speeds, iterations"
    assumes: ClassVar[Assumes] = BY_RANK
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        return ordering.preempt(view, ranking.rank(view, by_service=False))


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

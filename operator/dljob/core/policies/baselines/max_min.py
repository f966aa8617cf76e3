"""
Max-min fairness over GPUs: the poorest job gets the next one.

As Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning" (AFS, NSDI 2021), use it
as a baseline in sections 2.2 and 5.
"""

import heapq
from dataclasses import dataclass
from typing import ClassVar

from dljob.core.assuming import GUESSES, Assumes, Knowledge
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import Cause, CauseCode, JobState
from dljob.core.policies.common.counting import Counts
from dljob.core.profiles import JobType

_NO_ROOM = Cause(CauseCode.NO_ROOM)
_FAIR_SHARE = Cause(CauseCode.FAIR_SHARE)
_FASTER_WITH_FEWER = Cause(CauseCode.FASTER_WITH_FEWER)


@dataclass(frozen=True, slots=True)
class MaxMin:
    """
    Raise the share of the job with the fewest GPUs, again and again, until nothing is left.

    Where the paper leaves room: a share is raised to the job's next optional number, jobs that have
    equally many are served by priority and arrival, and a job whose next number does not fit is
    out, so that others may use what is left. When there are more jobs than GPUs, those that came
    first run. A job is not raised to a number with which it is known to be slower, or that could
    never be placed. It keeps the type of GPU that it has; a new one is given the acceptable type
    with most GPUs left, or a mixture if it allows that and no type has enough.
    """

    name: ClassVar[str] = "max-min"
    paper: ClassVar[str] = "AFS (Hwang et al.), 2.2 and 5.1 (baseline)"
    needs: ClassVar[str] = "nothing; speeds, where known, keep it from overdoing"
    assumes: ClassVar[Assumes] = {
        Knowledge.SPEED: "takes it to be fastest on the most GPUs that it allows",
        Knowledge.MEASURED: GUESSES,
    }
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        """Fill from the bottom, level by level."""
        filling = _Filling(view)
        filling.fill()
        shares = {
            state.id: filling.share(state)
            for state in (*view.running, *view.pending)
            if state.id in filling.counts.gpus
        }
        return Decision(shares=shares, wait=_NO_ROOM)


class _Filling:
    """The shares while they rise."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.counts = Counts(view)
        self._past_peak: dict[tuple[JobType, str, int, int], bool] = {}

    def fill(self) -> None:
        # By the GPUs that they have, not by those that they would have: a job without any comes first.
        states = (*self.view.running, *self.view.pending)
        heap = [(0, -s.job.priority, s.order, s.least, s) for s in states]
        heapq.heapify(heap)
        while heap and any(self.counts.free.values()):
            _, _, _, gpus, state = heapq.heappop(heap)
            if self.counts.raise_to(state, gpus):
                higher = next((n for n in state.job.gpus.options if n > gpus), None)
                if higher and not self._is_past_peak(state, gpus, higher=higher):
                    heapq.heappush(heap, (gpus, -state.job.priority, state.order, higher, state))

    def _is_past_peak(self, state: JobState, lower: int, *, higher: int) -> bool:
        """Return whether the job is known to be slower with the higher number of GPUs."""
        key = (state.job.type, "+".join(self.counts.kinds[state.id]), lower, higher)
        known = self._past_peak.get(key)
        if known is None:
            predictor, kind = self.view.predictor, key[1]
            fast = predictor.speed(state.job, predictor.shape(lower, kind))
            slow = predictor.speed(state.job, predictor.shape(higher, kind))
            known = self._past_peak[key] = slow < fast
        return known

    def share(self, state: JobState) -> Share:
        """The share of the job; its cause shows whether a loss is for its own sake or for others'."""
        gpus, placement = self.counts.gpus[state.id], state.placement
        own = (
            placement is not None
            and gpus < placement.gpus
            and self._is_past_peak(state, gpus, higher=placement.gpus)
        )
        cause = _FASTER_WITH_FEWER if own else _FAIR_SHARE
        kinds = self.counts.kinds[state.id]
        return Share(gpus, cause, kinds[0] if len(kinds) == 1 else None)

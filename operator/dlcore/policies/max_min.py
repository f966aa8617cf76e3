"""
Max-min fairness over GPUs: the poorest job gets the next one.

As Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning" (AFS, NSDI 2021), use it
as a baseline in sections 2.2 and 5.
"""

import heapq
from dataclasses import dataclass
from typing import ClassVar

from dlcore.checking import Law
from dlcore.contract import Decision, Share, View
from dlcore.model import Cause, CauseCode, JobId, JobState
from dlcore.placing import acceptable_types
from dlcore.profiles import JobType

_NO_ROOM = Cause(CauseCode.NO_ROOM)
_FAIR_SHARE = Cause(CauseCode.FAIR_SHARE)
_FASTER_WITH_FEWER = Cause(CauseCode.FASTER_WITH_FEWER)


@dataclass(frozen=True, slots=True)
class MaxMin:
    """
    Raise the share of the job with the fewest GPUs, again and again, until nothing is left.

    Where the paper leaves room: a share is raised to the job's next optional number, jobs with
    equally many are served by priority and arrival, and a job whose next number does not fit is
    out, so that others may use what is left. When there are more jobs than GPUs, those that came
    first run. A job is not raised to a number with which it is known to be slower. It keeps the
    type of GPU that it has; a new one is given the acceptable type with most GPUs left.
    """

    name: ClassVar[str] = "max-min"
    paper: ClassVar[str] = "AFS (Hwang et al.), 2.2 and 5.1 (baseline)"
    needs: ClassVar[str] = "nothing; speeds, where known, keep it from overdoing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        """Fill from the bottom, level by level."""
        filling = _Filling(view)
        filling.fill()
        shares = {
            state.job.id: filling.share(state)
            for state in (*view.running, *view.pending)
            if state.job.id in filling.counts
        }
        return Decision(shares=shares, wait=_NO_ROOM)


class _Filling:
    """The shares while they rise."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.free = dict(view.cluster.totals)
        self.kinds: dict[JobId, str] = {}
        self.counts: dict[JobId, int] = {}
        self._past_peak: dict[tuple[JobType, str, int, int], bool] = {}

    def fill(self) -> None:
        states = (*self.view.running, *self.view.pending)
        heap = [(s.least, -s.job.priority, s.order, s) for s in states]
        heapq.heapify(heap)
        while heap and any(self.free.values()):
            gpus, _, _, state = heapq.heappop(heap)
            if self._raise(state, gpus):
                higher = next((n for n in state.job.gpus.options if n > gpus), None)
                if higher and not self._is_past_peak(state, gpus, higher):
                    heapq.heappush(heap, (higher, -state.job.priority, state.order, state))

    def _raise(self, state: JobState, gpus: int) -> bool:
        job = state.job.id
        kind = self.kinds.get(job) or self._choose_type(state)
        more = gpus - self.counts.get(job, 0)
        if kind is None or self.free.get(kind, 0) < more:
            return False
        self.free[kind] -= more
        self.counts[job], self.kinds[job] = gpus, kind
        return True

    def _choose_type(self, state: JobState) -> str | None:
        if state.placement is not None:
            return state.placement.gpu_type
        kinds = acceptable_types(state, self.view.cluster)
        return max(kinds, key=lambda kind: self.free[kind], default=None)

    def _is_past_peak(self, state: JobState, lower: int, higher: int) -> bool:
        """Whether the job is known to be slower with the higher number of GPUs."""
        key = (state.job.type, self.kinds[state.job.id], lower, higher)
        known = self._past_peak.get(key)
        if known is None:
            predictor, kind = self.view.predictor, key[1]
            fast = predictor.speed(state.job, predictor.shape(lower, kind))
            slow = predictor.speed(state.job, predictor.shape(higher, kind))
            known = self._past_peak[key] = slow < fast
        return known

    def share(self, state: JobState) -> Share:
        """What the job is to have; a loss for its own sake is told from one for others'."""
        gpus, placement = self.counts[state.job.id], state.placement
        own = (
            placement is not None
            and gpus < placement.gpus
            and self._is_past_peak(state, gpus, placement.gpus)
        )
        cause = _FASTER_WITH_FEWER if own else _FAIR_SHARE
        return Share(gpus, cause, self.kinds[state.job.id])

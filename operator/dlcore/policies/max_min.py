"""
Max-min fairness over GPUs: the poorest job gets the next one.

As Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning" (AFS, NSDI 2021), use it
as a baseline in sections 2.2 and 5.
"""

import heapq
from dataclasses import dataclass
from typing import ClassVar

from dlcore.checking import Law
from dlcore.model import Cause, CauseCode, JobId, JobState
from dlcore.placing import acceptable_types
from dlcore.policies.contract import Decision, Share, View

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
        free = dict(view.cluster.totals)
        kinds: dict[JobId, str] = {}
        counts: dict[JobId, int] = {}
        heap = [(s.least, -s.job.priority, s.order, s) for s in (*view.running, *view.pending)]
        heapq.heapify(heap)
        while heap and any(free.values()):
            gpus, _, _, state = heapq.heappop(heap)
            job = state.job.id
            has = counts.get(job, 0)
            kind = kinds.get(job) or _choose_type(state, free, view)
            if kind is None or free.get(kind, 0) < gpus - has:
                continue
            free[kind] -= gpus - has
            counts[job], kinds[job] = gpus, kind
            higher = _next_number(state, gpus, kind, view)
            if higher is not None:
                heapq.heappush(heap, (higher, -state.job.priority, state.order, state))
        shares = {
            state.job.id: Share(counts[state.job.id], _why(state, view), kinds[state.job.id])
            for state in (*view.running, *view.pending)
            if state.job.id in counts
        }
        return Decision(shares=shares, wait=_NO_ROOM)


def _choose_type(state: JobState, free: dict[str, int], view: View) -> str | None:
    if state.placement is not None:
        return state.placement.gpu_type
    kinds = acceptable_types(state, view.cluster)
    return max(kinds, key=lambda kind: free[kind], default=None)


def _next_number(state: JobState, gpus: int, kind: str, view: View) -> int | None:
    higher = next((n for n in state.job.gpus.options if n > gpus), None)
    return None if higher is None or _is_past_peak(state, higher, kind, view) else higher


def _is_past_peak(state: JobState, gpus: int, kind: str, view: View) -> bool:
    """Whether the job would be faster with its next smaller number of GPUs."""
    lower = max((n for n in state.job.gpus.options if n < gpus), default=None)
    if lower is None:
        return False
    predictor, job = view.predictor, state.job
    speed = predictor.speed(job, predictor.shape(gpus, kind))
    return speed < predictor.speed(job, predictor.shape(lower, kind))


def _why(state: JobState, view: View) -> Cause:
    placement = state.placement
    if placement is not None and _is_past_peak(state, placement.gpus, placement.gpu_type, view):
        return _FASTER_WITH_FEWER
    return _FAIR_SHARE

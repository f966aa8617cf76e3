"""
Optimus as others compare themselves with it: all GPUs are shared out again every ten minutes.

Peng et al., "Optimus" (EuroSys 2018), section 4.1; the baseline of ONES (Bian et al.), section 4.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from dljob.core.assuming import BY_TIMES, Assumes
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import Cause, CauseCode, JobId, JobState
from dljob.core.options import check, declare
from dljob.core.policies.common.counting import Counts
from dljob.core.policies.common.ordering import NEXT_ROUND, keep_all
from dljob_lab.policies.common.gains import shortens, time_saved

_ITS_TURN = Cause(CauseCode.ITS_TURN)
_MAKES_ROOM = Cause(CauseCode.MAKES_ROOM)
_FASTER_WITH_MORE = Cause(CauseCode.FASTER_WITH_MORE)
_FASTER_WITH_FEWER = Cause(CauseCode.FASTER_WITH_FEWER)


class Round(NamedTuple):
    """The policy's memory: the time when it shares out again."""

    next_at: float


Times = dict[tuple[JobId, int], float]
"""By job and number of GPUs, of the type that it has in this round."""


class _Step(NamedTuple):
    """More GPUs that a job could be given; the best step is the least."""

    loss: float
    """The time saved for each GPU more, below zero."""
    order: int
    gpus: int
    state: JobState


@dataclass(frozen=True, slots=True)
class OptimusPeriodic:
    """
    Every ten minutes, give each job its least, and then GPU by GPU to the job that gains most by it.

    Optimus, section 4.1: each job first has one worker "to avoid starvation"; then the marginal
    gain, the training time saved for each GPU more, is found for every job, and the job with the
    largest gets them, until no GPU is left or no job gains. The round takes all running and waiting
    jobs. ONES adds (section 4.2) that between rounds nothing changes: jobs that arrive wait for
    the next one, half an interval on average, and as in Optimus the cost of restarts is not counted.

    ``optimus`` is what the SideCar paper makes of the same idea: there jobs start at once, and grow.

    Where the papers leave room:

    - "One by one" is from one optional number to another. Of the larger numbers the one with the
      largest gain for each GPU more is taken, so that a number that helps little does not hide
      a larger one that helps much.
    - The first round is at the first decision. A round that was due while nothing happened is held
      at the next decision, and the next interval begins with it.
    - When there are more jobs than GPUs, those with the higher priority, then those that came first
      have their least; the others wait, also when they ran before.
    - A job keeps the type of GPU that it has; a new one gets the type that it is fastest on, of
      those with its least left.
    - The number of parameter servers, which Optimus chooses as well, is the user's.
    """

    name: ClassVar[str] = "optimus-periodic"
    paper: ClassVar[str] = "Optimus (Peng et al.), 4.1; ONES (Bian et al.), 4.2 (baseline)"
    needs: ClassVar[str] = "speeds by shape and remaining iterations"
    assumes: ClassVar[Assumes] = BY_TIMES
    breaks: ClassVar[frozenset[Law]] = frozenset()

    period_seconds: float = declare(600.0, at_least=1.0)
    """How long it is from one round to the next."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Hold a round if one is due; else leave everything as it is."""
        last = view.state
        if isinstance(last, Round) and view.now < last.next_at:
            shares = keep_all(view.running)
            return Decision(shares, wait=NEXT_ROUND, wake_at=last.next_at, state=last)
        counts = Counts(view, fastest_first=True)
        served = list(_give_least(counts, view))
        _give_best(counts, served)
        next_at = view.now + self.period_seconds
        return Decision(
            {state.id: _share(counts, state) for state in served},
            # The same reason as between rounds, so that no job's reason changes twice a round.
            wait=NEXT_ROUND,
            wake_at=next_at,
            state=Round(next_at),
        )


def _give_least(counts: Counts, view: View) -> Iterable[JobState]:
    """Give the jobs their minimum in order, and return those that got it."""
    states = (*view.running, *view.pending)
    for state in sorted(states, key=lambda each: (-each.job.priority, each.order)):
        if not any(counts.free.values()):
            return
        if counts.raise_to(state, state.least):
            yield state


def _give_best(counts: Counts, states: Iterable[JobState]) -> None:
    """Give what is left step by step to the job that gains most for each GPU."""
    times: Times = {}
    steps = [
        step for state in states if (step := _best_step(counts, state, times=times)) is not None
    ]
    heapq.heapify(steps)
    while steps:
        step = heapq.heappop(steps)
        is_given = counts.raise_to(step.state, step.gpus)
        again = _best_step(counts, step.state, times=times)
        # Where others took GPUs since, a smaller step may still be possible; the same one is not.
        if again is not None and (is_given or again != step):
            heapq.heappush(steps, again)


def _best_step(counts: Counts, state: JobState, *, times: Times) -> _Step | None:
    """The larger number of GPUs with the largest gain for each GPU more, of those still there."""
    has = counts.gpus[state.id]
    kinds = counts.kinds[state.id]
    most = has + counts.left_of(kinds)
    options = [option for option in state.job.gpus.options if has < option <= most]
    if not options:
        return None
    kind = "+".join(sorted(kinds))
    before = _training_time(counts.view, state, gpus=has, kind=kind, times=times)
    best = _Step(0.0, state.order, has, state)
    for gpus in options:
        saved = shortens(
            before, _training_time(counts.view, state, gpus=gpus, kind=kind, times=times)
        )
        best = min(best, _Step(-saved / (gpus - has), state.order, gpus, state))
    return best if best.loss < 0.0 else None


def _training_time(view: View, state: JobState, *, gpus: int, kind: str, times: Times) -> float:
    """Return how long the job trains yet; found once a round, because each step asks for most of them again."""
    known = times.get((state.id, gpus))
    if known is None:
        shape = view.predictor.shape(gpus, kind)
        known = times[state.id, gpus] = view.predictor.training_time(state, shape, now=view.now)
    return known


def _share(counts: Counts, state: JobState) -> Share:
    """The share of the job, and its cause."""
    gpus, placement, kinds = counts.gpus[state.id], state.placement, counts.kinds[state.id]
    kind = kinds[0] if len(kinds) == 1 else None
    if placement is None:
        return Share(gpus, _ITS_TURN, kind)
    if gpus > placement.gpus:
        return Share(gpus, _FASTER_WITH_MORE, kind)
    # A job that is faster with fewer GPUs gives them up for its own sake, not for others.
    fewer = counts.view.predictor.shape(gpus, "+".join(sorted(kinds)))
    is_faster = time_saved(counts.view, state, before=placement.shape, after=fewer) > 0.0
    return Share(gpus, _FASTER_WITH_FEWER if is_faster else _MAKES_ROOM, kind)

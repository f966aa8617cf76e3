"""The steps of one decision of ``foresight``."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from dljob.core.assuming import GUESSES, USUAL_CURVE, Assumes, Knowledge
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import Cause, CauseCode, JobId, JobState
from dljob.core.options import check, declare
from dljob.core.placement.counting import count_usable
from dljob.core.policies.foresight.bids import Bid, Bidders
from dljob.core.policies.foresight.choosing import (
    choose_by_type,
    choose_rest,
    list_options,
    switch_types,
)
from dljob.core.policies.foresight.lengths import MOST_REMEMBERED, Experience
from dljob.core.policies.foresight.memory import (
    Memory,
    Progress,
    State,
    expect_tenure,
    recall,
    remember_tenures,
)
from dljob.core.policies.foresight.placing import Arranging
from dljob.core.policies.foresight.pricing import find_prices, fix_sizes
from dljob.core.policies.foresight.sites import KEEPS
from dljob.core.predicting.conclusions import Kept

_WAIT = Cause(CauseCode.NO_ROOM)

USUAL_SHARE = 0.75
"""A usual time is one that this part of the jobs does not exceed; longer ones begin to count more."""

FEWEST_TIMES = 20
"""Include the expected times of present jobs until this many jobs have ended."""

ALL = 1 << 30
"""More GPUs than any cluster has: no option is left out for want of them."""

HIGHEST_WEIGHT = 1e150
"""If the number of different priorities would bring weights above this, each step counts less."""


@dataclass(frozen=True, slots=True)
class Foresight:
    """
    Price every job by the worth of its GPUs to others, and take the shares worth most.

    1. Each job bids with its remaining need and its scaling (:mod:`.bids`).
    2. Prices follow backwards from the job that is expected to end last (:mod:`.pricing`). A job that
       will keep the GPUs it starts with bids for one number of them, the right one for its whole life.
    3. The shares that are worth most at these prices are chosen, after what each change costs
       (:mod:`.choosing`); with several types of GPU jobs also change theirs.
    4. They are given nodes; where they do not fit, other jobs move if that pays (:mod:`.placing`).

    The aim is the least mean completion time, with ``ageing`` as the weight on the slowest jobs. A
    job of a higher priority counts as much as ``priority_weight`` jobs of the next lower one.
    """

    name: ClassVar[str] = "foresight"
    paper: ClassVar[str] = "our own, after SmartFill (arXiv 2509.01811)"
    needs: ClassVar[str] = "speeds, iterations; learns unknown lengths"
    assumes: ClassVar[Assumes] = {
        Knowledge.LENGTH: "assumes the lengths of jobs that ended before, each as likely as the others",
        Knowledge.SPEED: f"{USUAL_CURVE}, and goes by the GPU time that it and the jobs before it have had",
        Knowledge.MEASURED: GUESSES,
    }
    breaks: ClassVar[frozenset[Law]] = frozenset()

    ageing: float = declare(0.15, at_least=0.0, at_most=2.0)
    """
    How much more a job counts the longer it takes: its weight is 1 plus its whole expected time
    over a usual one, to this power. 0 counts all jobs alike, for the least mean.
    """
    # From 1 on, each price raises the next one, so prices would never fall.
    arrivals: float = declare(0.4, at_least=0.0, at_most=0.9)
    """How much of the recent price of a GPU is expected to be asked by jobs yet to arrive."""
    memory: float = declare(30_000.0, above=0.0)
    """Time constant of the smoothing of that price, in seconds."""
    horizon: float = declare(500.0, above=0.0)
    """For how many seconds at most a change is expected to pay."""
    priority_weight: float = declare(100.0, at_least=1.0, at_most=1e6)

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Collect bids, price them, choose shares, find nodes."""
        memory = recall(view)
        lengths = _remember_ends(memory, view)
        experience = Experience(tuple(sorted(lengths.values())))
        bidders = _kept.recall(lambda bidders: bidders.suits(view), lambda: Bidders(view))
        bids = bidders.collect(view, experience)
        spans = _remember_spans(memory, view.now, lengths=lengths)
        tenures, usual_tenure = remember_tenures(memory, view)
        for bid in bids:
            bid.horizon = expect_tenure(tenures.get(bid.state.id), usual_tenure, now=view.now)
        self._weigh(bids, view.now, earlier=spans.values())

        # The running jobs without a bid have GPUs of several types, and go on.
        bidding = {bid.state.id for bid in bids if bid.held}
        outsiders = [state for state in view.running if state.id not in bidding]
        capacities = _find_capacities(view, outsiders)
        floors = {kind: self.arrivals * level for kind, level in memory.levels.items()}
        prices = find_prices(bids, capacities, floors=floors)
        if fix_sizes(bids, capacities, worths=prices if len(bids) > 1 else floors):
            prices = find_prices(bids, capacities, floors=floors)

        chosen = self._choose(bids, capacities)
        kept = {bid.state.id for bid in chosen if bid.held}
        kept.update(state.id for state in outsiders)
        running = tuple(state for state in view.running if state.id in kept)
        arranging = Arranging(replace(view, running=running), chosen, horizon=self.horizon)
        others = [bid for bid in bids if bid not in chosen]
        shares = arranging.arrange(others)
        _start_mixed(view, arranging, shares=shares)
        levels = self._smooth(memory, view.now, prices=prices)
        progress = _note_progress(memory, bids, view=view)
        state = State(Memory(view.now, levels, progress, lengths, spans, tenures, usual_tenure))
        worths = Worths(arranging.measure_worths(others), bids, horizon=self.horizon)
        return Decision(shares, wait=_WAIT, state=state, worths=worths)

    def recall_lengths(self, state: object) -> Collection[float]:
        """Return how long the latest jobs were; none right after a restart."""
        return state.memory.lengths.values() if isinstance(state, State) else ()

    def _weigh(self, bids: Sequence[Bid], now: float, *, earlier: Collection[float]) -> None:
        """Give old and long jobs more weight, and jobs of a higher priority much more."""
        times = [max(0.0, now - bid.state.job.submitted_at) + bid.left / bid.top for bid in bids]
        usual = _find_usual_time(earlier, times) if self.ageing > 0.0 else math.inf
        levels = sorted({bid.state.job.priority for bid in bids})
        ranks = {priority: rank for rank, priority in enumerate(levels)}
        step = min(self.priority_weight, HIGHEST_WEIGHT ** (1.0 / max(1, len(levels) - 1)))
        for bid, time in zip(bids, times, strict=True):
            bid.weight = (1.0 + time / usual) ** self.ageing
            bid.weight *= step ** ranks[bid.state.job.priority]

    def _choose(self, bids: Sequence[Bid], capacities: Mapping[str, int]) -> dict[Bid, int]:
        """Choose shares for each GPU type, and change the type of a job where that pays."""
        chosen = choose_by_type(bids, capacities, horizon=self.horizon)
        if len(capacities) == 1:
            return chosen
        visits = switch_types(bids, capacities, chosen=chosen, horizon=self.horizon)
        if visits:
            chosen = choose_by_type(bids, capacities, horizon=self.horizon, visits=visits)
        return chosen | choose_rest(bids, capacities, chosen=chosen, horizon=self.horizon)

    def _smooth(
        self, memory: Memory, now: float, *, prices: Mapping[str, float]
    ) -> Mapping[str, float]:
        """Return the smoothed recent worth of a GPU of each type."""
        kept = math.exp(-max(0.0, now - memory.at) / self.memory) if memory.levels else 0.0
        return {
            kind: kept * memory.levels.get(kind, price) + (1.0 - kept) * price
            for kind, price in prices.items()
        }


_kept: Kept[Bidders] = Kept(most=4)


def _find_capacities(view: View, outsiders: Iterable[JobState]) -> dict[str, int]:
    """Return the number of GPUs of each type that bids can get."""
    left = dict(view.cluster.totals)
    for state in outsiders:
        if state.placement is not None:
            for node, gpus in count_usable(state.placement, view.cluster).items():
                left[view.cluster.by_name[node].gpu_type] -= gpus
    return left


def _start_mixed(view: View, arranging: Arranging, *, shares: dict[JobId, Share]) -> None:
    """Start jobs that may mix types and need more GPUs than any single type has."""
    if len(view.cluster.types) < 2 or arranging.room.total == 0:
        return
    for state in view.pending:
        if state.job.gpus.mixed and state.id not in shares:
            fit = arranging.room.find(state, state.least)
            if fit is not None:
                arranging.room.take(fit.nodes, state)
                shares[state.id] = Share(state.least, KEEPS, fit.gpu_type, fit.nodes)


def _remember_ends(memory: Memory, view: View) -> Mapping[JobId, float]:
    """
    The lengths of the latest jobs: those that were there before and are gone have ended.

    A job of this name that trains again is another one, or was away from the controller for a while.
    """
    running = {state.id for state in (*view.running, *view.beside)}
    gone = [job for job in memory.progress if job not in running]
    there = view.find_there(gone)
    since = view.now - memory.at
    lengths = {job: length for job, length in memory.lengths.items() if job not in running}
    for job in gone:
        attained, pace, _ = memory.progress[job]
        if job not in there and attained + pace * since > 0.0:
            lengths[job] = attained + pace * since
    return dict(list(lengths.items())[-MOST_REMEMBERED:])


def _remember_spans(
    memory: Memory, now: float, *, lengths: Iterable[JobId]
) -> Mapping[JobId, float]:
    """Return how many seconds passed from the submission to the end of each job of these lengths."""
    spans: dict[JobId, float] = {}
    for job in lengths:
        known = memory.spans.get(job)
        if known is not None:
            spans[job] = known
        elif job in memory.progress:
            spans[job] = max(0.0, now - memory.progress[job].submitted_at)
    return spans


def _find_usual_time(earlier: Collection[float], expected: Iterable[float]) -> float:
    """
    The time up to which jobs count about alike, by the times of the latest jobs that ended.

    It is learnt, because jobs take minutes on one cluster and days on another.
    """
    times = list(earlier)
    if len(times) < FEWEST_TIMES:
        times += expected
    times.sort()
    return max(1.0, times[int(USUAL_SHARE * len(times))]) if times else math.inf


def _note_progress(memory: Memory, bids: Iterable[Bid], *, view: View) -> Mapping[JobId, Progress]:
    progress: dict[JobId, Progress] = {}
    for bid in bids:
        state = bid.state
        if bid.held or state.id in memory.progress:
            # Not on the type that it has: what it did on another would change with each move.
            alone = bid.alone
            attained, pace = state.iterations_at(view.now) / alone, state.speed / alone
            if bid.is_guessed:
                attained, pace = state.service_at(view.now), float(bid.held)
            progress[state.id] = Progress(attained, pace, state.job.submitted_at)
    train = {state.id for state in (*view.running, *view.beside)}
    for job in view.find_there([job for job in memory.progress if job not in progress]):
        attained, pace, submitted_at = memory.progress[job]
        attained += pace * (view.now - memory.at)
        progress[job] = Progress(attained, pace if job in train else 0.0, submitted_at)
    return progress


class Worths(Mapping[JobId, float]):
    """
    The worth of a GPU to each job after a decision, for the reasons that people read.

    Worths of jobs that nothing changes for are found on demand, because thousands may wait
    and a user asks about few. All are counted after the cost of the change that they would take.
    """

    def __init__(
        self, changed: Mapping[JobId, float], bids: Iterable[Bid], *, horizon: float
    ) -> None:
        self._changed = changed
        self._bids = bids
        self._horizon = horizon

    @cached_property
    def _by_job(self) -> Mapping[JobId, Bid]:
        return {bid.state.id: bid for bid in self._bids}

    def __getitem__(self, job: JobId) -> float:
        known = self._changed.get(job)
        if known is not None:
            return known
        bid = self._by_job[job]
        return self._find_kept(bid) if bid.held else self._find_wanted(bid)

    def __iter__(self) -> Iterator[JobId]:
        yield from self._by_job

    def __len__(self) -> int:
        return len(self._by_job)

    def _find_kept(self, bid: Bid) -> float:
        """The least loss of the job with each GPU that it gave up."""
        options = list_options(bid, ALL, horizon=self._horizon)
        kept = next((option for option in options if option[0] == bid.held), None)
        if kept is None:
            return 0.0
        _, most, all_worth = kept
        fewer = ((weight, worth) for _, weight, worth in options if weight < most)
        losses = ((all_worth - worth) / (most - weight) for weight, worth in fewer)
        return max(0.0, min(losses, default=0.0))

    def _find_wanted(self, bid: Bid) -> float:
        """The worth of each GPU of its smallest share to a job that waits."""
        options = list_options(bid, ALL, horizon=self._horizon)
        wanted = ((weight, worth) for gpus, weight, worth in options if gpus)
        weight, worth = next(wanted, (1, 0.0))
        return max(0.0, worth / weight)

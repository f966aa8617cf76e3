"""The steps of one decision of ``foresight``."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from dlcore.checking import Law
from dlcore.contract import Decision, Share, View
from dlcore.model import Cause, CauseCode, JobId, JobState
from dlcore.policies.foresight.arranging import KEEPS, Arranging, leave_only
from dlcore.policies.foresight.bids import Bid, Bidders
from dlcore.policies.foresight.choosing import choose, split_by_type
from dlcore.policies.foresight.lengths import MOST_REMEMBERED, Experience
from dlcore.policies.foresight.pricing import find_prices
from dlcore.policies.foresight.sightings import Sightings, look
from dlcore.rooms import count_usable

_WAIT = Cause(CauseCode.NO_ROOM)


class Progress(NamedTuple):
    """How far a job was when it was last seen, in seconds on one GPU, and how fast it went on."""

    attained: float
    pace: float


class Memory(NamedTuple):
    """What the policy remembers from one decision to the next."""

    at: float
    levels: Mapping[str, float]
    """What a GPU of each type was worth lately, smoothed."""
    progress: Mapping[JobId, Progress]
    lengths: Mapping[JobId, float]
    """How long the latest jobs were, in seconds on one GPU, in order of their ends."""
    sightings: Sightings


@dataclass(frozen=True, slots=True)
class Foresight:
    """
    Price every job by what its GPUs would be worth to others, and take the shares worth most.

    1. Each job bids with what it needs yet and how it scales (:mod:`.bids`).
    2. Prices follow backwards from the job that is expected to end last (:mod:`.pricing`).
    3. The shares that are worth most at these prices are chosen, after what each change costs
       (:mod:`.choosing`).
    4. They are given nodes; where they do not fit, other jobs move if that pays (:mod:`.arranging`).

    The aim is the least mean completion time, with ``ageing`` as the weight on the slowest jobs. A
    job of a higher priority counts as much as ``priority_weight`` jobs of the next lower one.
    """

    name: ClassVar[str] = "foresight"
    paper: ClassVar[str] = "our own, after SmartFill (arXiv 2509.01811)"
    needs: ClassVar[str] = "speeds, iterations; learns lengths that it is not told"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    ageing: float = 0.2
    """
    How much more a job counts the longer it takes: its weight is its whole expected time, plus
    ``ageing_after``, to this power. 0 counts all jobs alike, for the least mean.
    """
    ageing_after: float = 20_000.0
    """Up to about so many seconds jobs count alike."""
    arrivals: float = 0.4
    """How much of the recent price of a GPU is expected to be asked by jobs yet to arrive."""
    memory: float = 30_000.0
    """Over how many seconds that price is smoothed."""
    horizon: float = 500.0
    """For how many seconds at most a change is expected to pay."""
    priority_weight: float = 100.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.ageing <= 2.0:
            raise ValueError("ageing must be from 0 to 2")
        if not 0.0 <= self.arrivals <= 0.9:
            # From 1 on each price raises the next one, and none ever falls again.
            raise ValueError("arrivals must be from 0 to 0.9")
        if min(self.ageing_after, self.memory, self.horizon) <= 0.0:
            raise ValueError("ageing_after, memory and horizon must be above 0 seconds")
        if self.priority_weight < 1.0:
            raise ValueError("priority_weight must be at least 1")

    def allocate(self, view: View) -> Decision:
        """Collect bids, price them, choose shares, find nodes."""
        memory = view.state if isinstance(view.state, Memory) else _new(view)
        lengths = _remember_ends(memory, view)
        sightings = look(memory.sightings, view)
        experience = Experience(tuple(sorted(lengths.values())))
        bids = _find_bidders(view).collect(view, experience, sightings)
        self._weigh(bids, view.now)

        outsiders = _find_outsiders(view, bids)
        capacities = _find_capacities(view, outsiders)
        floors = {kind: self.arrivals * level for kind, level in memory.levels.items()}
        prices = find_prices(bids, capacities, floors=floors)

        chosen = self._choose(bids, capacities)
        kept = [bid.state.id for bid in chosen if bid.held]
        survivors = leave_only(view, (*kept, *(state.id for state in outsiders)))
        arranging = Arranging(survivors, chosen, horizon=self.horizon)
        others = [bid for bid in bids if bid not in chosen]
        shares = arranging.arrange(others)
        _start_mixed(view, arranging, shares)
        levels = self._smooth(memory, view.now, prices)
        progress = _note_progress(memory, bids, view)
        state = Memory(view.now, levels, progress, lengths, sightings)
        worths = arranging.measure_worths(others)
        return Decision(shares, wait=_WAIT, state=state, worths=worths)

    def _weigh(self, bids: Sequence[Bid], now: float) -> None:
        """Let old and long jobs count more, and those of a higher priority much more."""
        levels = sorted({bid.state.job.priority for bid in bids})
        ranks = {priority: rank for rank, priority in enumerate(levels)}
        for bid in bids:
            job = bid.state.job
            if self.ageing > 0.0:
                takes = max(0.0, now - job.submitted_at) + bid.left / bid.top
                bid.weight = (1.0 + takes / self.ageing_after) ** self.ageing
            if len(levels) > 1:
                bid.weight *= self.priority_weight ** ranks[job.priority]

    def _choose(self, bids: Sequence[Bid], capacities: Mapping[str, int]) -> dict[Bid, int]:
        """Choose for each type of GPU, then give what is left of a type to other jobs."""
        chosen: dict[Bid, int] = {}
        left = dict(capacities)
        for kind, group in split_by_type(bids).items():
            taken = choose(group, capacities.get(kind, 0), horizon=self.horizon)
            chosen |= taken
            left[kind] = left.get(kind, 0) - sum(taken.values())
        if len(capacities) == 1:
            return chosen
        for kind, gpus in left.items():
            others = [bid for bid in bids if bid not in chosen and not bid.held]
            for bid in others if gpus > 0 else ():
                bid.curve = next((c for c in bid.curves if c.gpu_type == kind), bid.curve)
            group = [bid for bid in others if bid.curve.gpu_type == kind]
            if gpus > 0 and group:
                chosen |= choose(group, gpus, horizon=self.horizon)
        return chosen

    def _smooth(
        self, memory: Memory, now: float, prices: Mapping[str, float]
    ) -> Mapping[str, float]:
        """What a GPU of each type was worth lately."""
        kept = math.exp(-max(0.0, now - memory.at) / self.memory) if memory.levels else 0.0
        return {
            kind: kept * memory.levels.get(kind, price) + (1.0 - kept) * price
            for kind, price in prices.items()
        }


def _new(view: View) -> Memory:
    return Memory(view.now, {}, {}, {}, Sightings())


# Conclusions only: without them the answers would be the same, but found more slowly.
_latest: list[Bidders] = []


def _find_bidders(view: View) -> Bidders:
    for bidders in _latest:
        if bidders.suits(view):
            return bidders
    bidders = Bidders(view)
    _latest[:] = [bidders, *_latest[:3]]
    return bidders


def _find_outsiders(view: View, bids: Iterable[Bid]) -> list[JobState]:
    """Running jobs that make no bid, because their GPUs are of several types; they go on."""
    bidding = {bid.state.id for bid in bids if bid.held}
    return [state for state in view.running if state.id not in bidding]


def _find_capacities(view: View, outsiders: Iterable[JobState]) -> dict[str, int]:
    """How many GPUs of each type are divided."""
    left = dict(view.cluster.totals)
    for state in outsiders:
        if state.placement is not None:
            for node, gpus in count_usable(state.placement, view.cluster).items():
                left[view.cluster.by_name[node].gpu_type] -= gpus
    return left


def _start_mixed(view: View, arranging: Arranging, shares: dict[JobId, Share]) -> None:
    """Start jobs for which no single type has GPUs enough, and which may mix types."""
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

    Suspended jobs and others that cannot run are not in the view either. Once such a job trains
    again, its length is forgotten.
    """
    running = {state.id for state in view.running}
    gone = [job for job in memory.progress if job not in running]
    still = view.pending.select(gone)
    since = view.now - memory.at
    lengths = {job: length for job, length in memory.lengths.items() if job not in running}
    for job in gone:
        attained, pace = memory.progress[job]
        if job not in still and attained + pace * since > 0.0:
            lengths[job] = attained + pace * since
    return dict(list(lengths.items())[-MOST_REMEMBERED:])


def _note_progress(memory: Memory, bids: Iterable[Bid], view: View) -> Mapping[JobId, Progress]:
    progress: dict[JobId, Progress] = {}
    for bid in bids:
        state = bid.state
        if bid.held or state.id in memory.progress:
            alone = bid.curve.hull[1]
            progress[state.id] = Progress(
                state.iterations_at(view.now) / alone, state.speed / alone
            )
    return progress

"""
The adaptive scheduler of the SideCar paper: reshape down for the incoming, up when idle.

Wang et al., "An Efficient and Non-Intrusive GPU Scheduling Framework for Deep Learning Training
Systems", section III.C, Algorithms 1 and 2.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from dljob.core.assuming import BY_TIMES, Assumes
from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.model import Cause, CauseCode, JobState, NodeName
from dljob.core.placement.counting import name_type
from dljob.core.placement.free_gpus import grow
from dljob.core.placement.largest import acceptable_types
from dljob.core.policies.common.holdings import Holding, Ledger, Offer, Offers
from dljob.core.policies.common.ordering import fewest_needed
from dljob.core.queues import Queue
from dljob_wire.messages import Shape

_NO_ROOM = Cause(CauseCode.NO_ROOM)
_KEEPS = Cause(CauseCode.ITS_TURN)
_MAKES_ROOM = Cause(CauseCode.MAKES_ROOM)
_FASTER_WITH_MORE = Cause(CauseCode.FASTER_WITH_MORE)
_FASTER_WITH_FEWER = Cause(CauseCode.FASTER_WITH_FEWER)


class _Choice(NamedTuple):
    """The triple T of Algorithm 1, where it is, and the makespan it would lead to."""

    makespan: float
    """Of all jobs that have GPUs."""
    delay: float
    """How long the newcomer takes, and how much longer its victim."""
    takes: int
    """How many GPUs are taken from a running job; 0 where idle ones suffice."""
    gpus: int
    nodes: Mapping[NodeName, int]
    offer: Offer | None


@dataclass(frozen=True, slots=True)
class Adaptive:
    """
    Give every newcomer the number of GPUs, and the victim if need be, with which all end soonest.

    **Incoming jobs** (Algorithm 1), by priority and arrival: every optional number of GPUs is
    tried, with idle GPUs where there are enough, else with those that one running job gives up.
    The predicted makespan of a choice is when the newcomer, its victim and all others are done.

    **Running jobs** (Algorithm 2): idle GPUs that no newcomer can use go to running jobs.

    Where the paper leaves room, this policy does what lowers the predicted makespan:

    - Idle GPUs and victims are looked for on one node and of one type, because the paper's jobs
      are one container each; a job wider than a node is given idle GPUs of several nodes.
    - Equal makespans are the rule, because most choices leave the longest job alone. Then the
      choice with the least delay is taken, summed over the newcomer and its victim: it frees GPUs
      soonest for the next job. If that is equal too, idle GPUs before a victim's, and fewer before
      more, so that a job that gains nothing from more GPUs does not get them.
    - A job for which no single victim suffices is given what several on one node can spare, but
      only for the least number of GPUs it can run on; the paper would let it wait for ever.
    - Algorithm 2's makespan too is that of all jobs, and only the longest can lower it. GPUs that it
      cannot use go to the others, the job that gains most first, until no idle GPU is left or
      no job gains: so one decision gives out all idle GPUs that are left after a step. Gains
      are counted after the cost of the change. A change may also move a job to a faster type or
      to one node, and may take GPUs from a job that is faster with fewer.
    - A job that is being changed already is not enlarged before that is done.
    - Where no more newcomers can be started for now, the others are looked at next time, and the
      running jobs after them; but only if what the first are given stands for any later job.
    """

    name: ClassVar[str] = "adaptive"
    paper: ClassVar[str] = "SideCar (Wang et al.), III.C, Algorithms 1 and 2"
    needs: ClassVar[str] = "speeds by shape and remaining iterations"
    assumes: ClassVar[Assumes] = BY_TIMES
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        """Serve the incoming jobs first, then the running ones."""
        ledger = Ledger(view)
        are_all_served = not view.pending or _serve_incoming(ledger, view.pending)
        if are_all_served and ledger.room.total > 0:
            _serve_running(ledger)
        shares = {job: holding.share(_KEEPS) for job, holding in ledger.holdings.items()}
        return Decision(shares=shares, wait=_NO_ROOM, is_partial=not are_all_served)


# --- Algorithm 1


def _serve_incoming(ledger: Ledger, pending: Queue[JobState]) -> bool:
    """Give newcomers what they get; return whether all were looked at."""
    if ledger.spare_gpus == 0:
        return True  # Usual where thousands wait: no job has more than its least number of GPUs.
    offers, served, enough = Offers(ledger), 0, ledger.view.enough
    stands = True  # No later job can get any of it.
    makespan = max((holding.remaining for holding in ledger.holdings.values()), default=0.0)
    for state in _iter_by_priority(pending, ledger):
        if stands and 0 < enough <= served:
            return False
        choice = _choose(ledger, offers, state=state, makespan=makespan)
        stands = stands and (choice is None or choice[2:4] == (0, state.least))
        if choice is None:
            choice = _make_room_by_many(ledger, offers, state=state)
            stands = stands and choice is None
        if choice is not None:
            _carry_out(ledger, offers, state=state, choice=choice)
            served += 1
            makespan = max(makespan, ledger.holdings[state.job.id].remaining)
            if choice.offer is not None:
                makespan = max(makespan, choice.offer.remaining)
    return True


def _iter_by_priority(pending: Queue[JobState], ledger: Ledger) -> Iterator[JobState]:
    """The newcomers in order, but for those that need more than any job could get."""
    most = ledger.spare_gpus
    blocks = (block for block in pending.blocks if block.ask(fewest_needed) <= most)
    states = [state for block in blocks for state in block if state.least <= most]
    for state in sorted(states, key=lambda s: (-s.job.priority, s.order)):
        if state.least <= ledger.spare_gpus:
            yield state


def _choose(ledger: Ledger, offers: Offers, *, state: JobState, makespan: float) -> _Choice | None:
    """Lines 12 to 31: of all optional numbers, types and victims, those that end soonest."""
    best: _Choice | None = None
    kinds = acceptable_types(state, ledger.cluster)
    for kind, gpus in itertools.product(kinds, state.job.gpus.options):
        for choice in _iter_choices(
            ledger, offers, state=state, shape=Shape(gpus, 1, kind), makespan=makespan
        ):
            if best is None or choice[:4] < best[:4]:
                best = choice
    if best is None and state.job.gpus.mixed:
        best = _mix(ledger, state)
    return best


def _iter_choices(
    ledger: Ledger, offers: Offers, *, state: JobState, shape: Shape, makespan: float
) -> Iterator[_Choice]:
    predictor, now = ledger.view.predictor, ledger.view.now
    gpus, _, kind = shape
    fit = ledger.room.find(state, gpus, kind)
    if fit is not None:
        spread = Shape(gpus, len(fit.nodes), kind)
        time = predictor.completion(state, spread, now)
        yield _Choice(max(makespan, time), time, 0, gpus, fit.nodes, None)
        if len(fit.nodes) == 1:
            return
    time = predictor.completion(state, shape, now)
    by = max(makespan, time)
    find = offers.best_on if state.bound_to else offers.best
    offer = find(state, kind, gap=gpus, by=by)
    if offer is not None:
        takes = offer.holding.gpus - offer.keeps
        delay = time + offer.loss
        yield _Choice(max(by, offer.remaining), delay, takes, gpus, {offer.node: gpus}, offer)


def _mix(ledger: Ledger, state: JobState) -> _Choice | None:
    """Idle GPUs of several types, for a job that allows it and has no other place."""
    for gpus in reversed(state.job.gpus.options):
        fit = ledger.room.find(state, gpus)
        if fit is not None:
            return _Choice(math.inf, math.inf, 0, gpus, fit.nodes, None)
    return None


def _make_room_by_many(ledger: Ledger, offers: Offers, *, state: JobState) -> _Choice | None:
    """Let several jobs give up GPUs where one cannot give enough for the newcomer's least."""
    fit = ledger.spare.find(state, state.least)
    if fit is None:
        return None
    for node, count in fit.nodes.items():
        for offer in offers.collect(node, count - ledger.room.nodes[node]):
            _give_up(ledger, offers, offer=offer)
    return _Choice(math.inf, math.inf, 0, state.least, fit.nodes, None)


def _give_up(ledger: Ledger, offers: Offers, *, offer: Offer) -> None:
    giver = offer.holding
    # Its offers on its other nodes are void as well.
    before = tuple(giver.nodes)
    ledger.change(giver, offer.left, cause=_MAKES_ROOM)
    offers.refresh(giver, before)


def _carry_out(ledger: Ledger, offers: Offers, *, state: JobState, choice: _Choice) -> None:
    if choice.offer is not None:
        _give_up(ledger, offers, offer=choice.offer)
    holding = ledger.add(state, choice.nodes, cause=_KEEPS)
    offers.refresh(holding, choice.nodes)


# --- Algorithm 2


def _serve_running(ledger: Ledger) -> None:
    """
    Let first the longest job gain, which alone lowers the makespan, then who gains most.

    Repeat as long as a job gained: a job that moved has left GPUs for others.
    """
    while ledger.room.total > 0:
        if not [holding for holding in _rank_gainers(ledger) if _improve(ledger, holding)]:
            return


def _rank_gainers(ledger: Ledger) -> list[Holding]:
    holdings = ledger.holdings.values()
    longest = max(holdings, key=lambda h: (h.remaining, -h.state.order), default=None)
    gains: list[tuple[float, int, Holding]] = []
    for holding in holdings:
        # A running job with a cause is to be changed already: a victim, or one that gained.
        is_changed = holding.cause is not None and holding.state.placement is not None
        if holding.state.adjusting or is_changed:
            continue
        better = _find_better(ledger, holding)
        if better is not None:
            gain = math.inf if holding is longest else better.gain
            gains.append((-gain, holding.state.order, holding))
    return [holding for _, _, holding in sorted(gains, key=lambda entry: entry[:2])]


def _improve(ledger: Ledger, holding: Holding) -> bool:
    """Give the job what is best for it now, after those before it took what they could use."""
    better = _find_better(ledger, holding) if ledger.room.total > 0 else None
    if better is None:
        return False
    fewer = sum(better.nodes.values()) < holding.gpus
    ledger.change(holding, better.nodes, cause=_FASTER_WITH_FEWER if fewer else _FASTER_WITH_MORE)
    return True


class _Better(NamedTuple):
    """Where a running job would be done sooner, and by how much."""

    gain: float
    nodes: Mapping[NodeName, int]


def _find_better(ledger: Ledger, holding: Holding) -> _Better | None:
    """Lines 11 to 20 for one job: the change after which it ends soonest, if sooner than now."""
    best, soonest = None, holding.remaining
    for nodes in _iter_alternatives(ledger, holding):
        after = holding.remaining_on(nodes, name_type(ledger.cluster, nodes))
        if after < soonest:
            best, soonest = nodes, after
    return None if best is None else _Better(holding.remaining - soonest, best)


def _iter_alternatives(ledger: Ledger, holding: Holding) -> Iterator[Mapping[NodeName, int]]:
    state, room = holding.state, ledger.room
    for gpus in state.job.gpus.options:
        if gpus > holding.gpus:
            grown = grow(room, state, holding.nodes, holding.gpu_type, gpus)
            if grown is not None:
                yield grown
        elif gpus < holding.gpus and len(holding.nodes) == 1:
            yield dict.fromkeys(holding.nodes, gpus)
    if state.bound_to:
        return
    others = [k for k in acceptable_types(state, ledger.cluster) if k != holding.gpu_type]
    for kind, gpus in itertools.product(others, state.job.gpus.options):
        fit = room.find(state, gpus, kind)
        if fit is not None:
            yield fit.nodes

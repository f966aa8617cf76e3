"""
On which nodes the chosen shares go, and what becomes of those that do not fit as they are.

Shares are chosen by counts alone. Here each is given nodes, the widest first. Jobs that keep their number but
are spread over more nodes than necessary take their turn among them: once narrower jobs have taken the GPUs
that are free, nothing is left to put them together with. Where the free GPUs are scattered, a job is given what
is worth most of these: all of its GPUs over several nodes; all of them on the fewest nodes, from which other jobs
move into gaps elsewhere; or fewer GPUs. The cost of a move for the jobs that make room counts. At last, GPUs
that are still free go to the jobs to which they are worth most there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dljob.core.contract import Share, View
from dljob.core.model import JobId, NodeName
from dljob.core.policies.foresight.bids import Bid
from dljob.core.policies.foresight.placing.appraising import Appraiser
from dljob.core.policies.foresight.placing.leftovers import TINY, Leftovers
from dljob.core.policies.foresight.placing.seeking import Seeker
from dljob.core.policies.foresight.placing.sites import Nodes, Proposal, Sites, find_cause


class Arranging:
    """Nodes for every share of one decision."""

    def __init__(self, view: View, chosen: Mapping[Bid, int], *, horizon: float) -> None:
        self._sites = Sites(view, chosen)
        self.room = self._sites.room
        self._appraiser = Appraiser(self._sites, horizon=horizon)
        self._seeker = Seeker(self._sites, self._appraiser)

    def arrange(self, others: Iterable[Bid]) -> dict[JobId, Share]:
        """Find nodes for everything; ``others`` are jobs that would take what is left, or keep it."""
        sites = self._sites
        self._shrink()
        is_complete = True
        for bid in self._rank_takers():
            if sites.stays_as_wide(bid):
                self._put_together(bid)
            else:
                is_complete = self._place(bid, sites.chosen[bid]) and is_complete
        if not is_complete or len(sites.view.cluster.types) > 1:
            Leftovers(sites, self._appraiser).give_out(others)
        return sites.shares()

    def measure_worths(self, stopped: Iterable[Bid]) -> dict[JobId, float]:
        """The worth of a GPU that changes hands to each job that gets or loses it."""
        worths: dict[JobId, float] = {}
        for bid in stopped:
            if bid.held and bid.state.id not in self._sites.holdings:
                worths[bid.state.id] = bid.price * bid.curve.speeds.get(bid.held, 0.0) / bid.held
        for job, holding in self._sites.holdings.items():
            other = self._sites.bids.get(job)
            # On another type a GPU is another thing, and its worth cannot be compared with others.
            if other is not None and not other.switches and holding.gpus != other.held:
                speeds = other.curve.speeds
                gain = speeds.get(holding.gpus, 0.0) - speeds.get(other.held, 0.0)
                worths[job] = max(0.0, other.price * gain / (holding.gpus - other.held))
        return worths

    def _rank_takers(self) -> list[Bid]:
        """List the jobs that change their type first, because others are to have what they leave."""
        takers = [
            bid
            for bid, gpus in self._sites.chosen.items()
            if bid.switches or gpus > bid.held or self._is_spread(bid)
        ]
        return sorted(
            takers,
            key=lambda bid: (
                not bid.switches,
                -self._sites.chosen[bid],
                -bid.price * bid.curve.hull[1],
                bid.state.order,
            ),
        )

    def _is_spread(self, bid: Bid) -> bool:
        """Return whether a job that keeps its number is on more nodes than necessary, and may leave them."""
        if bid.state.bound_to or not self._sites.stays_as_wide(bid):
            return False
        holding = self._sites.holdings[bid.state.id]
        return len(holding.nodes) > self._sites.count_fewest(bid, holding.gpus)

    def _shrink(self) -> None:
        for bid, gpus in self._sites.chosen.items():
            if gpus < bid.held and not bid.switches:
                holding = self._sites.holdings[bid.state.id]
                self._sites.change(bid, withdraw(holding.nodes, gpus), cause=find_cause(bid, gpus))

    def _place(self, bid: Bid, gpus: int) -> bool:
        """Give a job ``gpus`` GPUs, or the share that is worth most instead; return whether it got all."""
        nodes = self._seeker.find(bid, gpus)
        if nodes is not None and len(nodes) <= self._sites.count_fewest(bid, gpus):
            self._sites.carry_out(bid, Proposal(0.0, nodes))
            return True
        proposals = self._seeker.iter_proposals(bid, gpus, spread=nodes)
        best = max(proposals, key=lambda each: each.worth, default=None)
        if best is None or best.worth <= self._appraiser.worth_now(bid):
            self._leave(bid)
            return False
        self._sites.carry_out(bid, best)
        return sum(best.nodes.values()) == gpus

    def _leave(self, bid: Bid) -> None:
        """Let a job that found no place on another type stay on its own."""
        held = bid.state.placement
        if bid.switches and held is not None:
            bid.curve = bid.curve_on(held.gpu_type) or bid.curve

    def _put_together(self, bid: Bid) -> None:
        """Put a job that is spread over more nodes than necessary on fewer, where that pays."""
        better = self._seeker.clear(bid, bid.held)
        if better is not None and better.worth > self._appraiser.worth_now(bid) * (1.0 + TINY):
            self._sites.carry_out(bid, better)


def withdraw(nodes: Nodes, gpus: int) -> Nodes:
    """Keep ``gpus`` of these GPUs: on the fewest nodes, and there where the job has fewest."""
    whole = [(count, node) for node, count in nodes.items() if count >= gpus]
    if whole:
        return {min(whole)[1]: gpus}
    kept: dict[NodeName, int] = {}
    for node in sorted(nodes, key=lambda node: (-nodes[node], node)):
        kept[node] = min(nodes[node], gpus)
        gpus -= kept[node]
    return {node: count for node, count in kept.items() if count > 0}


def leave_only(view: View, jobs: Iterable[JobId]) -> View:
    """The view as if only these of the running jobs ran."""
    kept = set(jobs)
    running = tuple(state for state in view.running if state.id in kept)
    return replace(view, running=running)

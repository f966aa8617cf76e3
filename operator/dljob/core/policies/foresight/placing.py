"""
On which nodes the chosen shares go, and what becomes of shares that do not fit as they are.

Shares are chosen by counts alone. Here each is given nodes, the widest first. Jobs that keep their number but
are spread over more nodes than necessary take their turn among them: once narrower jobs have taken the GPUs
that are free, nothing is left to put them together with. Where the free GPUs are scattered, a job is given what
is worth most of these: all of its GPUs over several nodes; all of them on the fewest nodes, from which other jobs
move into gaps elsewhere; or fewer GPUs. The cost of a move for the jobs that make room counts. At last, GPUs
that are still free go to the jobs to which they are worth most there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dljob.core.contract import Share, View
from dljob.core.model import JobId, NodeName
from dljob.core.placement.counting import count_nodes, count_usable
from dljob.core.placement.free_gpus import grow
from dljob.core.policies.common.clearing import Clearing, Patience
from dljob.core.policies.foresight.bids import Bid
from dljob.core.policies.foresight.curves import Curve
from dljob.core.policies.foresight.sites import (
    KEEPS,
    Nodes,
    Proposal,
    Removal,
    Sites,
    find_cause,
)
from dljob_wire.messages import Shape

WAITING_LOOKED_AT = 64
"""The number of waiting jobs that are tried for GPUs that are left over."""

TINY = 1e-12
"""A gain below this part of the present worth comes from rounding."""


class _Use(NamedTuple):
    """A use of idle GPUs."""

    gain: float
    """For each of them."""
    bid: Bid
    curve: Curve
    nodes: Nodes


class Arranging:
    """Nodes for every share of one decision."""

    def __init__(self, view: View, chosen: Mapping[Bid, int], *, horizon: float) -> None:
        """``horizon`` says for how many seconds at most a change is expected to pay."""
        self._sites = Sites(view, chosen)
        self.room = self._sites.room
        self._predictor = view.predictor
        self._horizon = horizon
        self._patience = Patience()

    def arrange(self, others: Iterable[Bid]) -> dict[JobId, Share]:
        """Find nodes for everything; ``others`` are jobs that would take what is left, or keep it."""
        sites = self._sites
        for bid, gpus in sites.chosen.items():
            if gpus < bid.held and not bid.switches:
                nodes = withdraw(sites.holdings[bid.state.id].nodes, gpus)
                sites.change(bid, nodes, cause=find_cause(bid, gpus))
        is_complete = True
        for bid in self._rank_takers():
            if not sites.stays_as_wide(bid):
                is_complete = self._place(bid, sites.chosen[bid]) and is_complete
                continue
            # It is spread over more nodes than necessary: fewer may pay.
            better = self._clear(bid, bid.held)
            if better is not None and better.worth > self._worth_now(bid) * (1.0 + TINY):
                sites.carry_out(bid, better)
        if not is_complete or len(sites.view.cluster.types) > 1:
            self._give_out(others)
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

    def _place(self, bid: Bid, gpus: int) -> bool:
        """Give a job ``gpus`` GPUs, or the share that is worth most instead; return whether it got all."""
        nodes = self._find(bid, gpus)
        if nodes is not None and len(nodes) <= self._sites.count_fewest(bid, gpus):
            self._sites.carry_out(bid, Proposal(0.0, nodes))
            return True
        proposals = self._iter_proposals(bid, gpus, spread=nodes)
        best = max(proposals, key=lambda each: each.worth, default=None)
        if best is None or best.worth <= self._worth_now(bid):
            held = bid.state.placement
            if bid.switches and held is not None:
                # No place on another type: it stays on its own.
                bid.curve = bid.curve_on(held.gpu_type) or bid.curve
            return False
        self._sites.carry_out(bid, best)
        return sum(best.nodes.values()) == gpus

    # --- the worth of a second of a job, by which places are compared

    def _worth(self, bid: Bid, nodes: Nodes) -> float:
        """The worth of a second of this job on these nodes, the cost of the change included."""
        gpus = sum(nodes.values())
        kind = self._sites.view.cluster.by_name[next(iter(nodes))].gpu_type
        curve = bid.curve_on(kind) or bid.curve
        shape = Shape(gpus, len(nodes), curve.gpu_type)
        speed = 0.0
        if shape.nodes > self._predictor.shape(gpus, curve.gpu_type).nodes:
            speed = self._predictor.speed(bid.state.job, shape)
        if speed <= 0.0:
            speed = curve.speeds.get(gpus, 0.0)
        held = bid.state.placement
        if held is not None and count_nodes(held) == nodes:
            cost = 0.0
        elif held is None or nodes.keys().isdisjoint(held.nodes):
            cost = bid.restart_cost_of(gpus)
        else:
            cost = bid.cost_of(gpus)
        return bid.worth(speed, cost=cost, horizon=self._horizon)

    def _worth_now(self, bid: Bid) -> float:
        """Return the same on the nodes that were decided for it so far."""
        holding = self._sites.holdings.get(bid.state.id)
        return self._worth(bid, holding.nodes) if holding is not None else 0.0

    # --- places for a job; nothing is changed

    def _iter_proposals(self, bid: Bid, gpus: int, *, spread: Nodes | None) -> Iterator[Proposal]:
        """
        Yield places for all GPUs, and then for fewer.

        ``spread`` is the place that :meth:`_find` found for all, on more nodes than the fewest.
        """
        if spread is not None:
            yield Proposal(self._worth(bid, spread), spread)
        cleared = self._clear(bid, gpus)
        if cleared is not None:
            yield cleared
        for fewer, _ in bid.curve.options:
            # On another type it need not have as many to be better off than it is.
            if (0 if bid.switches else bid.held) < fewer < gpus:
                nodes = self._find(bid, fewer)
                if nodes is not None:
                    yield Proposal(self._worth(bid, nodes), nodes)

    def _find(self, bid: Bid, gpus: int) -> Nodes | None:
        """Return where the job could have these GPUs without a move of another job."""
        state, kind = bid.state, bid.curve.gpu_type
        holding = self._sites.holdings.get(state.id)
        if holding is not None and holding.gpu_type == kind:
            return grow(self.room, state, holding.nodes, kind, gpus)
        fit = self.room.find(state, gpus, kind)
        return fit.nodes if fit is not None else None

    def _clear(self, bid: Bid, gpus: int) -> Proposal | None:
        """Find the fewest nodes for all GPUs of this job, from which others move if they have to."""
        state, kind, sites = bid.state, bid.curve.gpu_type, self._sites
        holding = sites.holdings.get(state.id)
        own = holding.nodes if holding is not None and not bid.switches else {}
        lacks = gpus - sum(own.values())
        if state.bound_to or self.room.free.get(kind, 0) < max(1, lacks):
            return None
        if self._patience.is_over(kind, gpus):
            return None
        clearing = Clearing(self.room, sites.movable, kind=kind)
        nodes = clearing.find(state, gpus, have=own)
        moves = tuple(clearing.moves)
        clearing.undo()
        fewest = sites.count_fewest(bid, gpus)
        if nodes is None or len(nodes) > min(fewest, state.job.gpus.max_nodes or fewest):
            self._patience.note_vain(kind, gpus)
            return None
        removals = [Removal(sites.bids[m.state.id], {m.to: m.gpus}) for m in moves]
        losses = (self._worth_now(other) - self._worth(other, to) for other, to in removals)
        lost = sum(max(0.0, loss) for loss in losses)
        return Proposal(self._worth(bid, nodes) - lost, nodes, tuple(removals))

    # --- GPUs that are left when all shares have their places

    def _give_out(self, others: Iterable[Bid]) -> None:
        """Give the GPUs to jobs that have some, or to ``others``, which were chosen for none."""
        sites = self._sites
        ranked = sorted(others, key=lambda bid: (-bid.price * bid.curve.hull[1], bid.state.order))
        # GPUs that were taken for a job without a place go back first: that costs nothing.
        for bid in ranked:
            held = bid.state.placement
            if held is not None and self.room.has(count_usable(held, sites.view.cluster)):
                sites.change(bid, count_nodes(held), cause=KEEPS)
                sites.admit(bid)
        left = [bid for bid in ranked if not bid.held]
        del left[WAITING_LOOKED_AT:]
        while self.room.total > 0:
            # One at a time, because each use changes the gains of the others.
            best = max(self._iter_uses(left), key=lambda use: use.gain, default=None)
            if best is None:
                return
            best.bid.curve = best.curve
            sites.admit(best.bid)
            sites.carry_out(best.bid, Proposal(0.0, best.nodes))

    def _iter_uses(self, left: Sequence[Bid]) -> Iterator[_Use]:
        for bid in left:
            if bid.state.id not in self._sites.holdings and bid.state.least <= self.room.total:
                for curve in bid.curves:
                    yield from self._iter_starts(bid, curve)
        for node, free in tuple(self.room.nodes.items()):
            if free > 0:
                for bid in self._sites.on_node.get(node, {}).values():
                    yield from self._iter_growth(bid, node, free=free)

    def _iter_starts(self, bid: Bid, curve: Curve) -> Iterator[_Use]:
        for gpus, _ in curve.options:
            fit = self.room.find(bid.state, gpus, curve.gpu_type)
            if fit is None:
                return
            gain = self._worth(bid, fit.nodes) / gpus
            if gain > 0.0:
                yield _Use(gain, bid, curve, fit.nodes)

    def _iter_growth(self, bid: Bid, node: NodeName, *, free: int) -> Iterator[_Use]:
        holding, held = self._sites.holdings[bid.state.id], bid.state.placement
        has = holding.nodes[node]
        # Had a job that left a node to make room other GPUs instead, it could have left in vain.
        withdrew = held is not None and holding.gpus < bid.held and len(held.nodes) > 1
        if len(holding.nodes) > 1 or withdrew:
            return
        now = self._worth_now(bid)
        for gpus, _ in bid.curve.options:
            nodes = {node: gpus}
            if has < gpus <= has + free:
                gain = self._worth(bid, nodes) - now
                if gain > TINY * now:
                    yield _Use(gain / (gpus - has), bid, bid.curve, nodes)


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

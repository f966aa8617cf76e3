"""
On which nodes the chosen shares go, and what becomes of those that do not fit as they are.

Shares are chosen by counts alone. Here each is given nodes, the widest first. Where the free GPUs
are scattered, the job is given what is worth most of these: all of its GPUs over several nodes; all of
them on one node, from which other jobs move into gaps elsewhere; or fewer GPUs. What a move costs the
jobs that make room is counted. At last, GPUs that nothing was found for go to the jobs to which they
are worth most there, and jobs that are spread over more nodes than necessary are put together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dlcore.contract import Share, View
from dlcore.model import Cause, CauseCode, JobId, NodeName
from dlcore.placement.free_gpus import count_nodes, count_usable, grow
from dlcore.policies.common.holdings import Holding, Ledger
from dlcore.policies.foresight.bids import Bid
from dlcore.policies.foresight.curves import Curve
from dlwire.messages import Shape

Nodes = Mapping[NodeName, int]

NODES_LOOKED_AT = 4
"""From so many nodes, those with most GPUs free, it is tried to move other jobs away."""

WAITING_LOOKED_AT = 64
"""So many waiting jobs are tried for GPUs that are left over."""

KEEPS = Cause(CauseCode.ITS_TURN)
_MAKES_ROOM = Cause(CauseCode.MAKES_ROOM)
_FASTER_WITH_FEWER = Cause(CauseCode.FASTER_WITH_FEWER)
_FASTER_WITH_MORE = Cause(CauseCode.FASTER_WITH_MORE)
_PACKING = Cause(CauseCode.PACKING)
_FASTER_TYPE = Cause(CauseCode.FASTER_TYPE)

TINY = 1e-12
"""A gain below this part of what there is comes from rounding."""


class Removal(NamedTuple):
    """A job that moves to another node as it is."""

    bid: Bid
    nodes: Nodes


class Proposal(NamedTuple):
    """Where a job could be, and which jobs move away for it."""

    worth: float
    """A second of it, less what the removals cost."""
    nodes: Nodes
    removals: tuple[Removal, ...] = ()


class Arranging:
    """Nodes for every share of one decision."""

    def __init__(self, view: View, chosen: Mapping[Bid, int], *, horizon: float) -> None:
        self.view = view
        self.horizon = horizon
        self.chosen = chosen
        self.bids: dict[JobId, Bid] = {bid.state.id: bid for bid in chosen}
        self.ledger = Ledger(view)
        self.room = self.ledger.room
        self.on_node: dict[NodeName, dict[JobId, Bid]] = {}
        for job, holding in self.ledger.holdings.items():
            if job in self.bids:
                self._note_nodes(self.bids[job], (), holding.nodes)

    def arrange(self, others: Iterable[Bid]) -> dict[JobId, Share]:
        """Find nodes for everything; ``others`` are jobs that would take what is left, or keep it."""
        self._shrink()
        incomplete = [bid for bid in self._rank_takers() if not self._place(bid, self.chosen[bid])]
        self._put_together()
        if incomplete or len(self.view.cluster.types) > 1:
            self._give_out_rest(others)
        return {job: holding.share(KEEPS) for job, holding in self.ledger.holdings.items()}

    # --- the jobs as they are

    def measure_worths(self, stopped: Iterable[Bid]) -> dict[JobId, float]:
        """What a GPU that changes hands is worth to each job that gets or loses it."""
        worths: dict[JobId, float] = {}
        for bid in stopped:
            if bid.held and bid.state.id not in self.ledger.holdings:
                worths[bid.state.id] = bid.price * bid.curve.speeds.get(bid.held, 0.0) / bid.held
        for job, holding in self.ledger.holdings.items():
            other = self.bids.get(job)
            # On another type a GPU is another thing, and its worth says nothing beside others.
            if other is not None and not other.switches and holding.gpus != other.held:
                speeds = other.curve.speeds
                gain = speeds.get(holding.gpus, 0.0) - speeds.get(other.held, 0.0)
                worths[job] = max(0.0, other.price * gain / (holding.gpus - other.held))
        return worths

    def _rank_takers(self) -> list[Bid]:
        """Those that change their type first, because others are to have what they leave."""
        takers = [bid for bid, gpus in self.chosen.items() if bid.switches or gpus > bid.held]
        return sorted(
            takers,
            key=lambda bid: (
                not bid.switches,
                -self.chosen[bid],
                -bid.price * bid.curve.hull[1],
                bid.state.order,
            ),
        )

    def _shrink(self) -> None:
        for bid, gpus in self.chosen.items():
            if gpus < bid.held and not bid.switches:
                holding = self.ledger.holdings[bid.state.id]
                self._change(bid, _withdraw(holding.nodes, gpus), _find_cause(bid, gpus))

    def _change(self, bid: Bid, nodes: Nodes, cause: Cause) -> None:
        """Let a job have these GPUs, after all others that were given some before."""
        job = bid.state.id
        holding = self.ledger.holdings.pop(job, None)
        before = tuple(holding.nodes) if holding is not None else ()
        if holding is None and bid.state.placement is not None:
            self.ledger.restore(bid.state, bid.state.placement)
        elif holding is None:
            self.ledger.add(bid.state, nodes, cause)
        else:
            # The order of holdings is the order in which placing gives GPUs away.
            self.ledger.holdings[job] = holding
            self.ledger.change(holding, nodes, cause)
        self._note_nodes(bid, before, nodes)

    def _note_nodes(self, bid: Bid, before: Iterable[NodeName], after: Iterable[NodeName]) -> None:
        for node in before:
            self.on_node[node].pop(bid.state.id, None)
        for node in after:
            self.on_node.setdefault(node, {})[bid.state.id] = bid

    def _carry_out(self, bid: Bid, proposal: Proposal) -> None:
        for removal in proposal.removals:
            self._change(removal.bid, removal.nodes, _PACKING)
        self._change(bid, proposal.nodes, _find_cause(bid, sum(proposal.nodes.values())))

    # --- what it would be worth

    def _worth(self, bid: Bid, nodes: Nodes) -> float:
        """What a second of this job is worth on these nodes, the cost of the change counted."""
        gpus = sum(nodes.values())
        curve = bid.curve_on(self._find_type(nodes)) or bid.curve
        speed = self._speed(bid, Shape(gpus, len(nodes), curve.gpu_type), curve)
        held = bid.state.placement
        if held is not None and count_nodes(held) == nodes:
            return bid.worth(speed, cost=0.0, horizon=self.horizon)
        return bid.worth(speed, cost=bid.cost_of(gpus), horizon=self.horizon)

    def _find_type(self, nodes: Nodes) -> str:
        return self.view.cluster.by_name[next(iter(nodes))].gpu_type

    def _speed(self, bid: Bid, shape: Shape, curve: Curve) -> float:
        if shape.nodes <= self.view.predictor.shape(shape.gpus, shape.gpu_type).nodes:
            return curve.speeds.get(shape.gpus, 0.0)
        known = self.view.predictor.speed(bid.state.job, shape)
        return known if known > 0.0 else curve.speeds.get(shape.gpus, 0.0)

    def _worth_now(self, bid: Bid) -> float:
        holding = self.ledger.holdings.get(bid.state.id)
        return self._worth(bid, holding.nodes) if holding is not None else 0.0

    # --- placing one job

    def _place(self, bid: Bid, gpus: int) -> bool:
        """Give a job so many GPUs, or what is worth most instead; tell whether it got all."""
        nodes = self._find(bid, gpus)
        fewest = self.view.predictor.shape(gpus, bid.curve.gpu_type).nodes
        if nodes is not None and len(nodes) <= fewest:
            self._carry_out(bid, Proposal(0.0, nodes))
            return True
        best = max(
            self._iter_proposals(bid, gpus, nodes), key=lambda each: each.worth, default=None
        )
        if best is None or best.worth <= self._worth_now(bid):
            self._leave(bid)
            return False
        self._carry_out(bid, best)
        return sum(best.nodes.values()) == gpus

    def _leave(self, bid: Bid) -> None:
        """Let a job that found no place on another type stay on its own."""
        held = bid.state.placement
        if bid.switches and held is not None:
            bid.curve = bid.curve_on(held.gpu_type) or bid.curve

    def _iter_proposals(self, bid: Bid, gpus: int, spread: Nodes | None) -> Iterator[Proposal]:
        if spread is not None:
            yield Proposal(self._worth(bid, spread), spread)
        gap = self._make_gap(bid, gpus)
        if gap is not None:
            yield gap
        for fewer, _ in bid.curve.options:
            # On another type it need not have as many to be better off than it is.
            if (0 if bid.switches else bid.held) < fewer < gpus:
                nodes = self._find(bid, fewer)
                if nodes is not None:
                    yield Proposal(self._worth(bid, nodes), nodes)

    def _find(self, bid: Bid, gpus: int) -> Nodes | None:
        """Where the job could have so many GPUs without anybody moving."""
        state, kind = bid.state, bid.curve.gpu_type
        holding = self.ledger.holdings.get(state.id)
        if holding is not None and holding.gpu_type == kind:
            return grow(self.room, state, holding.nodes, kind, gpus)
        fit = self.room.find(state, gpus, kind)
        return fit.nodes if fit is not None else None

    # --- making room by moving others

    def _make_gap(self, bid: Bid, gpus: int) -> Proposal | None:
        """Find the node on which others make room for all GPUs of this job at the least cost."""
        kind, cluster = bid.curve.gpu_type, self.view.cluster
        if gpus > cluster.largest_node[kind] or bid.state.bound_to:
            return None
        proposals = (self._empty(bid, node, gpus) for node in self._iter_nearly_free(bid, gpus))
        return max(
            (each for each in proposals if each is not None),
            key=lambda each: each.worth,
            default=None,
        )

    def _iter_nearly_free(self, bid: Bid, gpus: int) -> Iterator[NodeName]:
        holding = self.ledger.holdings.get(bid.state.id)
        own = holding.nodes if holding is not None and not bid.switches else {}
        yield from own
        gaps = self.room.iter_gaps(bid.state, (bid.curve.gpu_type,), range(gpus - 1, 0, -1))
        others = (node for node, _ in gaps if node not in own)
        for node, _ in zip(others, range(NODES_LOOKED_AT), strict=False):
            yield node

    def _empty(self, bid: Bid, node: NodeName, gpus: int) -> Proposal | None:
        """Move jobs from this node, those first to which a move costs least for each GPU."""
        size = len(self.view.cluster.usable[node])
        holding = self.ledger.holdings.get(bid.state.id)
        own = holding.nodes.get(node, 0) if holding is not None else 0
        missing = gpus - own - self.room.nodes[node]
        if gpus > size:
            return None
        removals: list[Removal] = []
        given: dict[NodeName, int] = {}
        lost = 0.0
        for cost, other, count in self._rank_movable(bid, node):
            if missing <= 0:
                break
            # What it would leave behind broken is of no use to this job.
            moved = self.ledger.holdings[other.state.id]
            frees = self.ledger.count_good(moved, {node: count})[node]
            gap = self._find_gap(other, count, node, given) if frees else None
            if gap is None:
                continue
            given[gap] = given.get(gap, 0) + count
            removals.append(Removal(other, {gap: count}))
            lost += cost
            missing -= frees
        if missing > 0:
            return None
        return Proposal(self._worth(bid, {node: gpus}) - lost, {node: gpus}, tuple(removals))

    def _rank_movable(self, bid: Bid, node: NodeName) -> list[tuple[float, Bid, int]]:
        """The jobs that could leave this node, with what that costs a second and their GPUs."""
        movable: list[tuple[float, int, float, Bid, int]] = []
        for other in self.on_node.get(node, {}).values():
            nodes = self.ledger.holdings[other.state.id].nodes
            gpus = nodes[node]
            # A job that shrinks does so where it is, because only there others get what it leaves.
            if other is bid or len(nodes) > 1 or other.state.bound_to or gpus < other.held:
                continue
            if other.curve.gpu_type != self._find_type(nodes):
                continue  # It waits itself for a place on another type.
            stays = self._worth(other, nodes)
            speed = other.curve.speeds.get(gpus, 0.0)
            goes = other.worth(speed, cost=other.cost_of(gpus), horizon=self.horizon)
            cost = max(0.0, stays - goes)
            movable.append((cost / gpus, other.state.order, cost, other, gpus))
        movable.sort(key=lambda entry: entry[:2])
        return [entry[2:] for entry in movable]

    def _find_gap(
        self, bid: Bid, gpus: int, leaves: NodeName, given: Mapping[NodeName, int]
    ) -> NodeName | None:
        """The smallest gap elsewhere that takes a job which makes room."""
        kind = bid.curve.gpu_type
        sizes = range(gpus, self.view.cluster.largest_node[kind] + 1)
        for node, free in self.room.iter_gaps(bid.state, (kind,), sizes, {leaves: 0}):
            if free - given.get(node, 0) >= gpus:
                return node
        return None

    # --- when all have their places

    def _put_together(self) -> None:
        """Put jobs that are spread over more nodes than necessary on one, where that pays."""
        for job, holding in tuple(self.ledger.holdings.items()):
            bid = self.bids.get(job)
            if (
                bid is None
                or len(holding.nodes) == 1
                or not self._may_be_put_together(bid, holding)
            ):
                continue
            node = self.room.find_node(bid.state, bid.curve.gpu_type, holding.gpus)
            better = (
                Proposal(self._worth(bid, {node: holding.gpus}), {node: holding.gpus})
                if node is not None
                else self._make_gap(bid, holding.gpus)
            )
            if better is not None and better.worth > self._worth_now(bid) * (1.0 + TINY):
                self._carry_out(bid, better)

    def _may_be_put_together(self, bid: Bid, holding: Holding) -> bool:
        fewest = self.view.predictor.shape(holding.gpus, bid.curve.gpu_type).nodes
        is_spread = len(holding.nodes) > fewest == 1
        return is_spread and not bid.state.bound_to and holding.gpus >= bid.held

    def _give_out_rest(self, others: Iterable[Bid]) -> None:
        """Give GPUs that are left to the jobs to which they are worth most, one job at a time."""
        ranked = sorted(others, key=lambda bid: (-bid.price * bid.curve.hull[1], bid.state.order))
        # What was taken for a job that found no place is given back first: that costs nothing.
        for bid in ranked:
            held = bid.state.placement
            if held is not None and self.room.has(count_usable(held, self.view.cluster)):
                self._change(bid, count_nodes(held), KEEPS)
                self.bids[bid.state.id] = bid
        left = [bid for bid in ranked if not bid.held]
        del left[WAITING_LOOKED_AT:]
        while self.room.total > 0:
            best = max(self._iter_rest(left), key=lambda each: each[0], default=None)
            if best is None:
                return
            _, bid, curve, nodes = best
            bid.curve = curve
            self.bids[bid.state.id] = bid
            self._carry_out(bid, Proposal(0.0, nodes))

    def _iter_rest(self, left: Sequence[Bid]) -> Iterator[tuple[float, Bid, Curve, Nodes]]:
        """What could be done with idle GPUs, with the gain for each of them."""
        for bid in left:
            if bid.state.id not in self.ledger.holdings and bid.state.least <= self.room.total:
                for curve in bid.curves:
                    yield from self._iter_starts(bid, curve)
        for node, free in tuple(self.room.nodes.items()):
            if free > 0:
                for bid in self.on_node.get(node, {}).values():
                    yield from self._iter_growth(bid, node, free)

    def _iter_starts(self, bid: Bid, curve: Curve) -> Iterator[tuple[float, Bid, Curve, Nodes]]:
        for gpus, _ in curve.options:
            fit = self.room.find(bid.state, gpus, curve.gpu_type)
            if fit is None:
                return
            gain = self._worth(bid, fit.nodes) / gpus
            if gain > 0.0:
                yield gain, bid, curve, fit.nodes

    def _iter_growth(
        self, bid: Bid, node: NodeName, free: int
    ) -> Iterator[tuple[float, Bid, Curve, Nodes]]:
        holding = self.ledger.holdings[bid.state.id]
        has = holding.nodes[node]
        if len(holding.nodes) > 1 or _withdrew(bid, holding):
            return
        now = self._worth_now(bid)
        for gpus, _ in bid.curve.options:
            nodes = {node: gpus}
            if has < gpus <= has + free:
                gain = self._worth(bid, nodes) - now
                if gain > TINY * now:
                    yield gain / (gpus - has), bid, bid.curve, nodes


def _find_cause(bid: Bid, gpus: int) -> Cause:
    """Why a job is to have so many GPUs."""
    if not bid.held:
        return KEEPS
    if gpus >= bid.held:
        if gpus == bid.held:
            return _FASTER_TYPE if bid.switches else _PACKING
        return _FASTER_WITH_MORE
    if bid.switches:
        return _FASTER_WITH_FEWER
    speeds = bid.curve.speeds
    is_faster = speeds.get(gpus, 0.0) >= speeds.get(bid.held, 0.0) > 0.0
    return _FASTER_WITH_FEWER if is_faster else _MAKES_ROOM


def _withdrew(bid: Bid, holding: Holding) -> bool:
    """
    Whether the job left a node to make room.

    Had it other GPUs instead, and that room were of use to no job, it would have left in vain.
    """
    held = bid.state.placement
    return held is not None and holding.gpus < bid.held and len(held.nodes) > 1


def _withdraw(nodes: Nodes, gpus: int) -> Nodes:
    """Keep so many of these GPUs: on the fewest nodes, and there where the job has fewest."""
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

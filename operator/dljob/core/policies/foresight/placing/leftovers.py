"""GPUs that are left when all shares have their places go to the jobs to which they are worth most."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dljob.core.model import NodeName
from dljob.core.placement.counting import count_nodes, count_usable
from dljob.core.policies.common.holdings import Holding
from dljob.core.policies.foresight.bids import Bid
from dljob.core.policies.foresight.curves import Curve
from dljob.core.policies.foresight.placing.appraising import Appraiser
from dljob.core.policies.foresight.placing.sites import KEEPS, Nodes, Proposal, Sites

WAITING_LOOKED_AT = 64
"""The number of waiting jobs that are tried for GPUs that are left over."""

TINY = 1e-12
"""A gain below this part of what there is comes from rounding."""


class _Use(NamedTuple):
    """A use of idle GPUs."""

    gain: float
    """For each of them."""
    bid: Bid
    curve: Curve
    nodes: Nodes


class Leftovers:
    """Hands out what is left, one job at a time."""

    def __init__(self, sites: Sites, appraiser: Appraiser) -> None:
        self._sites = sites
        self._room = sites.room
        self._worth = appraiser.worth
        self._worth_now = appraiser.worth_now

    def give_out(self, others: Iterable[Bid]) -> None:
        """Give the GPUs to jobs that have some, or to ``others``, which were chosen for none."""
        ranked = sorted(others, key=lambda bid: (-bid.price * bid.curve.hull[1], bid.state.order))
        # GPUs that were taken for a job without a place go back first: that costs nothing.
        for bid in ranked:
            held = bid.state.placement
            if held is not None and self._room.has(count_usable(held, self._sites.view.cluster)):
                self._sites.change(bid, count_nodes(held), cause=KEEPS)
                self._sites.admit(bid)
        left = [bid for bid in ranked if not bid.held]
        del left[WAITING_LOOKED_AT:]
        while self._room.total > 0:
            # One at a time, because each use changes the gains of the others.
            best = max(self._iter_uses(left), key=lambda use: use.gain, default=None)
            if best is None:
                return
            best.bid.curve = best.curve
            self._sites.admit(best.bid)
            self._sites.carry_out(best.bid, Proposal(0.0, best.nodes))

    def _iter_uses(self, left: Sequence[Bid]) -> Iterator[_Use]:
        for bid in left:
            if bid.state.id not in self._sites.holdings and bid.state.least <= self._room.total:
                for curve in bid.curves:
                    yield from self._iter_starts(bid, curve)
        for node, free in tuple(self._room.nodes.items()):
            if free > 0:
                for bid in self._sites.on_node.get(node, {}).values():
                    yield from self._iter_growth(bid, node, free=free)

    def _iter_starts(self, bid: Bid, curve: Curve) -> Iterator[_Use]:
        for gpus, _ in curve.options:
            fit = self._room.find(bid.state, gpus, curve.gpu_type)
            if fit is None:
                return
            gain = self._worth(bid, fit.nodes) / gpus
            if gain > 0.0:
                yield _Use(gain, bid, curve, fit.nodes)

    def _iter_growth(self, bid: Bid, node: NodeName, *, free: int) -> Iterator[_Use]:
        holding = self._sites.holdings[bid.state.id]
        has = holding.nodes[node]
        if len(holding.nodes) > 1 or _withdrew(bid, holding):
            return
        now = self._worth_now(bid)
        for gpus, _ in bid.curve.options:
            nodes = {node: gpus}
            if has < gpus <= has + free:
                gain = self._worth(bid, nodes) - now
                if gain > TINY * now:
                    yield _Use(gain / (gpus - has), bid, bid.curve, nodes)


def _withdrew(bid: Bid, holding: Holding) -> bool:
    """
    Return whether the job left a node to make room.

    Had it other GPUs instead, and that room were of use to no job, it would have left in vain.
    """
    held = bid.state.placement
    return held is not None and holding.gpus < bid.held and len(held.nodes) > 1

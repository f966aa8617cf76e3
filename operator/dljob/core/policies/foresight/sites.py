"""
Where each job is to be while shares are given nodes, and which jobs could make room.

:class:`Sites` is the book of one decision; :mod:`.placing` reads and writes it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dljob.core.contract import Share, View
from dljob.core.model import Cause, CauseCode, JobId, JobState, NodeName
from dljob.core.policies.common.holdings import Holding, Ledger
from dljob.core.policies.foresight.bids import Bid

Nodes = Mapping[NodeName, int]

KEEPS = Cause(CauseCode.ITS_TURN)
_MAKES_ROOM = Cause(CauseCode.MAKES_ROOM)
_FASTER_WITH_FEWER = Cause(CauseCode.FASTER_WITH_FEWER)
_FASTER_WITH_MORE = Cause(CauseCode.FASTER_WITH_MORE)
_PACKING = Cause(CauseCode.PACKING)
_FASTER_TYPE = Cause(CauseCode.FASTER_TYPE)


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


class Sites:
    """The nodes of each job, as far as it was decided."""

    def __init__(self, view: View, chosen: Mapping[Bid, int]) -> None:
        self.view = view
        self.chosen = chosen
        self.bids: dict[JobId, Bid] = {bid.state.id: bid for bid in chosen}
        self._ledger = Ledger(view)
        self.holdings: Mapping[JobId, Holding] = self._ledger.holdings
        self.room = self._ledger.room
        self.on_node: dict[NodeName, dict[JobId, Bid]] = {}
        self.movable: dict[NodeName, dict[JobId, JobState]] = {}
        """Jobs on one node that could make room: they keep their number, and nothing was decided of them yet."""
        for job, holding in self.holdings.items():
            if job in self.bids:
                self._note_nodes(self.bids[job], (), after=holding.nodes)
                self._note_movable(self.bids[job], holding)

    def shares(self) -> dict[JobId, Share]:
        """The shares of all jobs that have GPUs, in the order in which these are given."""
        return {job: holding.share(KEEPS) for job, holding in self.holdings.items()}

    def stays_as_wide(self, bid: Bid) -> bool:
        """Return whether a job keeps its number of GPUs, and their type."""
        return self.chosen[bid] == bid.held and not bid.switches

    def count_fewest(self, bid: Bid, gpus: int) -> int:
        """The fewest nodes on which the job could have ``gpus`` GPUs."""
        return self.view.predictor.shape(gpus, bid.curve.gpu_type).nodes

    def admit(self, bid: Bid) -> None:
        """Know a job for which no GPUs were chosen."""
        self.bids[bid.state.id] = bid

    def change(self, bid: Bid, nodes: Nodes, *, cause: Cause) -> None:
        """Let a job have these GPUs, after all others that were given some before."""
        job, ledger = bid.state.id, self._ledger
        holding = ledger.holdings.pop(job, None)
        before = tuple(holding.nodes) if holding is not None else ()
        if holding is None and bid.state.placement is not None:
            ledger.restore(bid.state, bid.state.placement)
        elif holding is None:
            ledger.add(bid.state, nodes, cause=cause)
        else:
            # The order of holdings is the order in which placing gives GPUs away.
            ledger.holdings[job] = holding
            ledger.change(holding, nodes, cause=cause)
        self._note_nodes(bid, before, after=nodes)
        for node in before:
            self.movable.get(node, {}).pop(job, None)

    def carry_out(self, bid: Bid, proposal: Proposal) -> None:
        """Let jobs move away, and then the job have what was proposed for it."""
        for removal in proposal.removals:
            self.change(removal.bid, removal.nodes, cause=_PACKING)
        self.change(bid, proposal.nodes, cause=find_cause(bid, sum(proposal.nodes.values())))

    def _note_movable(self, bid: Bid, holding: Holding) -> None:
        state = bid.state
        if not self.stays_as_wide(bid) or len(holding.nodes) > 1 or state.bound_to:
            return
        # Broken GPUs that it would leave are of no use to others, and a job that is being changed is left alone.
        good = self._ledger.count_good(holding, holding.nodes)
        if good == holding.nodes and not state.adjusting:
            (node,) = holding.nodes
            self.movable.setdefault(node, {})[state.id] = state

    def _note_nodes(
        self, bid: Bid, before: Iterable[NodeName], *, after: Iterable[NodeName]
    ) -> None:
        for node in before:
            self.on_node[node].pop(bid.state.id, None)
        for node in after:
            self.on_node.setdefault(node, {})[bid.state.id] = bid


def find_cause(bid: Bid, gpus: int) -> Cause:
    """Why a job is to have ``gpus`` GPUs."""
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

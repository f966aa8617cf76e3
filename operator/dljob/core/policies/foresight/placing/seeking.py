"""
Places for a job: next to the others, where others make room, and with fewer GPUs than were chosen.

:mod:`.arranging` compares the proposals and takes the best one.
"""

from collections.abc import Iterator

from dljob.core.placement.free_gpus import grow
from dljob.core.policies.common.clearing import Clearing, Patience
from dljob.core.policies.foresight.bids import Bid
from dljob.core.policies.foresight.placing.appraising import Appraiser
from dljob.core.policies.foresight.placing.sites import Nodes, Proposal, Removal, Sites


class Seeker:
    """Looks for places, and changes nothing."""

    def __init__(self, sites: Sites, appraiser: Appraiser) -> None:
        self._sites = sites
        self._appraiser = appraiser
        self._patience = Patience()

    def iter_proposals(self, bid: Bid, gpus: int, *, spread: Nodes | None) -> Iterator[Proposal]:
        """
        Yield places for all GPUs, and then for fewer.

        ``spread`` is the place that :meth:`find` found for all, on more nodes than the fewest.
        """
        worth = self._appraiser.worth
        if spread is not None:
            yield Proposal(worth(bid, spread), spread)
        cleared = self.clear(bid, gpus)
        if cleared is not None:
            yield cleared
        for fewer, _ in bid.curve.options:
            # On another type it need not have as many to be better off than it is.
            if (0 if bid.switches else bid.held) < fewer < gpus:
                nodes = self.find(bid, fewer)
                if nodes is not None:
                    yield Proposal(worth(bid, nodes), nodes)

    def find(self, bid: Bid, gpus: int) -> Nodes | None:
        """Return where the job could have these GPUs without a move of another job."""
        state, kind, room = bid.state, bid.curve.gpu_type, self._sites.room
        holding = self._sites.holdings.get(state.id)
        if holding is not None and holding.gpu_type == kind:
            return grow(room, state, holding.nodes, kind, gpus)
        fit = room.find(state, gpus, kind)
        return fit.nodes if fit is not None else None

    def clear(self, bid: Bid, gpus: int) -> Proposal | None:
        """Find the fewest nodes for all GPUs of this job, from which others move if they have to."""
        state, kind, sites = bid.state, bid.curve.gpu_type, self._sites
        holding = sites.holdings.get(state.id)
        own = holding.nodes if holding is not None and not bid.switches else {}
        lacks = gpus - sum(own.values())
        if state.bound_to or sites.room.free.get(kind, 0) < max(1, lacks):
            return None
        if self._patience.is_over(kind, gpus):
            return None
        clearing = Clearing(sites.room, sites.movable, kind=kind)
        nodes = clearing.find(state, gpus, have=own)
        moves = tuple(clearing.moves)
        clearing.undo()
        fewest = sites.count_fewest(bid, gpus)
        if nodes is None or len(nodes) > min(fewest, state.job.gpus.max_nodes or fewest):
            self._patience.note_vain(kind, gpus)
            return None
        removals = [Removal(sites.bids[m.state.id], {m.to: m.gpus}) for m in moves]
        lost = sum(map(self._appraiser.count_loss, removals))
        return Proposal(self._appraiser.worth(bid, nodes) - lost, nodes, tuple(removals))

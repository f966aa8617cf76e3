"""
Where the GPUs of a target are: on the nodes of its job, in a gap, or where smaller jobs make room.

:mod:`dljob_lab.policies.elastic.afs.places` asks a :class:`Seeker` for one target after the other.
"""

from dljob.core.model import JobId, JobState, NodeName
from dljob.core.placement.free_gpus import grow
from dljob.core.policies.common.clearing import Clearing, Patience
from dljob_lab.policies.elastic.afs.sharing import Target
from dljob_lab.policies.elastic.afs.sites import Nodes, Sites


class Seeker:
    """Looks for places in the room that the book of sites leaves."""

    def __init__(self, sites: Sites, *, packing: bool) -> None:
        """``packing`` says whether a job has to be on the fewest nodes."""
        self._sites = sites
        self._room = sites.room
        self._predictor = sites.view.predictor
        self._packing = packing
        self._movable: dict[NodeName, dict[JobId, JobState]] = {}
        """Jobs on one node whose number stays the same."""
        self._patience = Patience()

    def note_staying(self, state: JobState) -> None:
        """Note a job that keeps its number: it may move to make room, if nothing binds it."""
        nodes = self._sites.nodes_of(state.id)
        if nodes is not None and self._may_move(state, nodes):
            self._movable.setdefault(next(iter(nodes)), {})[state.id] = state

    def _may_move(self, state: JobState, nodes: Nodes) -> bool:
        good = self._sites.count_good(state, nodes) == nodes
        return good and len(nodes) == 1 and not state.bound_to and not state.adjusting

    def find(self, target: Target) -> Nodes | None:
        """A place on the fewest nodes, or where packing does not matter, on any."""
        state, gpus, kind = target.state, target.gpus, target.gpu_type
        room = self._room
        if "+" in kind:
            # It was counted as a mixture because others come first on each type alone.
            fit = room.find(state, gpus)
            return fit.nodes if fit is not None and "+" in fit.gpu_type else None
        fewest = self._predictor.shape(gpus, kind).nodes if self._packing else None
        have = self._sites.nodes_of(state.id)
        if fewest == 1 and not state.bound_to:
            # The usual case, because most jobs are smaller than a machine.
            home, has = next(iter(have.items())) if have and len(have) == 1 else (None, 0)
            if home is None or room.nodes[home] < gpus - has:
                home = room.find_node(state, kind, gpus)
            return {home: gpus} if home is not None else None
        if have:
            nodes = grow(room, state, have, kind, gpus)
            if nodes is not None and (fewest is None or len(nodes) <= fewest):
                return nodes
            if state.bound_to:
                return None
        fit = room.find(state, gpus, kind) if room.free.get(kind, 0) >= gpus else None
        return fit.nodes if fit is not None and (not fewest or len(fit.nodes) <= fewest) else None

    def make_room(self, target: Target) -> Nodes | None:
        """Let smaller jobs move so that this one has a place on the fewest nodes, or nothing."""
        state, kind = target.state, target.gpu_type
        have = self._sites.nodes_of(state.id) or {}
        if state.bound_to or self._room.free.get(kind, 0) < target.gpus - sum(have.values()):
            return None
        if self._patience.is_over(kind, target.gpus):
            return None
        clearing = Clearing(self._room, self._movable, kind=kind)
        nodes = clearing.find(state, target.gpus, have=have)
        fewest = self._predictor.shape(target.gpus, kind).nodes
        most = min(fewest, state.job.gpus.max_nodes or fewest)
        if nodes is None or len(nodes) > most:
            clearing.undo()
            self._patience.note_vain(kind, target.gpus)
            return None
        # The room counts these moves already, so only the book has to follow.
        for move in clearing.moves:
            del self._movable[move.source][move.state.id]
            self._sites.move(move, kind)
        return nodes

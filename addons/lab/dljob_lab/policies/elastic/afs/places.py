"""
Where the jobs of an elastic policy are to be, once it is known how many GPUs each shall have.

Called by the policies that divide with :mod:`dljob_lab.policies.elastic.afs.sharing`. It promises only
what there is room for. CoDDL (AFS, section 4.4 and appendix E) wants every job on the fewest machines,
and migrates "as the final resort when it is unavoidable":

1. Jobs that keep their number or shrink stay where they are, on the nodes where they have most.
2. The others are placed by falling size, as in the proof of Proposition 1: on their own nodes, or
   else in the smallest gap that takes them whole.
3. For a job that finds none, small ones make room by moving into gaps, as few as possible; a job
   that moves for a larger one may in turn move smaller ones. Only jobs whose number stays the same
   move: each move is a step of the plan that goes to GPUs that are free by then.
4. A job for which that fails gets its next smaller number, and what it leaves goes to others.

Where the text leaves room: CoDDL maximises the number of jobs that keep a GPU over all placements.
Here the jobs of one node are chosen to move, out of the emptiest few nodes, which is not always the
optimum; and two jobs are never exchanged, since a plan has no step in which both wait for the other.
"""

import heapq
from collections.abc import Iterable

from dljob.core.contract import Decision
from dljob.core.model import Cause, JobId, JobState, NodeName
from dljob.core.placement.counting import count_nodes
from dljob.core.placement.free_gpus import grow
from dljob.core.policies.common.clearing import Clearing, Patience
from dljob.core.policies.common.ordering import NO_ROOM, Line
from dljob_lab.policies.common.sharing import withdraw
from dljob_lab.policies.elastic.afs.sharing import Sharing, Target
from dljob_lab.policies.elastic.afs.sites import Nodes, Sites


def settle(sharing: Sharing, line: Line, *, wait: Cause = NO_ROOM) -> Decision:
    """Decide where each job is; ``line`` has those that may come in if a target finds no place."""
    sites = Sites(sharing.view)
    placing = _Placing(sites, packing=sharing.packing)
    if placing.place(sharing.targets()):
        placing.use_rest(sharing, line)
    return Decision(sites.shares(), wait=wait)


class _Placing:
    """Places targets one after the other."""

    def __init__(self, sites: Sites, *, packing: bool) -> None:
        self.sites = sites
        self.room = sites.room
        self.packing = packing
        self.seeker = _Seeker(sites, packing=packing)

    def place(self, targets: Iterable[Target]) -> bool:
        """Give each target a place; return whether some were given less than their target."""
        heap: list[tuple[int, bool, int, Target]] = []
        for target in targets:
            held = target.state.placement
            if held is not None:
                self.sites.hold(target)
                if target.gpus == held.gpus:
                    self.seeker.note_staying(target.state)
            if held is None or target.gpus > held.gpus:
                heap.append((-target.gpus, held is None, target.state.order, target))
        heapq.heapify(heap)
        has_failed = False
        while heap:
            _, is_new, order, target = heapq.heappop(heap)
            if self._put(target, may_move=self.packing):
                continue
            has_failed = True
            less = _lower(target)
            if less is not None:
                heapq.heappush(heap, (-less.gpus, is_new, order, less))
        return has_failed

    def use_rest(self, sharing: Sharing, line: Line) -> None:
        """
        Give away what targets without a place leave.

        First in order to those that were to have nothing, the running ones among them, so that none
        is stopped in vain; then to all that are faster with it.
        """
        targets = {target.state.id: target for target in sharing.targets()}
        for state in line(self.sites):
            if self.sites.nodes_of(state.id) is None and self.room.total > 0:
                kind = self._let_in(state)
                if kind is not None:
                    targets[state.id] = sharing.make_target(state, kind)
        for target in sorted(targets.values(), key=lambda target: target.state.order):
            has = sum((self.sites.nodes_of(target.state.id) or {}).values())
            while has and self.room.total > 0:
                higher = target.curve.option_above(has)
                if higher is None or not self._raise(target._replace(gpus=higher)):
                    break
                has = higher

    def _let_in(self, state: JobState) -> str | None:
        """Start a job with its least, or let it go on with that where it is; return the type."""
        held = state.placement
        if held is None:
            fit = self.room.find(state, state.least)
            if fit is not None:
                self.sites.give(state, fit.nodes, kind=fit.gpu_type)
            return fit.gpu_type if fit is not None else None
        gpus = state.least if "+" not in held.gpu_type else held.gpus
        nodes = withdraw(held, gpus)
        if held.gpus < gpus or not self.room.has(self.sites.count_good(state, nodes)):
            return None
        self.sites.give(state, nodes, kind=held.gpu_type)
        return held.gpu_type

    def _raise(self, target: Target) -> bool:
        """Give a job more than it was to have; one that shrinks keeps some more of its own."""
        held = target.state.placement
        if held is None or self.sites.nodes_of(target.state.id) == count_nodes(held):
            return self._put(target, may_move=False)
        nodes, own = self.seeker.find(target), count_nodes(held)
        if nodes is None or any(count > own.get(node, 0) for node, count in nodes.items()):
            return False
        self.sites.give(target.state, nodes, kind=target.gpu_type)
        return True

    def _put(self, target: Target, *, may_move: bool) -> bool:
        state, kind = target.state, target.gpu_type
        nodes = self.seeker.find(target)
        if nodes is None and may_move and "+" not in kind:
            nodes = self.seeker.make_room(target)
        is_least = state.placement is None and target.gpus == target.curve.options[0]
        if nodes is None and is_least and "+" not in kind:
            # Better on many nodes than not at all.
            fit = self.room.find(state, target.gpus, kind)
            nodes = fit.nodes if fit is not None else None
        if nodes is None:
            return False
        self.sites.give(state, nodes, kind=kind)
        return True


def _lower(target: Target) -> Target | None:
    """Return the same for the next smaller number that is more than the job has, if there is one."""
    held = target.state.placement
    has = held.gpus if held is not None else 0
    smaller = [n for n in target.curve.options if has < n < target.gpus]
    return target._replace(gpus=smaller[-1]) if smaller else None


class _Seeker:
    """Looks for the GPUs of a target: on the nodes of its job, in a gap, or where smaller jobs make room."""

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
        if nodes is None or len(nodes) != 1 or state.bound_to or state.adjusting:
            return
        if self._sites.count_good(state, nodes) == nodes:
            self._movable.setdefault(next(iter(nodes)), {})[state.id] = state

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

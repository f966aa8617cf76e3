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
from dljob.core.model import Cause, JobState
from dljob.core.placement.counting import count_nodes
from dljob.core.policies.common.ordering import NO_ROOM, Line
from dljob_lab.policies.elastic.afs.seeking import Seeker
from dljob_lab.policies.elastic.afs.sharing import Sharing, Target
from dljob_lab.policies.elastic.afs.sites import Sites, keep_largest


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
        self.seeker = Seeker(sites, packing=packing)

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
        nodes = keep_largest(held, gpus)
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

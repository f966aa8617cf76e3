"""
Where the jobs of an elastic policy are to be, once it is known how many GPUs each shall have.

Called by the policies that divide with :mod:`dlcore.policies.elastic.sharing`. It promises only
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
from collections.abc import Iterable, Mapping

from dlcore.contract import Decision, Share, View
from dlcore.model import Cause, CauseCode, JobId, JobState, NodeName, Placement
from dlcore.placement.free_gpus import (
    Room,
    count_nodes,
    count_usable,
    grow,
)
from dlcore.policies.common.ordering import NO_ROOM, Line, keep
from dlcore.policies.elastic.clearing import Clearing
from dlcore.policies.elastic.sharing import Sharing, Target

PATIENCE = 3
"""So often others are asked to make room for jobs of one size; then room has become too scarce."""

_STARTS = Cause(CauseCode.ITS_TURN)
_GROWS = Cause(CauseCode.FASTER_WITH_MORE)
_SHRINKS = Cause(CauseCode.FAIR_SHARE)
_FASTER_WITH_FEWER = Cause(CauseCode.FASTER_WITH_FEWER)
_MOVES = Cause(CauseCode.PACKING)

Nodes = Mapping[NodeName, int]


def settle(
    sharing: Sharing,
    line: Line,
    *,
    wait: Cause = NO_ROOM,
) -> Decision:
    """Decide where each job is; ``line`` has those that may come in if a target finds no place."""
    places = _Places(sharing.view, packing=sharing.packing)
    if places.place(sharing.targets()):
        places.use_rest(sharing, line)
    return Decision(places.shares(), wait=wait)


class _Places:
    """Where each job is while targets are being placed."""

    def __init__(self, view: View, *, packing: bool) -> None:
        self.view = view
        self.packing = packing
        self.room = Room(view.cluster)
        self.at: dict[JobId, Nodes] = {}
        """Where jobs have GPUs, as far as it was decided."""
        self.staying: dict[JobId, Share] = {}
        self.placed: dict[JobId, Share] = {}
        """In the order in which GPUs are given."""
        self.movable: dict[NodeName, dict[JobId, JobState]] = {}
        """Jobs on one node whose number stays the same."""
        self._vain: dict[tuple[str, int], int] = {}
        """How often so many GPUs of a type were looked for in vain."""

    @property
    def most(self) -> int:
        """How many GPUs are left."""
        return self.room.total

    def shares(self) -> dict[JobId, Share]:
        """The answer: those that stay first, then the others in the order of their steps."""
        return {**self.staying, **self.placed}

    # --- the targets

    def place(self, targets: Iterable[Target]) -> bool:
        """Give each target a place; tell whether some were given less than their target."""
        heap: list[tuple[int, bool, int, Target]] = []
        for target in targets:
            held = target.state.placement
            if held is not None:
                self._hold(target)
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
        for state in line(self):
            if state.id not in self.at and self.room.total > 0:
                kind = self._let_in(state)
                if kind is not None:
                    targets[state.id] = sharing.make_target(state, kind)
        for target in sorted(targets.values(), key=lambda target: target.state.order):
            has = sum(self.at.get(target.state.id, {}).values())
            while has and self.room.total > 0:
                higher = target.curve.option_above(has)
                if higher is None or not self._raise(target._replace(gpus=higher)):
                    break
                has = higher

    def _let_in(self, state: JobState) -> str | None:
        """Start a job with its least, or let it go on with that where it is; tell on which type."""
        held = state.placement
        if held is None:
            fit = self.room.find(state, state.least)
            if fit is not None:
                self._give(state, fit.nodes, fit.gpu_type)
            return fit.gpu_type if fit is not None else None
        gpus = state.least if "+" not in held.gpu_type else held.gpus
        nodes = _keep_largest(held, gpus)
        if held.gpus < gpus or not self.room.has(self._count_good(state, nodes)):
            return None
        self._give(state, nodes, held.gpu_type)
        return held.gpu_type

    def _raise(self, target: Target) -> bool:
        """Give a job more than it was to have; one that shrinks keeps some more of its own."""
        held = target.state.placement
        if held is None or self.at[target.state.id] == count_nodes(held):
            return self._put(target, may_move=False)
        nodes, own = self._find(target), count_nodes(held)
        if nodes is None or any(count > own.get(node, 0) for node, count in nodes.items()):
            return False
        self._give(target.state, nodes, target.gpu_type)
        return True

    def _hold(self, target: Target) -> None:
        """Let a running job have what it keeps in any case, until it is its turn to grow."""
        state, placement = target.state, target.state.placement
        assert placement is not None
        nodes = _keep_largest(placement, target.gpus)
        self.at[state.id] = nodes
        self.room.take(self._count_good(state, nodes))
        if target.gpus >= placement.gpus:
            self.staying[state.id] = keep(placement.gpus)
            if target.gpus == placement.gpus and self._may_move(state, nodes):
                self.movable.setdefault(next(iter(nodes)), {})[state.id] = state
        else:
            cause = _FASTER_WITH_FEWER if self._is_slower(target) else _SHRINKS
            self.staying[state.id] = Share(target.gpus, cause, placement.gpu_type, nodes)

    def _count_good(self, state: JobState, nodes: Nodes) -> dict[NodeName, int]:
        """How many of these GPUs others could be given; a job gives up its bad ones first."""
        if self.view.cluster.flawless or state.placement is None:
            return dict(nodes)
        good = count_usable(state.placement, self.view.cluster)
        held = count_nodes(state.placement)
        return {
            node: min(good[node], count) if node in held else count for node, count in nodes.items()
        }

    def _is_slower(self, target: Target) -> bool:
        """Whether the job is known to be slower with all that it has than with its target."""
        held, predictor = target.state.placement, self.view.predictor
        assert held is not None
        job, kind = target.state.job, target.gpu_type
        fast = predictor.speed(job, predictor.shape(target.gpus, kind))
        return predictor.speed(job, predictor.shape(held.gpus, kind)) < fast

    # --- one target

    def _put(self, target: Target, *, may_move: bool) -> bool:
        state, kind = target.state, target.gpu_type
        nodes = self._find(target)
        if nodes is None and may_move and "+" not in kind:
            nodes = self._make_room(target)
        is_least = state.placement is None and target.gpus == target.curve.options[0]
        if nodes is None and is_least and "+" not in kind:
            # Better on many nodes than not at all.
            fit = self.room.find(state, target.gpus, kind)
            nodes = fit.nodes if fit is not None else None
        if nodes is None:
            return False
        self._give(state, nodes, kind)
        return True

    def _give(self, state: JobState, nodes: Nodes, kind: str) -> None:
        held = state.placement
        old = self.at.get(state.id)
        if old is not None:
            self.room.give(self._count_good(state, old))
        self.room.take(self._count_good(state, nodes), state)
        self.at[state.id] = nodes
        gpus = sum(nodes.values())
        self.staying.pop(state.id, None)
        self.placed.pop(state.id, None)
        if held is None:
            kind = "+".join(sorted({self.view.cluster.by_name[n].gpu_type for n in nodes}))
            self.placed[state.id] = Share(gpus, _STARTS, kind, nodes)
        elif count_nodes(held) == nodes:
            self.staying[state.id] = keep(gpus)
        elif gpus == held.gpus:
            self.placed[state.id] = Share(gpus, _MOVES, kind, nodes)
        else:
            cause = _GROWS if gpus > held.gpus else _SHRINKS
            self.placed[state.id] = Share(gpus, cause, kind, nodes)

    def _find(self, target: Target) -> Nodes | None:
        """A place on the fewest nodes, or where packing does not matter, on any."""
        state, gpus, kind = target.state, target.gpus, target.gpu_type
        if "+" in kind:
            # It was counted as a mixture because others come first on each type alone.
            fit = self.room.find(state, gpus)
            return fit.nodes if fit is not None and "+" in fit.gpu_type else None
        fewest = self.view.predictor.shape(gpus, kind).nodes if self.packing else None
        have = self.at.get(state.id)
        if fewest == 1 and not state.bound_to:
            # The usual case, because most jobs are smaller than a machine.
            home, has = next(iter(have.items())) if have and len(have) == 1 else (None, 0)
            if home is None or self.room.nodes[home] < gpus - has:
                home = self.room.find_node(state, kind, gpus)
            return {home: gpus} if home is not None else None
        if have:
            nodes = grow(self.room, state, have, kind, gpus)
            if nodes is not None and (fewest is None or len(nodes) <= fewest):
                return nodes
            if state.bound_to:
                return None
        fit = self.room.find(state, gpus, kind) if self.room.free.get(kind, 0) >= gpus else None
        return fit.nodes if fit is not None and (not fewest or len(fit.nodes) <= fewest) else None

    # --- room for one that finds none

    def _may_move(self, state: JobState, nodes: Nodes) -> bool:
        good = self._count_good(state, nodes) == nodes
        return good and len(nodes) == 1 and not state.bound_to and not state.adjusting

    def _make_room(self, target: Target) -> Nodes | None:
        """Let smaller jobs move so that this one has a place on the fewest nodes, or nothing."""
        state, kind = target.state, target.gpu_type
        have = self.at.get(state.id, {})
        if state.bound_to or self.room.free.get(kind, 0) < target.gpus - sum(have.values()):
            return None
        asked = (kind, target.gpus)
        if self._vain.get(asked, 0) >= PATIENCE:
            return None
        clearing = Clearing(self.room, self.movable, kind)
        nodes = clearing.find(state, target.gpus, have)
        fewest = self.view.predictor.shape(target.gpus, kind).nodes
        most = min(fewest, state.job.gpus.max_nodes or fewest)
        if nodes is None or len(nodes) > most:
            clearing.undo()
            self._vain[asked] = self._vain.get(asked, 0) + 1
            return None
        for move in clearing.moves:
            del self.movable[move.source][move.state.id]
            self.staying.pop(move.state.id, None)
            self.at[move.state.id] = nodes_then = {move.to: move.gpus}
            self.placed[move.state.id] = Share(move.gpus, _MOVES, kind, nodes_then)
        return nodes


def _keep_largest(placement: Placement, gpus: int) -> dict[NodeName, int]:
    """What is left of a placement that shrinks: its largest parts, so that the nodes are few."""
    nodes: dict[NodeName, int] = {}
    for part in sorted(placement.slices, key=lambda part: (-len(part.gpus), part.node)):
        if gpus > 0:
            nodes[part.node] = min(gpus, len(part.gpus))
            gpus -= nodes[part.node]
    return nodes


def _lower(target: Target) -> Target | None:
    """The same for the next smaller number that is more than the job has, if there is one."""
    held = target.state.placement
    has = held.gpus if held is not None else 0
    smaller = [n for n in target.curve.options if has < n < target.gpus]
    return target._replace(gpus=smaller[-1]) if smaller else None

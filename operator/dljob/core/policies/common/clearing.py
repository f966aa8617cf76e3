"""
Moving small jobs into gaps, so that a larger one has a place on few nodes.

Policies call it when a job finds no such place although there are GPUs enough. The moves are tried on the
room itself; :meth:`Clearing.undo` takes them back. Their order is one in which each goes to GPUs that are
free by then.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dljob.core.model import JobId, JobState, NodeName
from dljob.core.placement.free_gpus import Room

GLANCE = 16
"""How many nodes, the emptiest, are looked at for one whose jobs could move away."""

PATIENCE = 3
"""The number of times that others are asked to make room for jobs of one size; then room has become too scarce."""

Nodes = Mapping[NodeName, int]


class Patience:
    """Counts the searches of a decision that were in vain, by the number of GPUs and their type."""

    def __init__(self) -> None:
        self._vain: Counter[tuple[str, int]] = Counter()

    def is_over(self, kind: str, gpus: int) -> bool:
        """Return whether a further search would be in vain, too."""
        return self._vain[kind, gpus] >= PATIENCE

    def note_vain(self, kind: str, gpus: int) -> None:
        self._vain[kind, gpus] += 1


class Relocation(NamedTuple):
    """A job that goes from one node to another with all its GPUs."""

    state: JobState
    gpus: int
    source: NodeName
    to: NodeName


class Clearing:
    """Looks for a place on nodes of one type, and for places for those that are in its way."""

    def __init__(
        self, room: Room, movable: Mapping[NodeName, Mapping[JobId, JobState]], *, kind: str
    ) -> None:
        self.room = room
        self.movable = movable
        self.kind = kind
        self.moves: list[Relocation] = []
        self._freed: set[JobId] = set()
        """Jobs that moved, whose former GPUs count as free."""

    def find(self, state: JobState, gpus: int, *, have: Nodes) -> dict[NodeName, int] | None:
        """Nodes on which the job could have ``gpus`` after the moves, in addition to the ``have`` that it keeps."""
        size = self.room.cluster.largest_node[self.kind]
        nodes = {node: count for node, count in have.items() if gpus > size and count == size}
        taken: dict[NodeName, int] = {}
        missing = gpus - sum(nodes.values())
        while missing > 0:
            count = min(missing, size)
            node = self._clear(state, count, have=have, avoid=frozenset(nodes))
            if node is None:
                break
            nodes[node] = count
            missing -= count
            # The GPUs found here must not go to jobs that move for the next node.
            taken[node] = max(0, count - have.get(node, 0))
            self.room.take({node: taken[node]})
        self.room.give(taken)
        return nodes if missing <= 0 else None

    def undo(self, mark: int = 0) -> None:
        """Take all moves but the first ones back."""
        while len(self.moves) > mark:
            move = self.moves.pop()
            if move.state.id in self._freed:
                self._freed.remove(move.state.id)
                self.room.take({move.source: move.gpus})
            self.room.give({move.to: move.gpus}, move.state)

    def _clear(
        self, state: JobState, gpus: int, *, have: Nodes, avoid: frozenset[NodeName]
    ) -> NodeName | None:
        """A node where the job has room for ``gpus`` once the jobs in its way have moved."""
        for node, victims in self._rank_nodes(state, gpus, have=have, avoid=avoid):
            mark, free = len(self.moves), self.room.nodes[node]
            self.room.take({node: free})
            is_clear = all(self._move(victim, node, avoid=avoid | {node}) for victim in victims)
            self.room.give({node: free})
            if is_clear:
                for victim in victims:
                    self._freed.add(victim.id)
                    self.room.give({node: _gpus_of(victim)})
                return node
            self.undo(mark)
        return None

    def _move(self, state: JobState, source: NodeName, *, avoid: frozenset[NodeName]) -> bool:
        gpus = _gpus_of(state)
        to = self.room.find_node(state, self.kind, gpus)
        if to is None:
            to = self._clear(state, gpus, have={}, avoid=avoid)
        if to is None:
            return False
        self.room.take({to: gpus}, state)
        self.moves.append(Relocation(state, gpus, source, to))
        return True

    def _rank_nodes(
        self, state: JobState, gpus: int, *, have: Nodes, avoid: frozenset[NodeName]
    ) -> Iterator[tuple[NodeName, list[JobState]]]:
        """Nodes that could be cleared, the one from which the fewest jobs move first."""
        own = self._count_own(have, avoid)
        gaps = self.room.gaps.rank_emptiest(self.kind, GLANCE, but=avoid | own.keys())
        near = heapq.nlargest(GLANCE, (*gaps, *((count, node) for node, count in own.items())))
        ranked = []
        for there, node in near:
            victims = self._choose_victims(node, gpus - there, below=gpus)
            if victims is not None and self.room.takes_pod(state, node):
                moved = sum(map(_gpus_of, victims))
                ranked.append((len(victims), moved, node, victims))
        for _, _, node, victims in sorted(ranked, key=lambda each: each[:3]):
            yield node, victims

    def _count_own(self, have: Nodes, avoid: frozenset[NodeName]) -> dict[NodeName, int]:
        """Return how many GPUs the job would have free on each node that it is on."""
        free, by_name = self.room.nodes, self.room.cluster.by_name
        return {
            node: free[node] + count
            for node, count in have.items()
            if node in free and node not in avoid and by_name[node].gpu_type == self.kind
        }

    def _choose_victims(self, node: NodeName, missing: int, *, below: int) -> list[JobState] | None:
        """The fewest jobs smaller than ``below`` on the node that together hold ``missing`` GPUs."""
        there = [
            state
            for state in self.movable.get(node, {}).values()
            if _gpus_of(state) < below and not self._has_moved(state)
        ]
        there.sort(key=lambda state: (_gpus_of(state), state.order))
        victims: list[JobState] = []
        while missing > 0 and there:
            enough = next((state for state in there if _gpus_of(state) >= missing), there[-1])
            there.remove(enough)
            victims.append(enough)
            missing -= _gpus_of(enough)
        return victims if missing <= 0 else None

    def _has_moved(self, state: JobState) -> bool:
        return any(move.state.id == state.id for move in self.moves)


def _gpus_of(state: JobState) -> int:
    assert state.placement is not None
    return state.placement.shape.gpus

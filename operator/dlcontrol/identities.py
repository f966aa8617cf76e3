"""
Which UUIDs the GPUs of a node have, where its platform does not tell: as SideCars report them.

Kubernetes knows GPUs by their count only. A container of ours sees all GPUs of its node, so that the
first SideCar that reports all of them tells what each is called. It is remembered for as long as the
controller lives; the next one hears it from the SideCars that run.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

from dlcontrol.scene import Scene
from dlcore.model import Node, NodeName
from dlwire.messages import State

log = logging.getLogger(__name__)

Names = tuple[str, ...]
"""The UUIDs of a node, in the order of its GPUs."""


class Identities:
    """What GPUs are called, as far as this controller has heard."""

    def __init__(self) -> None:
        self._names: dict[NodeName, Names] = {}
        self._named: dict[NodeName, tuple[Node, Node]] = {}
        """The nodes that were seen last, each with what was made of it."""
        self._told: dict[str, tuple[State, Names]] = {}
        """By incarnations: what SideCars said last, and what that tells."""

    def look(self, scene: Scene) -> None:
        """Learn what SideCars report."""
        told: dict[NodeName, list[Names]] = {}
        before, self._told = self._told, {}
        for node, state in _iter_states(scene):
            known = before.get(state.incarnation)
            names = known[1] if known is not None and known[0] is state else _read(state)
            self._told[state.incarnation] = (state, names)
            if len(names) != len(scene.nodes[node].gpus):
                continue
            told.setdefault(node, []).append(names)
        for node, all_names in told.items():
            # What one of them still says has not changed, whatever another one says.
            if self._names.get(node) not in all_names:
                if node in self._names:
                    log.warning("node %s has other GPUs than before: %s", node, all_names[0])
                self._names[node] = all_names[0]
                self._named.pop(node, None)

    def mark(self, scene: Scene) -> Scene:
        """Show the scene with the names of GPUs that its nodes do not tell."""
        if not self._names:
            return scene
        return replace(scene, nodes={n: self._mark(node) for n, node in scene.nodes.items()})

    def _mark(self, node: Node) -> Node:
        known = self._named.get(node.name)
        if known is None or known[0] is not node:
            known = self._named[node.name] = (node, named(node, self._names.get(node.name, ())))
        return known[1]


def named(node: Node, names: Names) -> Node:
    """Name the GPUs of a node that have no name yet; nothing if these are not all of them."""
    if len(names) != len(node.gpus) or all(gpu.uuid for gpu in node.gpus):
        return node
    pairs = zip(node.gpus, names, strict=True)
    return replace(node, gpus=tuple(replace(g, uuid=g.uuid or uuid) for g, uuid in pairs))


def _iter_states(scene: Scene) -> Iterator[tuple[NodeName, State]]:
    """Every SideCar that has told of GPUs."""
    seats = (each for seats in scene.seats.values() for each in seats.items())
    for name, seat in seats:
        state = seat.state
        if name in scene.nodes and state is not None and state.gpus and not seat.has_ended:
            yield name, state


def _read(state: State) -> Names:
    """Return the names by number; none if they are not all told."""
    by_number = {gpu.index: gpu.uuid for gpu in state.gpus}
    names = tuple(by_number.get(number, "") for number in range(len(state.gpus)))
    return names if all(names) and len(set(names)) == len(names) else ()

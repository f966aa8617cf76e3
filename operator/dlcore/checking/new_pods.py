"""The check that the nodes have room for the pods that the steps of a plan add."""

from collections.abc import Iterator, Mapping

from dlcore.checking.laws import Breach, Law
from dlcore.model import JobState, NodeName, Placement
from dlcore.placement.amounts import Amounts, lacking, total
from dlcore.placement.needs import Needs


class NewPods:
    """
    The requests of new pods, by their node.

    Pods keep their requests until they end, so only ``free`` can be given.
    """

    __slots__ = ("_asked", "_free")

    def __init__(self, free: Mapping[NodeName, Amounts]) -> None:
        self._free = free
        self._asked: dict[NodeName, list[Needs]] = {}

    def add(self, state: JobState, whole: Placement) -> list[Breach]:
        """Count the new pods of a job, and return why nodes cannot take them."""
        needs = state.needs
        if needs is None:
            return []
        new = [node for node in whole.nodes if not state.has_pod_on(node)]
        return [breach for node in new for breach in self._add(state, needs, node=node)]

    def _add(self, state: JobState, needs: Needs, *, node: NodeName) -> Iterator[Breach]:
        if needs.nodes is not None and node not in needs.nodes:
            message = f"gets a pod on {node}, which does not take its pods"
            yield Breach(Law.ROOM_FOR_PODS, state.id, message)
        there = self._asked.setdefault(node, [])
        there.append(needs)
        free = self._free.get(node)
        asked = total(dict(each.amounts) for each in there)
        if free is not None and (short := lacking(asked, free)):
            message = f"gets a pod on {node}, which has too little {' and '.join(short)} for it"
            yield Breach(Law.ROOM_FOR_PODS, state.id, message)

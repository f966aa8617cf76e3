"""The GPUs of nodes by the names that SideCars have for them: a UUID, or an index as their own NVML counts."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from dlcore.model import GpuRef, Node, NodeName
from dlwire.messages import Gpu, State


class GpuNames:
    """Finds GPUs by name; the tables are made when a name is first asked for."""

    def __init__(self, nodes: Mapping[NodeName, Node]) -> None:
        self._nodes = nodes

    def find_seen(self, node: NodeName, seen: Gpu) -> GpuRef | None:
        """Which GPU of the node it is that a SideCar there speaks of."""
        for gpu in self._nodes[node].gpus if node in self._nodes else ():
            # A container may number them otherwise, so that only what has no name goes by number.
            if gpu.uuid == seen.uuid if gpu.uuid else gpu.index == seen.index:
                return GpuRef(node, gpu.index)
        return None

    def find_named(self, node: NodeName, name: str, *, state: State) -> GpuRef | None:
        """Which GPU of the node it is that a SideCar there names; ``state`` is what it said last."""
        number = self._number(node, name, state)
        return None if number is None else GpuRef(node, number)

    def find_all(
        self, node: NodeName, names: Iterable[str], *, state: State | None
    ) -> frozenset[GpuRef]:
        """Which GPUs of the node these names of a SideCar mean; a name that means none is left out."""
        if state is None:
            return frozenset()
        found = (self.find_named(node, name, state=state) for name in names)
        return frozenset(ref for ref in found if ref is not None)

    def _number(self, node: NodeName, name: str, state: State) -> int | None:
        """The number of a GPU that a SideCar names by UUID, or by index as its own NVML counts."""
        if not name.isdigit():
            return self._numbers.get((node, name))
        index = int(name)
        uuid = next((gpu.uuid for gpu in state.gpus if gpu.index == index), "")
        if not uuid or (node, index) in self._nameless:
            return index
        return self._numbers.get((node, uuid))

    def unnamed(self, node: NodeName) -> frozenset[GpuRef]:
        """The GPUs of a node whose UUIDs are not known."""
        gpus = self._nodes[node].gpus if node in self._nodes else ()
        return frozenset(GpuRef(node, gpu.index) for gpu in gpus if not gpu.uuid)

    @cached_property
    def _nameless(self) -> frozenset[tuple[NodeName, int]]:
        return frozenset(
            (node.name, gpu.index)
            for node in self._nodes.values()
            for gpu in node.gpus
            if not gpu.uuid
        )

    @cached_property
    def _numbers(self) -> Mapping[tuple[NodeName, str], int]:
        return {
            (node.name, gpu.uuid): gpu.index for node in self._nodes.values() for gpu in node.gpus
        }

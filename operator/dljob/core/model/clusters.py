"""The nodes together, and the sums over them."""

from collections.abc import Iterable, Mapping

from dljob.core.model.nodes import Node, NodeName
from dljob.core.model.placements import Placement
from dljob.core.placement.amounts import Amounts


class Cluster:
    """The nodes, and sums over them that all snapshots share until the nodes change."""

    __slots__ = (
        "by_name",
        "devices",
        "flawless",
        "free",
        "largest_node",
        "memo",
        "nodes",
        "sizes",
        "total",
        "totals",
        "types",
        "usable",
        "whole",
    )

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: tuple[Node, ...] = tuple(sorted(nodes, key=lambda node: node.name))
        self.by_name: Mapping[NodeName, Node] = {node.name: node for node in self.nodes}
        if len(self.by_name) != len(self.nodes):
            raise ValueError("two nodes bear the same name")
        self.usable: Mapping[NodeName, tuple[int, ...]] = {n.name: n.usable for n in self.nodes}
        self.devices: Mapping[NodeName, frozenset[int]] = {
            node.name: frozenset(gpu.index for gpu in node.gpus) for node in self.nodes
        }
        """The indices of all GPUs of each node, whether they may be given away or not."""
        self.whole = frozenset(n.name for n in self.nodes if len(n.usable) == len(n.gpus))
        """The nodes on which every GPU may be given away."""
        self.flawless: bool = len(self.whole) == len(self.nodes)
        """True if every GPU of the cluster may be given away."""
        self.types: tuple[str, ...] = tuple(sorted({node.gpu_type for node in self.nodes}))
        self.sizes: Mapping[str, tuple[int, ...]] = {
            kind: tuple(
                sorted((len(n.usable) for n in self.nodes if n.gpu_type == kind), reverse=True)
            )
            for kind in self.types
        }
        """How many GPUs may be given away on each node of a type, the largest first."""
        self.totals: Mapping[str, int] = {kind: sum(each) for kind, each in self.sizes.items()}
        self.total: int = sum(self.totals.values())
        self.largest_node: Mapping[str, int] = {kind: each[0] for kind, each in self.sizes.items()}
        self.free: Mapping[NodeName, Amounts] = {
            node.name: node.free for node in self.nodes if node.free is not None
        }
        """The room for requests of new pods, on the nodes where that is counted."""
        self.memo: dict[tuple[object, ...], object] = {}
        """Results that were computed for this cluster, for callers that ask the same again."""

    def has(self, placement: Placement) -> bool:
        """Return whether all GPUs of the placement still exist, good or bad."""
        for node, gpus in placement.slices:
            devices = self.devices.get(node)
            if devices is None or not devices.issuperset(gpus):
                return False
        return True

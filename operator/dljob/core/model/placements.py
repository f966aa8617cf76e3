"""Which GPUs on which nodes a job has."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dljob.core.model.nodes import GpuRef, NodeName
from dljob_wire.messages import Shape


class Slice(NamedTuple):
    """The GPUs of a placement that are on one node."""

    node: NodeName
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """
    Which GPUs on which nodes, by id.

    Slices are ordered by node and their indices rise, so that equal placements are equal values.
    Build one with :meth:`of`, which sees to it.
    """

    slices: tuple[Slice, ...]
    gpu_type: str = ""
    shape: Shape = field(init=False, compare=False, repr=False)
    nodes: tuple[NodeName, ...] = field(init=False, compare=False, repr=False)
    """The nodes that it spans, in order."""
    _refs: tuple[GpuRef, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        count = sum(len(part.gpus) for part in self.slices)
        object.__setattr__(self, "shape", Shape(count, len(self.slices), self.gpu_type))
        object.__setattr__(self, "nodes", tuple([part.node for part in self.slices]))
        object.__setattr__(self, "_refs", ())

    @classmethod
    def of(cls, gpus: Mapping[NodeName, Iterable[int]], gpu_type: str = "") -> "Placement":
        """Build a placement in canonical order, without the nodes that contribute nothing."""
        # One list instead of generators, because a decision builds thousands.
        slices = [Slice(node, tuple(sorted(indices))) for node, indices in sorted(gpus.items())]
        return cls(tuple([part for part in slices if part.gpus]), gpu_type)

    @property
    def gpus(self) -> int:
        """How many GPUs in all."""
        return self.shape.gpus

    def refs(self) -> tuple[GpuRef, ...]:
        """Every GPU of it, node by node. Named once only, for every check of every plan asks."""
        if not self._refs:
            refs = tuple([GpuRef(node, number) for node, gpus in self.slices for number in gpus])
            object.__setattr__(self, "_refs", refs)
        return self._refs

    def __str__(self) -> str:
        return " ".join(f"{node}[{','.join(map(str, gpus))}]" for node, gpus in self.slices)

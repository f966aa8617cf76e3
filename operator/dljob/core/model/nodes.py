"""Nodes and their GPUs."""

from dataclasses import dataclass, field
from typing import NamedTuple, NewType

from dljob.core.placement.amounts import Amounts

NodeName = NewType("NodeName", str)


class GpuRef(NamedTuple):
    """One GPU of the cluster, by its node and its number there in PCI bus order."""

    node: NodeName
    number: int

    def __str__(self) -> str:
        return f"{self.node}/{self.number}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device of a node."""

    index: int
    uuid: str = ""
    unavailable_because: str = ""
    """Why no further job may have it (cordoned, ECC errors, unproven release); empty when it is
    fine."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with GPUs of one type. A node that is lost is simply not in the snapshot."""

    name: NodeName
    gpus: tuple[Gpu, ...]
    gpu_type: str = ""
    schedulable: bool = True
    """False when it is cordoned: what runs there goes on, nothing new comes."""
    free: Amounts | None = field(default=None, hash=False)
    """The room for requests of new pods, by resource in thousandths; ``None`` if the platform does not
    count it."""
    capacity: Amounts | None = field(default=None, hash=False)
    """The room for requests on the empty node, counted likewise."""

    @classmethod
    def of(cls, name: str, gpus: int, gpu_type: str = "") -> "Node":
        """Build a healthy node of ``gpus`` devices, numbered from 0."""
        return cls(NodeName(name), tuple(Gpu(index) for index in range(gpus)), gpu_type)

    @property
    def usable(self) -> tuple[int, ...]:
        """The indices that may be given away, in order."""
        if not self.schedulable:
            return ()
        return tuple(gpu.index for gpu in self.gpus if not gpu.unavailable_because)

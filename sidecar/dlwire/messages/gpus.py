"""The GPUs that a container sees, as its SideCar describes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from dlwire.kinds import Each, Flag, Nested, Number, Text, Whole, wire
from dlwire.messages.limits import MOST_GPU_PROCESSES


@dataclass(frozen=True)
class GpuProcess:
    """One process that has memory on a GPU, of the job or not."""

    pid: int = field(metadata=wire(Whole()))
    """As the machine counts, also inside a container."""
    memory_used: int = field(default=0, metadata=wire(Whole()))
    """In bytes; 0 where NVML does not tell."""
    draws: bool = field(default=False, metadata=wire(Flag()))
    """Whether it only draws, as a display does, and does not compute."""


@dataclass(frozen=True)
class Gpu:
    """One GPU that the container sees."""

    index: int = field(metadata=wire(Whole(0, 4095)))
    """In the order of the PCI bus."""
    uuid: str = field(default="", metadata=wire(Text(128)))
    model: str = field(default="", metadata=wire(Text(128)))
    utilization: float = field(default=0.0, metadata=wire(Number(0.0, 1.0)))
    memory_used: int = field(default=0, metadata=wire(Whole()))
    """In bytes."""
    memory_total: int = field(default=0, metadata=wire(Whole()))
    busy_unassigned: bool = field(default=False, metadata=wire(Flag()))
    """Whether another program computes on it while this job does not have it."""
    xid_errors: tuple[int, ...] = field(default=(), metadata=wire(Each(Whole(), 64)))
    ecc_errors: int = field(default=0, metadata=wire(Whole()))
    """Uncorrected ones, since the driver was loaded."""
    processes: tuple[GpuProcess, ...] = field(
        default=(), metadata=wire(Each(Nested(GpuProcess), MOST_GPU_PROCESSES))
    )
    lost_because: str = field(default="", metadata=wire(Text(256)))
    """Why it can be used from this container no more; empty if it can."""

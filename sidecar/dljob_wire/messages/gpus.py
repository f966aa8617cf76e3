"""The GPUs that a container sees, as its SideCar describes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from dljob_wire.kinds import Each, Flag, Nested, Number, Text, Whole, wire
from dljob_wire.messages.limits import MOST_GPU_PROCESSES


@dataclass(frozen=True)
class GpuProcess:
    """A process with memory on a GPU, of the job or not."""

    pid: int = field(metadata=wire(Whole()))
    """The machine's process id, even inside a container."""
    memory_used: int = field(default=0, metadata=wire(Whole()))
    """In bytes; 0 if NVML does not report it."""
    draws: bool = field(default=False, metadata=wire(Flag()))
    """True if the process only draws, as a display does, and does not compute."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that the container sees."""

    index: int = field(metadata=wire(Whole(0, 4095)))
    """In PCI bus order."""
    uuid: str = field(default="", metadata=wire(Text(128)))
    model: str = field(default="", metadata=wire(Text(128)))
    utilization: float = field(default=0.0, metadata=wire(Number(0.0, 1.0)))
    memory_used: int = field(default=0, metadata=wire(Whole()))
    """In bytes."""
    memory_total: int = field(default=0, metadata=wire(Whole()))
    busy_unassigned: bool = field(default=False, metadata=wire(Flag()))
    """True if another program computes on the GPU while this job does not have it."""
    xid_errors: tuple[int, ...] = field(default=(), metadata=wire(Each(Whole(), 64)))
    ecc_errors: int = field(default=0, metadata=wire(Whole()))
    """Uncorrected errors since the driver was loaded."""
    processes: tuple[GpuProcess, ...] = field(
        default=(), metadata=wire(Each(Nested(GpuProcess), MOST_GPU_PROCESSES))
    )
    lost_because: str = field(default="", metadata=wire(Text(256)))
    """The reason why this container can no longer use the GPU; empty if it can."""

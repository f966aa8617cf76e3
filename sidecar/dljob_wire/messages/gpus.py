"""The GPUs that a container sees, as its SideCar describes them."""

from __future__ import annotations

from dataclasses import dataclass

from dljob_wire.kinds import Flag, Many, Number, Said, Whole, declare, nested
from dljob_wire.messages.limits import MOST_GPU_PROCESSES


@dataclass(frozen=True)
class GpuProcess:
    """A process with memory on a GPU, of the job or not."""

    pid: int = declare(Whole())
    """The machine's process id, even inside a container."""
    memory_used: int = declare(Whole(), 0)
    """In bytes; 0 if NVML does not report it."""
    draws: bool = declare(Flag(), default=False)
    """True if the process only draws, as a display does, and does not compute."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that the container sees."""

    index: int = declare(Whole(0, 4095))
    """In PCI bus order."""
    uuid: str = declare(Said(128), "")
    model: str = declare(Said(128), "")
    utilization: float = declare(Number(0.0, 1.0), 0.0)
    memory_used: int = declare(Whole(), 0)
    """In bytes."""
    memory_total: int = declare(Whole(), 0)
    busy_unassigned: bool = declare(Flag(), default=False)
    """True if another program computes on the GPU while this job does not have it."""
    xid_errors: tuple[int, ...] = declare(Many(Whole(), 64), ())
    ecc_errors: int = declare(Whole(), 0)
    """Uncorrected errors since the driver was loaded."""
    processes: tuple[GpuProcess, ...] = declare(Many(nested(GpuProcess), MOST_GPU_PROCESSES), ())
    lost_because: str = declare(Said(256), "")
    """The reason why this container can no longer use the GPU; empty if it can."""

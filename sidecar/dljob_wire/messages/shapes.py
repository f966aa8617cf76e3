"""The width of a job."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """
    The width of a job: the number of GPUs and nodes, and the GPU type.

    A named tuple rather than a dataclass, because shapes are the keys of every speed table and
    their hash is on the scheduler's hottest path.
    """

    gpus: int
    nodes: int = 1
    gpu_type: str = ""
    """Empty for the only type of the cluster; several types are joined by ``+``."""

    def __str__(self) -> str:
        """Return the shape in words: ``4 GPUs (V100) on 2 nodes``."""
        kind = f" ({self.gpu_type})" if self.gpu_type else ""
        spread = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}{kind}{spread}"

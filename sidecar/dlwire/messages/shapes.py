"""How wide a job runs."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """
    How wide a job runs: how many GPUs, over how many nodes, of which type.

    A named tuple rather than a dataclass, because shapes are the keys of every speed table and
    their hash is on the scheduler's hottest path.
    """

    gpus: int
    nodes: int = 1
    gpu_type: str = ""
    """The empty string means "the one type there is"; several types are joined by ``+``."""

    def __str__(self) -> str:
        """Tell the shape as a person would: ``4 GPUs (V100) on 2 nodes``."""
        kind = f" ({self.gpu_type})" if self.gpu_type else ""
        spread = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}{kind}{spread}"

"""
The shape of a checkpoint from outside, for comparison with the next one.

The shape is the number of files, their names without numbers, their total size, and the longest
pause between two of them. After the first checkpoint, the shape shows completion if there is no
mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dljob_sidecar.checkpoints.checkpoint_files import Mark
from dljob_sidecar.checkpoints.recognizing.signs import normalise

UNKNOWN_SECONDS = 2.0
"""The time without changes that completes a job's first checkpoint without a sign."""
GAP_FACTOR = 3.0
LONGEST_SECONDS = 30.0
LEAST_SHARE = 0.5
"""A checkpoint below this share of the previous size is incomplete."""
WHOLE_SHARE = 0.999
"""The share of the previous size that a checkpoint needs if its completion was not seen."""
SLACK_BYTES = 64


@dataclass(frozen=True)
class Shape:
    """The shape of one checkpoint."""

    names: Mapping[str, int]
    """The number of files by name without numbers."""
    size: int
    gap_seconds: float
    world: int
    """The number of processes of the job, each of which may write its own files."""

    def is_like(self, known: Shape) -> bool:
        """Return True if the shape has all files of the known one."""
        is_sharded = max(known.names.values(), default=0) > 1
        if is_sharded and self.world != known.world:
            return False
        return all(self.names.get(name, 0) >= count for name, count in known.names.items())

    def is_whole_beside(self, known: Shape) -> bool:
        """Return True if the checkpoint can be complete although no sign shows that."""
        return self.is_like(known) and self.size + SLACK_BYTES >= known.size * WHOLE_SHARE

    @property
    def settle_seconds(self) -> float:
        return min(max(UNKNOWN_SECONDS, self.gap_seconds * GAP_FACTOR), LONGEST_SECONDS)

    def render(self) -> dict[str, Any]:
        names = dict(self.names)
        return {"names": names, "size": self.size, "gap": self.gap_seconds, "world": self.world}

    @staticmethod
    def parse(document: Any) -> Shape | None:
        """Parse the result of :meth:`render`; return None for anything else."""
        try:
            names = {str(name): int(count) for name, count in document["names"].items()}
            size, gap, world = document["size"], document["gap"], document["world"]
            return Shape(names, int(size), float(gap), int(world))
        except (TypeError, KeyError, ValueError, AttributeError):
            return None


def look_again(
    known: Shape, files: Mapping[str, Mark], *, unit: str, since_ns: int
) -> Shape | None:
    """
    Return the present shape of a confirmed checkpoint with its first file written at ``since_ns``.

    Files may have followed the confirmation; the next request waits for them. None without files.
    """
    last = {name: mark for name, mark in files.items() if mark.written_ns >= since_ns}
    if not last:
        return None
    seen = shape_of(last, unit, world=known.world)
    return replace(seen, gap_seconds=max(seen.gap_seconds, known.gap_seconds))


def shape_of(files: Mapping[str, Mark], unit: str, *, world: int) -> Shape:
    names = Counter(normalise(name[len(unit) :]) for name in files)
    times = sorted(mark.written_ns for mark in files.values())
    gaps = (later - earlier for earlier, later in zip(times, times[1:]))
    size = sum(mark.size for mark in files.values())
    return Shape(names, size, max(gaps, default=0) / 1e9, world)

"""
The number of spare interpreters that fit into memory.

:mod:`dljob_sidecar.warm.warming` asks before it makes spares. All spares together may take the amount
that the job allows (``spareMemoryBytes``), or else half of the free memory of the container or the
machine: during a change, the training and the next start's spares share the memory.
"""

from __future__ import annotations

import contextlib
import os
from typing import Callable

from dljob_sidecar.linux.family import read_file
from dljob_sidecar.observing.shortages import find_files

FIRST_GUESS_BYTES = 256 << 20
"""The assumed size of a spare until one can be measured; PyTorch takes about as much."""


class Budget:
    """The memory limit of all spares of one job."""

    def __init__(self, given_bytes: int = 0, read_free: Callable[[], int] | None = None) -> None:
        """``given_bytes`` is the job's limit; 0 uses the free memory."""
        self._given_bytes = given_bytes
        self._read_free = read_free or read_free_bytes
        self._one_bytes = 0
        self.limit_bytes = given_bytes

    def learn(self, one_bytes: int) -> None:
        """Record the memory of a ready spare."""
        self._one_bytes = max(self._one_bytes, one_bytes)

    def allow(self, count: int, *, ready: int) -> tuple[int, str]:
        """
        Return how many of ``count`` spares memory allows, and the reason if they are fewer.

        The memory of the ``ready`` spares is already in use.
        """
        if not self._given_bytes:
            free = self._read_free()
            if free < 0:
                return count, ""
            self.limit_bytes = (free + ready * self._one_bytes) // 2
        one = self._one_bytes or FIRST_GUESS_BYTES
        most = self.limit_bytes // one
        if most >= count:
            return count, ""
        source = "spareMemoryBytes" if self._given_bytes else "half of the free memory"
        return most, (
            f"{count} spare interpreters are needed and {most} fit into {self.limit_bytes >> 20} MiB"
            f" ({source}), as one takes {one >> 20} MiB: the other processes start cold"
        )


def read_free_bytes(reserved_bytes: int = 0) -> int:
    """Return the free memory of this container without the reserved part; -1 if unknown."""
    found = [free] if (free := read_free_of_group()) >= 0 else []
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = read_file("/proc/meminfo").split()
        found.append(int(words[words.index(b"MemAvailable:") + 1]) << 10)
    return max(0, min(found) - reserved_bytes) if found else -1


def read_free_of_group() -> int:
    """Return the remaining memory of the control group; -1 without a limit."""
    pairs = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    for limit, usage in pairs:
        for place in find_files("memory", (limit,)):
            folder = os.path.dirname(place)  # noqa: PTH120
            try:
                most = read_file(place).strip()
                # The page cache counts as used, but leaves memory when a process needs it.
                words = read_file(f"{folder}/memory.stat").split()
                is_known = b"inactive_file" in words
                cached = int(words[words.index(b"inactive_file") + 1]) if is_known else 0
                used = int(read_file(f"{folder}/{usage}")) - cached
                return -1 if most == b"max" else max(0, int(most) - used)
            except (OSError, ValueError):
                continue
    return -1

"""
How many spare interpreters fit into memory.

:mod:`dlsidecar.warm.warming` asks before it makes any. All spares together may take the amount that the job allows
(``spareMemoryBytes``), else half of the memory that is free for the container or the machine at that moment: while a
change is under way the training and the spares of the next start live side by side.
"""

from __future__ import annotations

import os
from typing import Callable

from dlsidecar.linux.family import read_file
from dlsidecar.observing.shortages import find_files

FIRST_GUESS_BYTES = 256 << 20
"""The assumed size of a spare until the first is ready and can be measured; PyTorch takes about as much."""


class Budget:
    """The memory that the spares of one job may take together."""

    def __init__(self, given_bytes: int = 0, read_free: Callable[[], int] | None = None) -> None:
        """``given_bytes`` is what the job says; 0 leaves it to what is free."""
        self._given_bytes = given_bytes
        self._read_free = read_free or read_free_bytes
        self._one_bytes = 0
        self.limit_bytes = given_bytes

    def learn(self, one_bytes: int) -> None:
        """Note how much memory a spare takes that is ready."""
        self._one_bytes = max(self._one_bytes, one_bytes)

    def allow(self, count: int, *, ready: int) -> tuple[int, str]:
        """
        Return how many of ``count`` spares memory allows, and the reason if they are fewer.

        The memory of those that are ``ready`` is in use already.
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
        source = "spareMemoryBytes" if self._given_bytes else "half of what is free"
        return most, (
            f"{count} spare interpreters are needed and {most} fit into {self.limit_bytes >> 20} MiB"
            f" ({source}), as one takes {one >> 20} MiB: the other processes start cold"
        )


def read_free_bytes(reserved_bytes: int = 0) -> int:
    """Return the memory that is free for this container, without what is reserved; -1 where it is not known."""
    found = [free for free in (read_free_of_group(), read_free_of_machine()) if free >= 0]
    return max(0, min(found) - reserved_bytes) if found else -1


def read_free_of_group() -> int:
    """Return what the control group may still take; -1 where it has no limit."""
    pairs = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    for limit, usage in pairs:
        for place in find_files("memory", (limit,)):
            folder = os.path.dirname(place)  # noqa: PTH120
            try:
                most = read_file(place).strip()
                # Files that were read are in memory, too, and leave it when another process needs it.
                used = int(read_file(f"{folder}/{usage}")) - read_cached(f"{folder}/memory.stat")
                return -1 if most == b"max" else max(0, int(most) - used)
            except (OSError, ValueError):
                continue
    return -1


def read_cached(path: str) -> int:
    """Return how much of a group's memory are files that no process has used lately."""
    words = read_file(path).split()
    return int(words[words.index(b"inactive_file") + 1]) if b"inactive_file" in words else 0


def read_free_of_machine() -> int:
    try:
        words = read_file("/proc/meminfo").split()
        return int(words[words.index(b"MemAvailable:") + 1]) << 10
    except (OSError, ValueError, IndexError):
        return -1

"""
One spare interpreter, seen from outside: whether it waits, what it has touched, what memory it takes.

:mod:`dlsidecar.warm.warming` makes them and hands them out; what runs inside is :mod:`dlsidecar.warm.spare`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dlsidecar.observing.rank_outputs import ProcessOutput


def read_link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


class Spare:
    """One interpreter that waits, seen from outside."""

    def __init__(self, pid: int, orders: int, *, answers: int, output: ProcessOutput) -> None:
        self.pid = pid
        self.orders = orders
        self.answers = answers
        self.output = output
        self.is_ready = False
        self.order = b""
        """The process that it shall become, if that was decided before it was ready."""
        self.unread = b""
        self.on_running: Callable[[str], None] | None = None

    def touched_gpu(self) -> bool:
        """Return whether it has a GPU's device file open, as every process that has started CUDA."""
        try:
            links = [one.path for one in os.scandir(f"/proc/{self.pid}/fd")]
            return any(read_link(one).startswith("/dev/nvidia") for one in links)
        except OSError:
            return False

    def memory_bytes(self) -> int:
        """Return its memory, with memory that it shares; cheap."""
        return read_resident(self.pid)

    def share_bytes(self) -> int:
        """Return its own memory and its part of shared memory; expensive."""
        return read_share(f"/proc/{self.pid}/smaps_rollup") or self.memory_bytes()


def read_share(path: str) -> int:
    """Return the proportional share of memory in a file of the kernel; 0 where there is none."""
    try:
        words = Path(path).read_bytes().split()
        return int(words[words.index(b"Pss:") + 1]) << 10
    except (OSError, ValueError, IndexError):
        return 0


def read_resident(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")

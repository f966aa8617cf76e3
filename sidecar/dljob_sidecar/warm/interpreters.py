"""
One spare interpreter, seen from outside: its state, the GPUs it opened, and its memory.

:mod:`dljob_sidecar.warm.warming` makes spares; :mod:`dljob_sidecar.warm.spare` runs inside.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dljob_sidecar.observing.rank_outputs import ProcessOutput


def read_link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


class Spare:
    """A waiting interpreter, seen from outside."""

    def __init__(self, pid: int, orders: int, *, answers: int, output: ProcessOutput) -> None:
        self.pid = pid
        self.orders = orders
        self.answers = answers
        self.output = output
        self.is_ready = False
        self.order = b""
        """The order to send once the spare is ready."""
        self.unread = b""
        self.on_running: Callable[[str], None] | None = None

    def touched_gpu(self) -> bool:
        """Return True if the process has a GPU's device file open, as after the start of CUDA."""
        try:
            links = [one.path for one in os.scandir(f"/proc/{self.pid}/fd")]
            return any(read_link(one).startswith("/dev/nvidia") for one in links)
        except OSError:
            return False

    def memory_bytes(self) -> int:
        """Return the memory with all shared memory; cheap."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def share_bytes(self) -> int:
        """Return the memory with its part of shared memory; expensive."""
        return read_share(f"/proc/{self.pid}/smaps_rollup") or self.memory_bytes()


def read_share(path: str) -> int:
    """Return the proportional share of memory from a kernel file; 0 if there is none."""
    try:
        words = Path(path).read_bytes().split()
        return int(words[words.index(b"Pss:") + 1]) << 10
    except (OSError, ValueError, IndexError):
        return 0

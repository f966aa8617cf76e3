"""
A witness who trusts nobody: it looks into ``/proc``, over and over, while a test goes on.

Each training process says in its environment which generation it belongs to (the rendezvous port,
as PyTorch is told it). Two of different generations alive at one moment are what must never be.
"""

from __future__ import annotations

import threading
from pathlib import Path

from tests.sidecar.drivers import find_processes

PORT = b"MASTER_PORT="
PERIOD_SECONDS = 0.005


def read_generation(pid: int) -> bytes:
    """Return the generation of a process; empty if it does not tell, or is gone."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return b""
    return next((entry for entry in environment if entry.startswith(PORT)), b"")


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class Witness(threading.Thread):
    """Looks for two generations alive at once, from ``start()`` to ``dismiss()``."""

    def __init__(self, token: str) -> None:
        super().__init__(daemon=True)
        self._token = token
        self._is_dismissed = threading.Event()
        self.looks = 0
        self.seen: list[str] = []
        """What must not be."""

    def run(self) -> None:
        while not self._is_dismissed.wait(PERIOD_SECONDS):
            self.look()
            self.looks += 1

    def look(self) -> None:
        first: dict[bytes, int] = {}
        for pid in find_processes(self._token):
            generation = read_generation(pid)
            if generation:
                first.setdefault(generation, pid)
        # A look takes time. Only who lives still, after the other was seen, has met it.
        for one, other in zip(first.items(), list(first.items())[1:], strict=False):
            if all(is_alive(pid) and read_generation(pid) == told for told, pid in (one, other)):
                self.seen.append(f"{one} lives at once with {other}")

    def dismiss(self) -> None:
        self._is_dismissed.set()
        self.join()
        assert self.seen == []
        assert self.looks > 0

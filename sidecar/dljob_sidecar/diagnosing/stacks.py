"""
Shows where each rank of a training waits that takes no more steps.

:mod:`dljob_sidecar.observing.facts` asks once nothing has moved for too long. There are two ways, of which the second
always works:

- The stacks of Python, from a process that has agreed to print them: it has registered ``faulthandler``
  for the signal that ``DLJOB_STACKS_SIGNAL`` names, as every warm interpreter does. The kernel says which
  signals a process handles, so that none gets one that would end it. Its output is that of the training.
- What the kernel shows of each process: how much it computed within a second, what its first thread
  waits for, how many threads it has. That shows which rank differs from the others, which wait for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from dljob_sidecar.linux.family import PROC, read_file
from dljob_sidecar.linux.kernel import send

SIGNAL = signal.SIGRTMIN + 29
"""Other programs rarely use this signal: the C library uses the first real-time signals."""
VARIABLE = "DLJOB_STACKS_SIGNAL"
BUSY = 0.5
LONGEST = 1200


@dataclass(frozen=True)
class ProcessSample:
    """The kernel's view of a process at one moment."""

    state: str
    waits_for: str
    """The kernel function in which the first thread sleeps; empty if unknown."""
    threads: int
    ticks: int
    """The processor time of all threads."""


def sample(pid: int) -> ProcessSample | None:
    """Return a sample of a process, or None if it is gone."""
    try:
        text = read_file(f"{PROC}/{pid}/stat")
        fields = text[text.rindex(b")") + 2 :].split()
        wait = "0"
        with contextlib.suppress(OSError):
            wait = read_file(f"{PROC}/{pid}/wchan").decode("ascii", "replace").strip()
        return ProcessSample(
            state=fields[0].decode("ascii"),
            waits_for="" if wait == "0" else wait,
            threads=int(fields[17]),
            ticks=int(fields[11]) + int(fields[12]),
        )
    except (OSError, ValueError, IndexError):
        return None


def request(pid: int) -> bool:
    """Make a process print its stacks if it has a handler; return True if it has."""
    try:
        status = read_file(f"{PROC}/{pid}/status").decode("ascii", "replace")
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        is_handled = int(caught.split()[1], 16) >> (SIGNAL - 1) & 1
    except (OSError, StopIteration, ValueError, IndexError):
        return False
    return bool(is_handled) and send(pid, SIGNAL)


def describe(before: ProcessSample | None, after: ProcessSample | None, *, seconds: float) -> str:
    """Describe the activity of a process between two samples."""
    if before is None or after is None:
        return "is gone"
    share = (after.ticks - before.ticks) / os.sysconf("SC_CLK_TCK") / max(seconds, 1e-3)
    if share >= BUSY:
        doing = f"computes ({share:.0%} of a CPU)"
    elif after.state == "T":
        doing = "is stopped by a signal"
    elif after.state == "D":
        doing = "waits for a device or a file system that does not answer"
    else:
        doing = "waits"
    where = f" in {after.waits_for}" if after.waits_for and share < BUSY else ""
    return f"{doing}{where}, {after.threads} thread{'s' if after.threads > 1 else ''}"


def group(said: Iterable[tuple[int, str]]) -> str:
    """Group ranks with the same description, the smallest group first: those ranks differ."""
    by_words: dict[str, list[int]] = {}
    for rank, words in said:
        by_words.setdefault(words, []).append(rank)
    groups = sorted(by_words.items(), key=lambda one: (len(one[1]), one[1]))
    parts = [f"{_name(ranks)} {words}" for words, ranks in groups]
    return "; ".join(parts)[:LONGEST]


def _name(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"each of ranks {', '.join(map(str, ranks[:16]))}{' …' if len(ranks) > 16 else ''}"

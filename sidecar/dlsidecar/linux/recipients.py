"""
Which processes get the signal that asks for a checkpoint.

Called by :mod:`dlsidecar.checkpoints.requests` with a process that the SideCar has started. A shell or a launcher, such
as torchrun, has no handler for the signal and would end by it; then the signal is for the processes below it that
have one, as the kernel shows.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dlsidecar.linux.family import Process, read_environment, scan

HARMLESS = frozenset({signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT})
"""Signals that end no process, with or without a handler."""
LAUNCH = b"TORCHELASTIC_RUN_ID"
"""Where torchrun names its own launch, to each process that it starts."""


class Recipients(NamedTuple):
    """The processes to send the signal to, or why it is sent to none."""

    pids: tuple[int, ...] = ()
    fault: str = ""


def find_recipients(root: int, signum: signal.Signals, *, to_all: bool) -> Recipients:
    """Return who takes the signal: the process itself, or the first below it that have a handler."""
    if signum in HARMLESS or not would_die(root, signum, ignoring_counts=False):
        return Recipients((root,))
    processes = scan()
    found = _find_below(root, processes, signum=signum)
    if not found:
        if not would_die(root, signum):
            return Recipients((root,))
        return Recipients(fault=f"the training has no handler for {signum.name}, or has not yet")
    late = _find_late(root, processes, found=found, signum=signum)
    if late:
        ranks = ", ".join(sorted(late))
        return Recipients(fault=f"rank {ranks} has no handler for {signum.name} yet")
    return Recipients(tuple(found if to_all else _leaders(found)))


def would_die(pid: int, signum: signal.Signals, *, ignoring_counts: bool = True) -> bool:
    """Return whether the signal would end the process: it neither catches nor ignores it."""
    if signum in HARMLESS:
        return False
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    handled = int(fields.get("SigCgt", "0"), 16)
    if ignoring_counts:
        handled |= int(fields.get("SigIgn", "0"), 16)
    return not handled >> (signum - 1) & 1


def _find_below(
    root: int, processes: Mapping[int, Process], *, signum: signal.Signals
) -> list[int]:
    """Return the topmost descendants that catch the signal."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        if not process.dead:
            children.setdefault(process.parent, []).append(process.pid)
    found, waiting = [], list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        if not would_die(pid, signum, ignoring_counts=False):
            found.append(pid)
        else:
            waiting.extend(children.get(pid, ()))
    return sorted(found)


def _find_late(
    root: int, processes: Mapping[int, Process], *, found: list[int], signum: signal.Signals
) -> set[str]:
    """Return the ranks of the same launch that have no handler yet: they would miss a common save."""
    own = _variable(root, LAUNCH)
    parents = {processes[pid].parent for pid in found}
    siblings = [one.pid for one in processes.values() if one.parent in parents and not one.dead]
    launched = [pid for pid in siblings if _variable(pid, LAUNCH) not in ("", own)]
    late = (pid for pid in launched if would_die(pid, signum, ignoring_counts=False))
    return {_variable(pid, b"RANK") for pid in late}


def _leaders(found: list[int]) -> list[int]:
    """Return the processes of the lowest rank; all where a rank is unknown."""
    ranks = {pid: _variable(pid, b"RANK") for pid in found}
    if not all(rank.isdigit() for rank in ranks.values()):
        return found
    lowest = min(int(rank) for rank in ranks.values())
    return [pid for pid in found if int(ranks[pid]) == lowest]


def _variable(pid: int, name: bytes) -> str:
    start = name + b"="
    values = (each[len(start) :] for each in read_environment(pid) if each.startswith(start))
    return next(values, b"").decode(errors="replace")

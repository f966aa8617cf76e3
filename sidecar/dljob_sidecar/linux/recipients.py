"""
Selects the processes that get the signal for a checkpoint.

:mod:`dljob_sidecar.checkpoints.requests` passes a process that the SideCar has started. A shell or a
launcher, such as torchrun, has no handler and would end by the signal; then the descendants with a
handler get it. No process gets it while one of them has no handler yet.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dljob_sidecar.linux.family import Process, read_environment, scan

LAUNCH = b"TORCHELASTIC_RUN_ID"
"""The variable with torchrun's launch id in each of its processes."""


class Recipients(NamedTuple):
    """The recipients of the signal, or the reason why there are none."""

    pids: tuple[int, ...] = ()
    fault: str = ""


def find_recipients(root: int, signum: signal.Signals, *, to_all: bool) -> Recipients:
    """Return the process itself, or its topmost descendants with a handler."""
    if catches(root, signum):
        return Recipients((root,))
    processes = scan()
    found = _find_below(root, processes, signum=signum)
    if not found:
        return Recipients(fault=f"the training has no handler for {signum.name}")
    late = _find_late(root, processes, found=found, signum=signum)
    if late:
        ranks = ", ".join(sorted(late))
        return Recipients(fault=f"rank {ranks} has no handler for {signum.name}")
    return Recipients(tuple(found if to_all else _leaders(found)))


def catches(pid: int, signum: signal.Signals) -> bool:
    """Return True if the process has a handler; without one the signal would end it or be lost."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return bool(int(fields.get("SigCgt", "0"), 16) >> (signum - 1) & 1)


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
        if catches(pid, signum):
            found.append(pid)
        else:
            waiting.extend(children.get(pid, ()))
    return sorted(found)


def _find_late(
    root: int, processes: Mapping[int, Process], *, found: list[int], signum: signal.Signals
) -> set[str]:
    """Return ranks of the same launch without a handler, which would miss a common save."""
    own = _variable(root, LAUNCH)
    parents = {processes[pid].parent for pid in found}
    siblings = [one.pid for one in processes.values() if one.parent in parents and not one.dead]
    launched = [pid for pid in siblings if _variable(pid, LAUNCH) not in ("", own)]
    late = (pid for pid in launched if not catches(pid, signum))
    return {_variable(pid, b"RANK") for pid in late}


def _leaders(found: list[int]) -> list[int]:
    """Return the processes of the lowest rank; all if a rank is unknown."""
    ranks = {pid: _variable(pid, b"RANK") for pid in found}
    if not all(rank.isdigit() for rank in ranks.values()):
        return found
    lowest = min(int(rank) for rank in ranks.values())
    return [pid for pid in found if int(ranks[pid]) == lowest]


def _variable(pid: int, name: bytes) -> str:
    start = name + b"="
    values = (each[len(start) :] for each in read_environment(pid) if each.startswith(start))
    return next(values, b"").decode(errors="replace")

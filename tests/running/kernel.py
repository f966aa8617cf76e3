"""Requests of the runner to Linux: orphans become its children, and it ends with its parent."""

import ctypes
import os
import signal
from pathlib import Path

SET_DEATH_SIGNAL = 1
SET_CHILD_SUBREAPER = 36


def _control(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_subreaper() -> None:
    """Adopt every orphan below this process, so that none of them can escape it."""
    _control(SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent dies."""
    _control(SET_DEATH_SIGNAL, signal.SIGTERM)


def unblock_signals() -> None:
    """Give a child the usual signals, regardless of its parent's; for ``preexec_fn``."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def find_children(parent: int) -> list[int]:
    """The processes whose parent is this one, zombies included."""
    return [
        int(place.name)
        for place in Path("/proc").iterdir()
        if place.name.isdecimal() and _parent_of(place) == parent
    ]


def find_descendants(ancestor: int) -> list[int]:
    """All processes below this one, parents before their children."""
    parents = {
        int(place.name): _parent_of(place)
        for place in Path("/proc").iterdir()
        if place.name.isdecimal()
    }
    found = [ancestor]
    for each in found:
        found += [pid for pid, parent in parents.items() if parent == each]
    return found[1:]


def describe_process(pid: int) -> str:
    """One line about a process: its number, its state, where the kernel holds it, and its command."""
    place = Path("/proc") / str(pid)
    try:
        words = place.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state = _fields(place)[0]
        waits = place.joinpath("wchan").read_text().strip("\0") or "-"
    except OSError:
        return f"{pid} has ended"
    return f"{pid} {state} {waits} {words[:160]}"


def _parent_of(place: Path) -> int | None:
    try:
        return int(_fields(place)[1])
    except OSError:
        return None


def _fields(place: Path) -> list[str]:
    # The name of a program is in parentheses and may have any character in it.
    return place.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()

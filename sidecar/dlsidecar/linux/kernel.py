"""
Direct calls of the kernel, without the large parts of the standard library.

The keeper (:mod:`dlsidecar.processes.keeper`) lives as long as the SideCar and does next to nothing. It
imports only this and :mod:`dlsidecar.linux.family`, so that it occupies next to nothing as well.
"""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

outer_proc: int | None = None
"""The folder ``/proc`` of the machine, opened before there is a namespace; None in a container."""

libc = ctypes.CDLL(None, use_errno=True)
# Looked up once and before any fork: between fork and exec nothing may allocate or lock.
_prctl = libc.prctl


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when its parent ends."""
    _prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)


def become_subreaper() -> bool:
    """Become the parent of every orphan among our descendants. PID 1 already is."""
    return os.getpid() == 1 or _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def read_outer(path: str) -> bytes:
    """
    Return the beginning of a file below ``/proc`` of the machine, where processes have the ids that NVML reports.

    Raises OSError where there is no such file, and inside a container, which does not show the machine.
    """
    if outer_proc is None:
        raise FileNotFoundError(path)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=outer_proc)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def give_back_memory() -> None:
    """Return what only the beginning has needed; where the C library keeps none, do nothing."""
    trim = getattr(libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


def send(pid: int, signum: int) -> bool:
    """
    Send a signal; return False where the process is no more.

    A process that we may not signal, because it changed its user, exists all the same.
    """
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

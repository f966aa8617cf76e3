"""
Direct kernel calls, without the large parts of the standard library.

The keeper (:mod:`dljob_sidecar.processes.keeper`) lives as long as the SideCar and imports only this
module and :mod:`dljob_sidecar.linux.family`, to save memory.
"""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

outer_proc: int | None = None
"""The machine's ``/proc``, opened before the namespace exists; None in a container."""

libc = ctypes.CDLL(None, use_errno=True)
# Look the function up before any fork: between fork and exec no code may allocate or lock.
_prctl = libc.prctl


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Make the kernel end this process when its parent ends."""
    _prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)


def become_subreaper() -> bool:
    """Become the parent of orphaned descendants, as PID 1 already is."""
    return os.getpid() == 1 or _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def read_outer(path: str) -> bytes:
    """
    Return the beginning of a file below the machine's ``/proc``, which uses NVML's process ids.

    Raises OSError if the file does not exist, and in a container, which does not show the machine.
    """
    if outer_proc is None:
        raise FileNotFoundError(path)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=outer_proc)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def give_back_memory() -> None:
    """Return free memory to the kernel, if the C library supports that."""
    trim = getattr(libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


def send(pid: int, signum: int) -> bool:
    """
    Send a signal; return False if the process has ended.

    A process that changed its user exists, although it cannot be signalled.
    """
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

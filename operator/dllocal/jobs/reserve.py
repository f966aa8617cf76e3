"""Reserved disk space for the list of jobs, so that a controller starts and jobs can be cancelled
on a full disk.

Every decision is written first, so without this file users could not cancel the jobs that fill the
disk (tests/attack/test_disks.py). :mod:`dllocal.jobs.jobs_file` removes the file when it needs the
space, and creates it again when space is free.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

BYTES: Final = 1 << 20
LEAST_LEFT: Final = 16 * BYTES
"""The free space that the file leaves to other files."""
MOST_FREE: Final = BYTES // 2
"""A disk with more free space is not full."""


class Reserve:
    """The file next to the list of jobs."""

    def __init__(self, beside: Path) -> None:
        self._path = beside.with_name("reserve")

    def make(self) -> None:
        """Take the space if it is free."""
        with contextlib.suppress(OSError):
            if self._path.exists() or self._free() < BYTES + LEAST_LEFT:
                return
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, BYTES)
            except OSError:
                self._path.unlink()
            finally:
                os.close(file)

    def release(self) -> bool:
        """Free the space if the disk is full; return whether a retry can succeed."""
        with contextlib.suppress(OSError):
            if self._free() <= MOST_FREE:
                self._path.unlink()
                return True
        return False

    def _free(self) -> int:
        found = os.statvfs(self._path.parent)
        return found.f_bavail * found.f_frsize

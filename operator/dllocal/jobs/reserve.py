"""
Room on the disk that is kept for the list of jobs, so that jobs can be cancelled where the disk is full.

Every decision is on the disk first. On a full disk no controller could start, and users could not
cancel the jobs that fill it. So a file without content of its own is beside the list;
:mod:`dllocal.jobs.jobs_file` removes it where the disk is full and a controller begins or a job is
cancelled, and makes it again when there is room.
"""

import contextlib
import os
from pathlib import Path

BYTES = 1 << 20
LEAST_LEFT = 16 * BYTES
"""It is not made where it would leave less room to others."""
MOST_FREE = BYTES // 2
"""A disk with more room than this is not full."""


class Reserve:
    """The room beside one file."""

    def __init__(self, beside: Path) -> None:
        self._path = beside.with_name("reserve")

    def make(self) -> None:
        """Take the room, if it is free and not taken yet."""
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
        """Give the room back where the disk is full; tells whether that is worth another attempt."""
        with contextlib.suppress(OSError):
            if self._free() <= MOST_FREE:
                self._path.unlink()
                return True
        return False

    def _free(self) -> int:
        found = os.statvfs(self._path.parent)
        return found.f_bavail * found.f_frsize

"""Reserved disk space and inodes for the list of jobs, so that a controller starts and jobs can be
cancelled on a full disk.

Every decision is written first, so without these files users could not cancel the jobs that fill the
disk (tests/attack/test_disks.py). :mod:`dljob.local.jobs.jobs_file` removes the files when it needs the
space or the inodes, and creates them again when there are enough.
"""

import contextlib
import math
import os
from pathlib import Path
from typing import Final

BYTES: Final = 1 << 20
LEAST_LEFT: Final = 16 * BYTES
"""The free space that the file leaves to other files."""
MOST_FREE: Final = BYTES // 2
"""A disk with more free space is not full."""
INODES: Final = 24
"""The files that keep inodes. A start makes about a dozen: journals, sockets and logs."""
LEAST_INODES_LEFT: Final = 128


class Reserve:
    """The files next to the list of jobs."""

    def __init__(self, beside: Path) -> None:
        self._path = beside.with_name("reserve")
        folder = beside.with_name("reserved-inodes")
        self._inodes = [folder / str(number) for number in range(INODES)]

    def make(self) -> None:
        """Take the space and the inodes if they are free."""
        with contextlib.suppress(OSError):
            space, inodes = self._free()
            if inodes >= INODES + LEAST_INODES_LEFT and not self._inodes[-1].exists():
                self._inodes[0].parent.mkdir(mode=0o700, exist_ok=True)
                for path in self._inodes:
                    path.touch(0o600)
            if self._path.exists() or space < BYTES + LEAST_LEFT:
                return
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, BYTES)
            except OSError:
                self._path.unlink()
            finally:
                os.close(file)

    def release(self) -> bool:
        """Free what the disk lacks, space or inodes; return whether a retry can succeed."""
        with contextlib.suppress(OSError):
            space, inodes = self._free()
            wanted = [self._path] if space <= MOST_FREE else []
            wanted += self._inodes if inodes < INODES else []
            there = [path for path in wanted if path.exists()]
            for path in there:
                path.unlink()
            return bool(there)
        return False

    def _free(self) -> tuple[int, float]:
        """Return the free bytes and inodes; infinite where a file system makes inodes as it needs them."""
        found = os.statvfs(self._path.parent)
        return found.f_bavail * found.f_frsize, found.f_favail if found.f_files else math.inf

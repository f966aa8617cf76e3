"""
What may run out below a training: room on a disk, and processes.

Asked now and then by ``dlsidecar.observing``, and when a training has ended, since it may be why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from dlsidecar.descendants import read_file

CGROUPS = "/sys/fs/cgroup"


def find_full_disk(path: str) -> str:
    """Say that there is no room where a file is written; empty where there is, or nobody knows."""
    if not path:
        return ""
    try:
        disk = os.statvfs(path)
    except OSError:
        return ""
    free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    return "" if free or not disk.f_blocks else f"there is no room left for {path}"


class PidLimit:
    """How many processes the container may have, and how often it wanted more."""

    def __init__(self) -> None:
        self._folder = next(find_pid_folders(), "")
        self._refused = self._count_refused()

    def _count_refused(self) -> int:
        """Return how often a process could not be started since the container was made."""
        if not self._folder:
            return 0
        try:
            words = read_file(f"{self._folder}/pids.events").split()
            return int(words[words.index(b"max") + 1])
        except (OSError, ValueError, IndexError):
            return 0

    def find_shortage(self) -> str:
        """Say that there were too many since this was asked last; empty if there were not."""
        before, self._refused = self._refused, self._count_refused()
        if self._refused <= before:
            return ""
        try:
            limit = read_file(f"{self._folder}/pids.max").decode().strip()
        except OSError:
            limit = "unknown"
        return f"processes cannot be started, because the container has as many as it may: {limit}"


def find_pid_folders() -> Iterator[str]:
    """Yield where the kernel tells of the processes of our control group, in either version."""
    try:
        groups = read_file("/proc/self/cgroup").decode().splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers and "pids" not in controllers.split(","):
            continue
        mount = f"{CGROUPS}/pids" if controllers else CGROUPS
        # Inside a container its own group may be mounted as if it were the first of all.
        for folder in (f"{mount}{path}", mount):
            if os.path.exists(f"{folder}/pids.events"):  # noqa: PTH110
                yield folder

"""
Shortages of resources: disk space, processes, and memory.

``dljob_sidecar.observing.facts`` checks regularly and after an end, which a shortage may explain.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from dljob_sidecar.linux.family import read_file
from dljob_sidecar.observing.file_threads import FileThread
from dljob_sidecar.observing.problems import Problems

CGROUPS = "/sys/fs/cgroup"


def find_full_disk(path: str) -> str:
    """Describe a full disk under the path; empty if there is space or that is unknown."""
    if not path:
        return ""
    try:
        disk = os.statvfs(path)
    except OSError:
        return ""
    free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    return "" if free or not disk.f_blocks else f"there is no room left for {path}"


class Limit:
    """A limit of the container's control group, and how often it was reached."""

    def __init__(self, controller: str, files: tuple[str, ...], word: bytes) -> None:
        """``files`` count the events in either version of control groups, after this word."""
        self._place = next(find_files(controller, files), "")
        self._word = word
        self._count = self._read()

    def _read(self) -> int:
        """Return how often the limit was reached since the container was made."""
        if not self._place:
            return 0
        try:
            words = read_file(self._place).split()
            return int(words[words.index(self._word) + 1])
        except (OSError, ValueError, IndexError):
            return 0

    def was_reached(self) -> bool:
        """Return True if the limit was reached since the last call."""
        before, self._count = self._count, self._read()
        return self._count > before

    def read_limit(self, *names: str) -> str:
        """Return the limit from the first of these files that exists."""
        folder = self._place.rpartition("/")[0]
        found = [name for name in names if os.path.exists(f"{folder}/{name}")]  # noqa: PTH110
        try:
            return read_file(f"{folder}/{found[0]}").decode().strip()
        except (OSError, IndexError):
            return "unknown"


def find_files(controller: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the existing files of the SideCar's control group, in either version."""
    try:
        groups = read_file("/proc/self/cgroup").decode().splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = f"{CGROUPS}/{controller}" if controllers else CGROUPS
        # Inside a container, its own group may be mounted as the root.
        places = [f"{folder}/{name}" for folder in (f"{mount}{path}", mount) for name in names]
        yield from filter(os.path.exists, places)


class ShortageWatch:
    """Reports each shortage as a problem, and clears the problem when the shortage is over."""

    def __init__(self, problems: Problems, *, log_file: str) -> None:
        self._problems = problems
        self._log_file = log_file
        self._pids = Limit("pids", ("pids.events",), b"max")
        self._memory = Limit("memory", ("memory.events", "memory.oom_control"), b"oom_kill")
        self._file_thread = FileThread("disk") if log_file else None
        self._short: set[str] = set()
        """The shortages of the last check."""

    def update(self) -> None:
        message = ""
        if self._pids.was_reached():
            limit = self._pids.read_limit("pids.max")
            message = (
                f"processes cannot be started, because the container has as many as it may: {limit}"
            )
        self._see_shortage("TooManyProcesses", message)
        if self._memory.was_reached():
            limit = self._memory.read_limit("memory.max", "memory.limit_in_bytes")
            most = f"{int(limit) >> 20} MiB" if limit.isdigit() else "that of its node"
            # The container may continue, because the kernel may kill only the training. Keep this
            # problem for the rest of the start.
            self._problems.complain(
                "OutOfMemory",
                f"the kernel killed a process that wanted more memory than the container may have: {most}",
            )
        if self._file_thread is not None:
            self._file_thread.send(
                partial(find_full_disk, self._log_file),
                lambda message, _: self._see_shortage("DiskFull", message),
            )

    def _see_shortage(self, name: str, message: str) -> None:
        if message:
            self._short.add(name)
            self._problems.complain(name, message)
        elif name in self._short:
            self._short.remove(name)
            self._problems.solve(name)

    def close(self) -> None:
        if self._file_thread is not None:
            self._file_thread.close()

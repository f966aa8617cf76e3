"""
The folder in memory: created, emptied and removed.

On one machine it is below ``/dev/shm``, where another user may own this name; in a pod it is a
mount.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable

from dljob_sidecar.checkpoints.checkpoint_files import Snapshot
from dljob_sidecar.checkpoints.copying import remove


class MemoryFolder:
    """The folder of one job in one container."""

    def __init__(self, path: str, limit_bytes: int, read_free: Callable[[], int]) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._read_free = read_free
        self.is_open = False

    def open(self) -> str:
        """Create the folder once; return why it cannot be used. Its contents are not trusted."""
        if self.is_open:
            return ""
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._path, 0o700)  # noqa: PTH102 - as in the other modules of looks
            if not self._is_own():
                return f"{self._path} belongs to another user"
            self._empty()
            free = self._read_free()
        except OSError as error:
            return f"{self._path} cannot be used: {error.strerror}"
        if 0 <= free < self._limit_bytes:
            return (
                f"checkpoint.memory is {in_mebibytes(self._limit_bytes)}, and the container may take"
                f" {in_mebibytes(free)} more"
            )
        self.is_open = True
        return ""

    def close(self) -> None:
        """Remove the folder, including one that an earlier SideCar made."""
        with contextlib.suppress(OSError):
            if self._is_own():
                self._empty()
                os.rmdir(self._path)  # noqa: PTH106 - a mount stays

    def clear(self) -> None:
        """Remove the contents of the folder, if the SideCar owns it."""
        if self.is_open:
            self._empty()

    def keep(self, names: Iterable[str], snapshot: Snapshot) -> None:
        """Remove all other files and emptied folders, because frameworks may look for names."""
        kept = set(names)
        for name in snapshot.files:
            if name not in kept:
                remove(f"{snapshot.root}/{name}")
        for folder in sorted(snapshot.folders, reverse=True):
            if not any(name.startswith(f"{folder}/") for name in kept):
                remove(f"{snapshot.root}/{folder}")

    def _is_own(self) -> bool:
        """Return True if the SideCar owns the folder; a mount belongs to the pod."""
        status = os.lstat(self._path)
        is_ours = status.st_uid == os.geteuid() or os.path.ismount(self._path)
        return stat.S_ISDIR(status.st_mode) and is_ours

    def _empty(self) -> None:
        with contextlib.suppress(OSError), os.scandir(self._path) as entries:
            for entry in entries:
                remove(entry.path)


class MemoryLimit:
    """The memory limit of the folder, and whether it is too small."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.shortage = ""
        """The shortage in words; it stays, because checkpoints seldom shrink."""

    def note(self, total: int, one: int = 0) -> None:
        """Record the size of all files, and of one checkpoint if known."""
        if total > self._limit_bytes:
            self.shortage = (
                f"the training has written {in_mebibytes(total)} to memory, and checkpoint.memory allows"
                f" {in_mebibytes(self._limit_bytes)}; from the next start on it writes to the disk"
            )
        # The next checkpoint needs space in addition, until it is on disk and this one is removed.
        self.shortage = self.shortage or self.find_shortage(one, 0)

    def find_shortage(self, one: int, rest: int) -> str:
        """Describe why two checkpoints of this size and the rest do not fit; empty if they do."""
        if 2 * one + rest <= self._limit_bytes:
            return ""
        others = f" and other files {in_mebibytes(rest)}" if rest else ""
        return (
            f"a checkpoint takes {in_mebibytes(one)}{others}, and two have to fit into the"
            f" {in_mebibytes(self._limit_bytes)} of checkpoint.memory; the next start writes to the disk"
        )


def in_mebibytes(size: int) -> str:
    return f"{size >> 20} MiB"

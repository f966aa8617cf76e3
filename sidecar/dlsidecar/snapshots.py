"""
What lies under the path of the checkpoints, and whether something new does.

Plain looks, sent for by :mod:`dlsidecar.checkpoints` from a thread. Times are compared with each
other only and never with our clock, because the files may lie on a server with one of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MOST_FILES = 20_000
UNFINISHED = re.compile(r"(^|[._-])tmp([._-]|$)|\.(part|partial|temp)$|~$", re.IGNORECASE)
"""How programs name what they are about to rename: seen as still as can be, it is no checkpoint."""


class Mark(NamedTuple):
    """What tells one state of a file from another."""

    inode: int
    size: int
    written_ns: int
    changed_ns: int
    """Also when it was renamed, which its time of writing does not show."""
    names: int

    def is_news_after(self, before: Mark | None) -> bool:
        if before is None or self[:3] != before[:3]:
            return True
        # That another name of it was removed, as old checkpoints are, is a change, too, but no news.
        return self.changed_ns != before.changed_ns and self.names == before.names


@dataclass(frozen=True)
class Snapshot:
    """All files under a path at one moment."""

    root: str
    """The path without symbolic links."""
    files: Mapping[str, Mark]
    is_whole: bool
    """Whether there were few enough to look at all."""

    def has_news_after(self, before: Snapshot) -> bool:
        """Whether a file has come or changed that does not bear the name of something unfinished."""
        return any(
            mark.is_news_after(before.files.get(name)) and not self._is_unfinished(name)
            for name, mark in self.files.items()
        )

    def _is_unfinished(self, name: str) -> bool:
        below = name[len(self.root) :]
        return any(map(UNFINISHED.search, below.strip("/").split("/")))


def take_snapshot(path: str) -> Snapshot:
    root = os.path.realpath(path)
    files: dict[str, Mark] = {}
    waiting, count = [root], 0
    while waiting and count < MOST_FILES:
        for entry in list_folder(waiting.pop()):
            count += 1
            if is_folder(entry):
                waiting.append(entry.path)
                continue
            with contextlib.suppress(OSError):
                files[entry.path] = mark_of(entry.stat())
    return Snapshot(root, files, is_whole=not waiting and count < MOST_FILES)


def mark_of(status: os.stat_result) -> Mark:
    times = status.st_mtime_ns, status.st_ctime_ns
    return Mark(status.st_ino, status.st_size, *times, status.st_nlink)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is one; where the kernel does not tell that with the name, asking can fail."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def list_folder(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []


# --- who writes there ---------------------------------------------------------------------
# Asked of the kernel alone, which knows it without the server of the files.


def is_written_to(root: str, pids: Iterable[int]) -> bool:
    """Whether one of the processes has a file below the root open for writing."""
    return any(writes_below(root, pid) for pid in pids)


def writes_below(root: str, pid: int) -> bool:
    for name in list_descriptors(pid):
        # Between two looks a descriptor may have been closed.
        with contextlib.suppress(OSError, ValueError, IndexError):
            link = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
            if link.startswith(root.rstrip("/") + "/") and opened_for_writing(pid, name):
                return True
    return False


def list_descriptors(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208


def opened_for_writing(pid: int, descriptor: str) -> bool:
    text = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text(encoding="ascii")
    flags = int(text.split("flags:")[1].split()[0], 8)
    return flags & os.O_ACCMODE != os.O_RDONLY

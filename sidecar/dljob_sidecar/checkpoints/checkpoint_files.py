"""
Lists the files under the path of the checkpoints, the new ones among them, and those that are being written.

These are plain reads from a thread; :mod:`dljob_sidecar.checkpoints.recognizing.signs` says which files are a checkpoint. Times of
files are compared with each other. With the clock of this machine they are compared only to count a
file sooner, because the files may lie on a server with a clock of its own.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dljob_sidecar.checkpoints.recognizing.signs import normalise

CLOCK_REALTIME_COARSE = 5
"""The clock of the kernel's file stamps, which Python does not name; it ticks every 1 to 10 ms."""
LONGEST_TICK_SECONDS = 0.1
"""On a suspended virtual machine, the clock can stop for longer than a tick."""
MOST_FILES = 20_000
SET_ASIDE = ".dljob-set-aside"
"""The folder for unreadable checkpoints."""
LEDGER = ".dljob-checkpoints.json"
OURS = frozenset({SET_ASIDE, LEDGER})
"""The SideCar's own files below the path of the checkpoints."""


class Mark(NamedTuple):
    """The values that distinguish one state of a file from another."""

    inode: int
    size: int
    written_ns: int
    changed_ns: int
    """Includes renames, which the modification time does not show."""
    names: int


@dataclass(frozen=True)
class Snapshot:
    """All files under a path at one moment."""

    root: str
    """The path without symbolic links."""
    files: Mapping[str, Mark]
    """The marks by file name below the root."""
    is_whole: bool
    """False if there were too many files to list."""
    folders: frozenset[str] = frozenset()
    unread: str = ""
    """The folder that failed to be listed, with the reason; its files seem to be missing."""

    @property
    def gap(self) -> str:
        """The reason why files may be missing from the snapshot; empty if it is complete."""
        if self.unread or self.is_whole:
            return self.unread
        return f"{self.root} holds more than {MOST_FILES} files"

    def news_after(self, before: Snapshot) -> dict[str, Mark]:
        """Return the new and changed files."""
        news = {}
        for name, mark in self.files.items():
            known = before.files.get(name)
            # The removal of another link, as of an old checkpoint, changes the file's stamp only.
            if (
                known is None
                or mark[:3] != known[:3]
                or (mark.changed_ns != known.changed_ns and mark.names == known.names)
            ):
                news[name] = mark
        return news


def stamp_ns() -> int:
    """Return the time with which the kernel would stamp a file that changes now."""
    return time.clock_gettime_ns(CLOCK_REALTIME_COARSE)


def await_next_stamp() -> int:
    """
    Wait for the next stamp time and return it.

    Files that change later have this stamp or a later one; files that changed before have an
    earlier one. The function does not sleep, because it would wake too late to separate the two.
    """
    before, limit = stamp_ns(), time.monotonic() + LONGEST_TICK_SECONDS
    while (now := stamp_ns()) == before and time.monotonic() < limit:
        pass
    return now if now != before else now + 1


def take_snapshot(path: str, restless: Collection[str] = ()) -> Snapshot:
    """List the files, except those whose names without numbers are ``restless``."""
    root = os.path.realpath(path)
    files: dict[str, Mark] = {}
    folders: set[str] = set()
    waiting, count, unread = [""], 0, ""
    while waiting and count < MOST_FILES:
        folder = waiting.pop()
        try:
            entries = list_folder(f"{root}/{folder}")
        except OSError as error:
            unread = f"{root}/{folder} cannot be listed: {error.strerror}"
            continue
        for entry in entries:
            count += 1
            name = f"{folder}{entry.name}"
            if name in OURS or (restless and normalise(name) in restless):
                continue
            if is_folder(entry):
                waiting.append(f"{name}/")
                folders.add(name)
            elif (mark := mark_of(entry)) is not None:
                files[name] = mark
    is_whole = not waiting and count < MOST_FILES
    return Snapshot(root, files, is_whole, frozenset(folders), unread)


def mark_of(entry: os.DirEntry[str]) -> Mark | None:
    """Return the mark of a regular file; other files never belong to a checkpoint."""
    try:
        status = entry.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    times = status.st_mtime_ns, status.st_ctime_ns
    return Mark(status.st_ino, status.st_size, *times, status.st_nlink)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return True for a folder; False if the kernel fails to answer."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def list_folder(path: str) -> list[os.DirEntry[str]]:
    """List a folder; a missing or unreadable folder, such as lost+found, has no entries."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


# --- who writes there ---------------------------------------------------------------------
# Asked of the kernel alone, which knows it without the server of the files.


def find_written(root: str, pids: Iterable[int]) -> set[str]:
    """Return the files below the root that one of the processes has open for writing."""
    return {name for pid in pids for name in _find_written(root.rstrip("/") + "/", pid)}


def _find_written(root: str, pid: int) -> Iterator[str]:
    descriptors: list[str] = []
    with contextlib.suppress(OSError):
        descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
    for name in descriptors:
        # A descriptor may have been closed meanwhile.
        with contextlib.suppress(OSError, ValueError, IndexError):
            link = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
            if link.startswith(root) and opened_for_writing(pid, name):
                yield link[len(root) :]


def opened_for_writing(pid: int, descriptor: str) -> bool:
    text = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text(encoding="ascii")
    flags = int(text.split("flags:")[1].split()[0], 8)
    return flags & os.O_ACCMODE != os.O_RDONLY

"""
Removes a folder of any depth.

``shutil.rmtree`` of Python 3.11 is recursive and keeps a file open for each level, so that it fails at about 1,000
levels, which any training can make.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

MOST_LEVELS: Final = 64
"""The number of nested folders that are open at once. Deeper ones are moved to the top first."""

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Level(NamedTuple):
    """An open folder."""

    name: str
    file: int
    folders: list[str]
    """The folders in it that are still to be removed."""


class _Removal:
    """One removal, which goes on after errors."""

    def __init__(self) -> None:
        self.levels: list[_Level] = []
        self.error: OSError | None = None

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as error:
            self.error = self.error or error

    def enter(self, name: str) -> None:
        """Open a folder in the last level, and remove its files."""
        file = os.open(name, _FLAGS, dir_fd=self._last_file())
        level = _Level(name, file, [])
        self.levels.append(level)
        with os.scandir(file) as entries:
            found = list(entries)
        for entry in found:
            with self.keeping():
                if entry.is_dir(follow_symlinks=False):
                    level.folders.append(entry.name)
                else:
                    os.unlink(entry.name, dir_fd=file)

    def go_on(self) -> None:
        """Enter the next folder of the last level, or leave that level."""
        level = self.levels[-1]
        if not level.folders:
            self.levels.pop()
            os.close(level.file)
            os.rmdir(level.name, dir_fd=self._last_file())
        elif len(self.levels) < MOST_LEVELS:
            self.enter(level.folders.pop())
        else:
            self._move_up(level.folders.pop(), level)

    def close(self) -> None:
        for level in self.levels:
            os.close(level.file)

    def _last_file(self) -> int | None:
        return self.levels[-1].file if self.levels else None

    def _move_up(self, name: str, level: _Level) -> None:
        """Move a folder to the top, under a name that no user can guess."""
        with contextlib.suppress(OSError):
            # Moving a folder needs the right to write in it, which removing an empty one does not.
            os.rmdir(name, dir_fd=level.file)
            return
        top, moved = self.levels[0], secrets.token_hex(8)
        os.rename(name, moved, src_dir_fd=level.file, dst_dir_fd=top.file)
        top.folders.append(moved)


def remove_tree(path: Path) -> OSError | None:
    """
    Remove as much of a folder as possible; returns the first error.

    It follows no symbolic link, even if a user replaces a folder by one meanwhile: each name is looked up in an open
    folder.
    """
    removal = _Removal()
    try:
        with removal.keeping():
            removal.enter(str(path))
        while removal.levels:
            with removal.keeping():
                removal.go_on()
    finally:
        removal.close()
    return removal.error

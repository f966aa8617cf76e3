"""
Copies a checkpoint, which gets its name when the copy is complete.

A file thread copies between memory and disk (:mod:`dljob_sidecar.checkpoints.memory.cache`). A copy is
made under a temporary name, synced, and renamed. It keeps the times of the original, because their
order shows the latest checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator

from dljob_sidecar.checkpoints.checkpoint_files import Mark, Snapshot
from dljob_sidecar.checkpoints.recognizing.signs import is_within

MAKING = ".dljob.tmp"
"""The suffix of a copy that is being made."""
REPLACED = ".dljob-old.tmp"
"""The suffix of a checkpoint that a newer copy replaces."""
BLOCK_BYTES = 1 << 24


class CannotCopy(Exception):
    """The copy failed; the message gives the reason."""


def copy(
    source: Snapshot, unit: str, *, root: str, goes_on: Callable[[], bool], is_synced: bool
) -> None:
    """
    Copy a file or folder of the source to the same name below ``root``; raise :class:`CannotCopy`.

    The copy fails if a file has changed since the snapshot, or changes during the copy.
    """
    target = f"{root}/{unit}"
    made = target + MAKING
    try:
        remove(made)
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - as in the other modules of looks
        for name in files_of(source, unit):
            place = made + name[len(unit) :]
            os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
            mark = source.files[name]
            _copy_file(
                f"{source.root}/{name}", place, mark=mark, goes_on=goes_on, is_synced=is_synced
            )
        if is_synced:
            for folder, _, _ in os.walk(made, topdown=False):
                _sync_folder(folder)
        # Check again, because syncing takes long, and an empty file has no block to check at.
        _insist_on_going(goes_on, unit)
        _replace(made, target)
        if is_synced:
            # Sync the parent folders up to the root, because some may be new.
            folder = target
            while folder != root:
                folder = os.path.dirname(folder)  # noqa: PTH120
                _sync_folder(folder)
    except (OSError, RecursionError) as error:
        remove(made)
        # `os.makedirs` and `os.walk` recurse for each level.
        fault = error.strerror if isinstance(error, OSError) else "its folders are too deep"
        why = fault or str(error)
        raise CannotCopy(f"{unit} cannot be copied to {root}: {why}") from error
    except CannotCopy:
        remove(made)
        raise


def files_of(snapshot: Snapshot, unit: str) -> list[str]:
    """Return all files of a checkpoint, including files with names of logs."""
    return sorted(name for name in snapshot.files if is_within(name, unit))


def is_copied(source: Snapshot, copied: Snapshot, *, unit: str) -> bool:
    """Return True if the files of both checkpoints have equal names, sizes and times."""
    names = files_of(source, unit)
    return names == files_of(copied, unit) and all(
        _alike(source.files[name], copied.files[name]) for name in names
    )


def repair(snapshot: Snapshot, wanted: Callable[[], bool]) -> None:
    """
    Remove the rest of an interrupted copy, and restore the checkpoint that it was to replace.

    Do so only while that is ``wanted``: later a training may write under these names.
    """
    for name in {*_names_with(snapshot, REPLACED), *_names_with(snapshot, MAKING)}:
        if not wanted():
            return
        place = f"{snapshot.root}/{name}"
        before = place[: -len(REPLACED)]
        if name.endswith(REPLACED) and not os.path.lexists(before):
            with contextlib.suppress(OSError):
                os.rename(place, before)  # noqa: PTH104
        else:
            remove(place)


def remove(path: str) -> None:
    """Remove a file or folder as far as possible."""
    if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
        # rmtree recurses for each level; deeper folders stay.
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.remove(path)  # noqa: PTH107


def _alike(one: Mark, other: Mark) -> bool:
    return (one.size, one.written_ns) == (other.size, other.written_ns)


def _names_with(snapshot: Snapshot, end: str) -> Iterator[str]:
    names = (*snapshot.files, *snapshot.folders)
    yield from (name for name in names if name.endswith(end))


def _copy_file(
    path: str, place: str, *, mark: Mark, goes_on: Callable[[], bool], is_synced: bool
) -> None:
    # Do not block on a path that is no regular file any more.
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(opened, "rb") as file, open(place, "xb") as copied:  # noqa: PTH123
        _insist_on(opened, mark, path=path)
        into = copied.fileno()
        while os.sendfile(into, opened, None, BLOCK_BYTES):
            _insist_on_going(goes_on, path)
        os.fchmod(into, os.fstat(opened).st_mode & 0o777)
        os.utime(into, ns=(mark.written_ns, mark.written_ns))
        if is_synced:
            os.fsync(into)
        _insist_on(file.fileno(), mark, path=path)


def _insist_on_going(goes_on: Callable[[], bool], name: str) -> None:
    if not goes_on():
        raise CannotCopy(f"{name} is not copied, because a newer one is")


def _insist_on(file: int, mark: Mark, *, path: str) -> None:
    """Raise if the file differs from its mark or is being written."""
    status = os.fstat(file)
    if (status.st_ino, status.st_size, status.st_mtime_ns) != mark[:3]:
        raise CannotCopy(f"{path} was changed while it was copied")


def _replace(made: str, target: str) -> None:
    """Rename a copy to its final name, after moving an existing folder away."""
    if not os.path.isdir(target) or os.path.islink(target):  # noqa: PTH112, PTH114
        os.replace(made, target)  # noqa: PTH105
        return
    old = target + REPLACED
    remove(old)
    os.rename(target, old)  # noqa: PTH104
    try:
        os.rename(made, target)  # noqa: PTH104
    except OSError:
        os.rename(old, target)  # noqa: PTH104
        raise
    remove(old)


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

"""
Files that the command writes: whole or not at all.

A run that fails or is interrupted leaves no half of a file behind, and a file that was there
before stays as it was.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dljob.sim.errors import BadInput


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """
    Hand out a path to write to, whose content takes the place of ``path`` when all went well.

    It ends like the real one, for those who look at the suffix. A link is followed, and what is
    no regular file – a pipe, a device – is never replaced but written into.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        yield path
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".dljob-", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        # mkstemp makes files that only the owner may read; give this one the usual rights of a new
        # file.
        mask = os.umask(0)
        os.umask(mask)
        draft.chmod(0o666 & ~mask)
        draft.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    with replacing(path) as draft:
        draft.write_bytes(content)


def check_writable(path: Path) -> None:
    """Find out before a long run, not after it, that its result could not be written."""
    if path.is_dir():
        raise BadInput(path, "is a folder", remedy="name a file")
    folder = next(each for each in path.absolute().parents if each.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise BadInput(path, f"cannot be written in {folder}", remedy="name another folder")


def _unwritable(path: Path, error: OSError) -> BadInput:
    message = f"cannot be written ({error.strerror or error})"
    return BadInput(path, message, remedy="name another place")

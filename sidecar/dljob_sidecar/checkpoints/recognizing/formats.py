"""
Examines whether a file is whole, by its own format and from a few bytes of it.

A full disk or a killed process leaves truncated files that look like whole ones from outside. A
format that ends with an index, or begins with its length, shows a missing part without a read of the
whole file: zip (torch, NumPy's npz, Keras), safetensors, HDF5, JSON and pickle. Other files show only
their size.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Callable, NamedTuple

ZIP_END = b"PK\x05\x06"
ZIP_END_BYTES = 22
LONGEST_COMMENT = 0xFFFF
HDF5 = b"\x89HDF\r\n\x1a\n"
HDF5_IS_OPEN = 1
"""The flag of a file that is open for writing, or whose writer died."""
PICKLE = b"\x80"
OLD_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9"
"""The beginning of files of PyTorch before 1.6, which have no fixed end."""
PICKLE_END = b"."
PICKLES = (".pkl", ".pickle", ".metadata")
"""Names of files that are one pickle; torch.distributed.checkpoint writes the last one."""
LARGEST_JSON = 16 << 20
HEAD_BYTES = 64

CUT_OFF = "ends too early"
PASSING = frozenset(
    {
        errno.EAGAIN,
        errno.EINTR,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""Errors of a process without descriptors or memory, and of an absent file server."""


class Finding(NamedTuple):
    """The result of examining a file."""

    fault: str = ""
    """The fault, as a predicate to the file's name; empty if there is none."""
    is_proven: bool = False
    """True if the format proves that nothing is missing."""
    is_passing: bool = False
    """True if reading failed for a temporary reason, which proves nothing about the file."""


def examine(path: str) -> Finding:
    """Examine the beginning and the end of a file; a file that cannot be opened is faulty."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return _unread(error)
    try:
        return _examine(descriptor, os.path.basename(path))  # noqa: PTH119 - a name, and often
    except OSError as error:
        return _unread(error)
    finally:
        os.close(descriptor)


def _unread(error: OSError) -> Finding:
    return Finding(f"cannot be read ({error.strerror})", is_passing=error.errno in PASSING)


def _examine(file: int, name: str) -> Finding:
    size = os.fstat(file).st_size
    if not size:
        return Finding("is empty")
    head = os.pread(file, HEAD_BYTES, 0)
    test = _find_test(name, head)
    if test is None:
        return Finding()
    return Finding(is_proven=True) if test(file, size, head) else Finding(CUT_OFF)


Test = Callable[[int, int, bytes], bool]


def _find_test(name: str, head: bytes) -> Test | None:
    if head.startswith(b"PK\x03\x04"):
        return _is_whole_zip
    if head.startswith(HDF5):
        return _is_whole_hdf5
    if name.endswith(".safetensors"):
        return _is_whole_safetensors
    if name.endswith(".json"):
        return _is_whole_json
    is_pickle = head.startswith(PICKLE) and not head.startswith(OLD_TORCH)
    if is_pickle and name.endswith(PICKLES):
        return lambda file, size, _: _read_end(file, size, count=1) == PICKLE_END
    return None


def _is_whole_zip(file: int, size: int, _head: bytes) -> bool:
    """Check for the directory, which is the end of a zip file and written last."""
    tail = _read_end(file, size, count=ZIP_END_BYTES + LONGEST_COMMENT)
    at = tail.rfind(ZIP_END)
    if at < 0 or len(tail) - at < ZIP_END_BYTES:
        return False
    return at + ZIP_END_BYTES + int.from_bytes(tail[at + 20 : at + 22], "little") == len(tail)


def _is_whole_safetensors(file: int, size: int, head: bytes) -> bool:
    """Compare the size with the header, which has the number of bytes of the tensors."""
    length = int.from_bytes(head[:8], "little")
    begin = 8 + length
    if len(head) < 8 or begin > size:
        return False
    if length > LARGEST_JSON:
        return True
    try:
        tensors = json.loads(os.pread(file, length, 8))
        ends = (one["data_offsets"][1] for name, one in tensors.items() if name != "__metadata__")
        return begin + max(ends, default=0) == size
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return False


def _is_whole_hdf5(_file: int, size: int, head: bytes) -> bool:
    """Check the length and the flag of an open writer in the superblock."""
    version = head[8] if len(head) == HEAD_BYTES else -1
    at = {0: 40, 1: 44, 2: 28, 3: 28}.get(version)
    if at is None or (version == 3 and head[11] & HDF5_IS_OPEN):
        return False
    return size >= int.from_bytes(head[at : at + 8], "little")


def _is_whole_json(file: int, size: int, _head: bytes) -> bool:
    if size > LARGEST_JSON:
        return _read_end(file, size, count=1024).rstrip().endswith((b"}", b"]"))
    try:
        json.loads(os.pread(file, size, 0))
    except json.JSONDecodeError as error:
        # Some programs write one document per line.
        return error.msg == "Extra data"
    except (ValueError, RecursionError):
        return False
    return True


def _read_end(file: int, size: int, *, count: int) -> bytes:
    begin = max(size - count, 0)
    return os.pread(file, size - begin, begin)

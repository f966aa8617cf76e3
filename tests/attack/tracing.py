"""
A process of ours that is killed at one of its system calls, as the kernel shows them.

:func:`trace` follows all threads of a child by ptrace. Processes that the child starts are not followed: what
it leaves behind lives on as it does after any death.
"""

import contextlib
import ctypes
import os
import platform
import re
import signal
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

_TRACE_ME, _SET_OPTIONS, _SYSCALL, _GET_SYSCALL_INFO = 0, 0x4200, 24, 0x420E
_GOOD_SYSCALLS, _CLONES, _EXIT_KILL = 1, 8, 0x100000
_ALL_CHILDREN = 0x40000000
_INFO = struct.Struct("BxxxIQQQ6Q")
_ENTRY, _EXIT = 1, 2

_NUMBERS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {
        "write": 1,
        "fcntl": 72,
        "flock": 73,
        "fsync": 74,
        "fdatasync": 75,
        "ftruncate": 77,
        "pwrite64": 18,
        "openat": 257,
        "rename": 82,
        "renameat": 264,
        "renameat2": 316,
        "unlink": 87,
        "unlinkat": 263,
        "mkdir": 83,
        "mkdirat": 258,
        "rmdir": 84,
        "chmod": 90,
        "bind": 49,
        "listen": 50,
        "connect": 42,
        "sendto": 44,
        "sendmsg": 46,
        "sendfile": 40,
        "vfork": 58,
        "clone": 56,
        "clone3": 435,
        "kill": 62,
        "fallocate": 285,
        "symlink": 88,
    },
    "aarch64": {
        "write": 64,
        "fcntl": 25,
        "flock": 32,
        "fsync": 82,
        "fdatasync": 83,
        "ftruncate": 46,
        "pwrite64": 68,
        "openat": 56,
        "renameat": 38,
        "renameat2": 276,
        "unlinkat": 35,
        "mkdirat": 34,
        "fchmodat": 53,
        "bind": 200,
        "listen": 201,
        "connect": 203,
        "sendto": 206,
        "sendmsg": 211,
        "sendfile": 71,
        "clone": 220,
        "clone3": 435,
        "kill": 129,
        "fallocate": 47,
        "symlinkat": 36,
    },
}
"""The calls that change what other processes see."""

_NAMES = {number: name for name, number in _NUMBERS.get(platform.machine(), {}).items()}
_OF_PATHS = {"openat": 1, "renameat": 1, "renameat2": 1, "unlinkat": 1, "mkdirat": 1, "fchmodat": 1}
_OF_PATHS |= dict.fromkeys(("rename", "unlink", "mkdir", "rmdir", "chmod", "symlink"), 0)
_OF_FILES = frozenset(
    {
        "write",
        "pwrite64",
        "fsync",
        "fdatasync",
        "ftruncate",
        "fcntl",
        "flock",
        "sendfile",
        "fallocate",
    }
)
_CREATES = os.O_CREAT | os.O_TRUNC
_VARYING = re.compile(r"[0-9a-f]{8,}|[0-9]+")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Call(NamedTuple):
    """A system call, before or after it is done."""

    when: str
    name: str
    what: str
    """The file that it is about, without numbers."""

    def __str__(self) -> str:
        return f"{self.when} {self.name} {self.what}".rstrip()


def is_possible() -> str:
    """Say why system calls cannot be followed here; nothing if they can."""
    if not _NAMES:
        return f"the system calls of {platform.machine()} are not known here"
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            be_traced()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    if not os.WIFSTOPPED(status):
        return "no process may be traced here"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return ""


def be_traced() -> None:
    """Let the parent follow this process from here on."""
    _ptrace(_TRACE_ME, 0)
    os.kill(os.getpid(), signal.SIGSTOP)


def trace(child: int, is_last: Callable[[Call], bool]) -> int:
    """Follow a child that is traced until it ends; returns its status. It dies where ``is_last`` says so."""
    os.waitpid(child, _ALL_CHILDREN)
    _ptrace(_SET_OPTIONS, child, _GOOD_SYSCALLS | _CLONES | _EXIT_KILL)
    _go_on(child)
    while True:
        thread, status = os.waitpid(-1, _ALL_CHILDREN)
        if os.WIFSTOPPED(status):
            _pass(child, thread, status, is_last)
        elif thread == child:
            return status


def _pass(child: int, thread: int, status: int, is_last: Callable[[Call], bool]) -> None:
    signum, event = os.WSTOPSIG(status), status >> 16
    if signum == signal.SIGTRAP | 0x80:
        call = _read_call(thread)
        if call is not None and is_last(call):
            # A call that it is about to make is not made any more.
            os.kill(child, signal.SIGKILL)
        signum = 0
    elif event or signum in (signal.SIGSTOP, signal.SIGTRAP):
        signum = 0
    _go_on(thread, signum)


def _go_on(thread: int, signum: int = 0) -> None:
    # Of a thread that was killed meanwhile, the next wait tells.
    with contextlib.suppress(ProcessLookupError):
        _ptrace(_SYSCALL, thread, signum)


_entered: dict[int, Call] = {}


def _read_call(thread: int) -> Call | None:
    buffer = ctypes.create_string_buffer(_INFO.size + 32)
    try:
        _ptrace(_GET_SYSCALL_INFO, thread, ctypes.addressof(buffer), len(buffer))
    except ProcessLookupError:
        return None
    kind, _, _, _, number, *words = _INFO.unpack_from(buffer)
    if kind == _EXIT:
        before = _entered.pop(thread, None)
        return before._replace(when="after") if before is not None else None
    name = _NAMES.get(number) if kind == _ENTRY else None
    if name is None or (name == "openat" and not words[2] & _CREATES):
        _entered.pop(thread, None)
        return None
    call = _entered[thread] = Call("before", name, _name_file(thread, name, words))
    return call


def _name_file(thread: int, name: str, words: list[int]) -> str:
    try:
        if name in _OF_FILES:
            path = os.readlink(f"/proc/{thread}/fd/{words[0] & 0xFFFFFFFF}")  # noqa: PTH115
        elif name in _OF_PATHS:
            path = _read_text(thread, words[_OF_PATHS[name]])
        else:
            return ""
    except OSError:
        return ""
    return _VARYING.sub("N", path.rpartition("/")[2])


def _read_text(thread: int, place: int) -> str:
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:  # noqa: PTH123
        memory.seek(place)
        return memory.read(256).partition(b"\0")[0].decode(errors="replace")


def _ptrace(request: int, thread: int, data: int = 0, size: int = 0) -> None:
    # The information of a call is the one request whose address is a size.
    where, what = (size, data) if request == _GET_SYSCALL_INFO else (0, data)
    if _libc.ptrace(request, thread, where, what) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

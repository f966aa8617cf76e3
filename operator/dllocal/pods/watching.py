"""
Tells the loop that something about pods may have changed, so that it need not look all the time.

The kernel reports when a SideCar has made or removed its files, and when a process has ended;
timers cover the rest. Each report is only a hint: the loop then checks for itself, and where the
kernel cannot report, it notices the change in its next cycle anyway.
"""

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_CREATED, _DELETED, _MOVED_HERE = 0x100, 0x200, 0x80
_LONGEST_READ = 1 << 16


class PodWatch:
    """Calls ``notify`` on the event loop that it was made on, until it is closed."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._folders: dict[Path, int] = {}
        self._processes: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def sockets(self, folder: Path) -> None:
        """Tell whenever a socket appears in this folder, or its lock, or one vanishes."""
        if folder in self._folders:
            return
        try:
            descriptor = _watch_folder(folder)
        except OSError as error:
            log.warning("changes in %s are seen a little later: %s", folder, error.strerror)
            return
        self._folders[folder] = descriptor
        self._loop.add_reader(descriptor, self._hear_folder, descriptor)

    def forget(self, folder: Path) -> None:
        """Tell nothing more of this folder."""
        descriptor = self._folders.pop(folder, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def processes(self, pids: Iterable[int]) -> None:
        """Tell when one of these ends, and of no others."""
        wanted = set(pids)
        # By number, although the kernel may reuse one: the descriptor of the former
        # process is readable then, and `_hear_end` lets the next cycle watch the new one.
        for pid in self._processes.keys() - wanted:
            self._forget(pid)
        for pid in wanted - self._processes.keys():
            with suppress(OSError):  # It is gone already, and the next cycle will see that.
                # It succeeds also for a child that has ended and is not reaped yet, and the
                # descriptor is readable at once, so that no end before this call is missed.
                descriptor = self._processes[pid] = os.pidfd_open(pid)
                self._loop.add_reader(descriptor, self._hear_end, pid)

    def after(self, seconds: float | None) -> None:
        """Tell once when this time is over, and at no other that was asked for before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._notify)

    def close(self) -> None:
        """Tell nothing more."""
        self.after(None)
        self.processes(())
        for folder in list(self._folders):
            self.forget(folder)

    def _hear_folder(self, descriptor: int) -> None:
        with suppress(BlockingIOError):
            # The data contains the names as plain bytes; nothing else about them matters.
            # A read returns whole records, so that no name is cut. Records that do not fit call this again.
            if b".sock" in os.read(descriptor, _LONGEST_READ):
                self._notify()

    def _hear_end(self, pid: int) -> None:
        # First, because the descriptor stays readable and would call this again and again.
        self._forget(pid)
        self._notify()

    def _forget(self, pid: int) -> None:
        descriptor = self._processes.pop(pid)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)


async def wait_for_end(pid: int) -> None:
    """Return when this process has ended, also if it is not our child."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    # An event loop keeps one callback for a descriptor, so each caller opens its own.
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _watch_folder(path: Path) -> int:
    """Return what can be read whenever something happens there."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    mask = _CREATED | _DELETED | _MOVED_HERE
    if libc.inotify_add_watch(descriptor, os.fsencode(path), mask) < 0:
        number = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(number, os.strerror(number))
    return descriptor

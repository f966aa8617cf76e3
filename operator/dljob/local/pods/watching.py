"""
Notifies the loop of possible changes of pods.

The kernel reports when a SideCar makes or removes its files and when a process ends; timers cover the rest. A report is
only a hint: the loop reads the pods, and without a report notices a change in its next cycle.
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
    """Calls ``notify`` on the event loop that created it, until it is closed."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._folders: dict[Path, int] = {}
        self._processes: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def sockets(self, folder: Path) -> None:
        """Notify when a socket or its lock appears in a folder, or vanishes."""
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
        descriptor = self._folders.pop(folder, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def processes(self, pids: Iterable[int]) -> None:
        """Notify when one of these processes ends; replaces the processes of the last call."""
        wanted = set(pids)
        # If the kernel reuses a number, the descriptor of the former process is readable and `_hear_end` forgets it.
        for pid in self._processes.keys() - wanted:
            self._forget(pid)
        for pid in wanted - self._processes.keys():
            with suppress(OSError):
                # The descriptor of a child that has ended is readable at once, so that no end is missed.
                descriptor = self._processes[pid] = os.pidfd_open(pid)
                self._loop.add_reader(descriptor, self._hear_end, pid)

    def after(self, seconds: float | None) -> None:
        """Notify once after this time; replaces the time of the last call."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._notify)

    def close(self) -> None:
        self.after(None)
        self.processes(())
        for folder in list(self._folders):
            self.forget(folder)

    def _hear_folder(self, descriptor: int) -> None:
        with suppress(BlockingIOError):
            # The data contains the names as plain bytes, and whole records.
            if b".sock" in os.read(descriptor, _LONGEST_READ):
                self._notify()

    def _hear_end(self, pid: int) -> None:
        # The descriptor stays readable.
        self._forget(pid)
        self._notify()

    def _forget(self, pid: int) -> None:
        descriptor = self._processes.pop(pid)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)


async def wait_for_end(pid: int) -> None:
    """Wait for the end of a process, which may not be our child."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    # An event loop has one callback for each descriptor, so each caller opens its own.
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _watch_folder(path: Path) -> int:
    """Return a descriptor that is readable after each change in a folder."""
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

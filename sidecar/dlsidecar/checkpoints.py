"""
Asking the job to save itself, and seeing that it has.

A :class:`Request` is made when the job must stop, and lives until it has told its one outcome or
is cancelled. How long to wait is decided by the machine, not here.

What counts as a confirmation by file: something under the path is there that was not there at the
time of the request, or has changed since; nothing changed any more between two looks; and no
process of the job holds a file there open for writing. Times are not compared with our clock,
because the file may lie on a server with a clock of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from dlsidecar.kernel import send
from dlsidecar.processes import CannotStart, Ended, Reaper, start
from dlsidecar.settings import Confirmation, Saving
from dlwire.messages import MOST_GPUS

MOST_FILES = 20_000
HARMLESS = frozenset({signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT})
"""What ends nobody, with or without a handler."""
UNCONFIRMED = "the training ended before its checkpoint was confirmed"
Files = Mapping[str, "tuple[int, int, int]"]


class Asked(Protocol):
    """A training process, as far as a checkpoint needs to know it."""

    @property
    def pid(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def ended(self) -> Ended | None: ...


class Request:
    """
    One request for a checkpoint.

    ``tell`` hears once how it went: the empty string, or why there will be no checkpoint. It is
    never called from within the constructor.
    """

    period_seconds = 0.1
    settling_seconds = 5.0
    """How long to read on for the word that confirms; on a busy machine the matcher takes a while."""

    def __init__(
        self,
        saving: Saving,
        ranks: Sequence[Asked],
        *,
        environment: Mapping[str, str],
        outputs: tuple[int, int],
        reaper: Reaper,
        members: Callable[[], Iterable[int]],
        is_output_read: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> None:
        self._saving = saving
        self._asked = [one for one in ranks if one.ended is None]
        if not saving.to_all:
            self._asked = self._asked[:1]
        self._environment = environment
        self._outputs = outputs
        self._reaper = reaper
        self._members = members
        self._is_output_read = is_output_read
        self._tell: Callable[[str], None] | None = tell
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.is_settling = False
        """Whether all who were asked have ended, and their last words are still being read."""
        self._calls: list[asyncio.Task[None]] = []
        self._command: int | None = None
        self._before = read_files(saving.path)
        self._last = self._before
        self._ask()
        if saving.confirm is Confirmation.FILE:
            self._timer = self._loop.call_later(self.period_seconds, self._look)

    # --- asking -----------------------------------------------------------------------------

    def _ask(self) -> None:
        if not self._asked:
            self._fail("no training process runs")
        elif self._saving.signal:
            self._signal(signal.Signals[self._saving.signal])
        elif self._saving.command:
            self._start_command()
        elif self._saving.http:
            self._calls = [self._loop.create_task(self._post(one)) for one in self._asked]
        else:
            self._fail("the job does not say how it saves itself")

    def _signal(self, signum: signal.Signals) -> None:
        # A process that has just been started may not have got so far as to expect it.
        if any(would_die(one.pid, signum) for one in self._asked):
            self._fail(f"the training has no handler for {signum.name}, or has not yet")
            return
        for one in self._asked:
            send(one.pid, signum)

    def _start_command(self) -> None:
        out, err = self._outputs
        try:
            self._command = start(
                self._saving.command, env=self._environment, stdout=out, stderr=err
            )
        except CannotStart as error:
            self._fail(str(error))
            return
        self._reaper.watch(self._command, self._command_ended)

    def _command_ended(self, ended: Ended) -> None:
        self._command = None
        if ended.code != 0:
            self._fail(f"the checkpoint command ended with {ended}")
        elif self._saving.confirm is Confirmation.EXIT:
            self._finish("")

    async def _post(self, one: Asked) -> None:
        port, _, path = self._saving.http.partition("/")
        url = f"http://127.0.0.1:{int(port) + one.local_rank}/{path}"
        # The machine's time-out comes first; this one only makes sure that nothing is left.
        limit = self._saving.timeout_seconds + 1
        request = HTTPRequest(
            url, method="POST", body=b"", connect_timeout=limit, request_timeout=limit
        )
        try:
            # All at once: where ranks save together, none answers before the last was asked.
            await AsyncHTTPClient(max_clients=MOST_GPUS).fetch(request)
        except Exception as error:  # noqa: BLE001 - whatever the job answers, or does not
            self._fail(f"POST {url}: {error}")

    # --- hearing ----------------------------------------------------------------------------

    def hear_line(self) -> None:
        """A line of the log matched the expression that confirms."""
        if self._saving.confirm is Confirmation.LOG:
            self._finish("")

    def hear_end(self) -> None:
        """A training process ended."""
        ends = [one.ended for one in self._asked]
        if self._tell is None or not all(ends) or not ends:
            return
        killed = next((one for one in ends if one is not None and one.signal is not None), None)
        if self._saving.confirm is Confirmation.FILE and self._has_news(
            read_files(self._saving.path)
        ):
            self._finish("")
        elif killed is not None:
            self._fail(f"a process that was asked for a checkpoint ended by {killed}")
        elif self._saving.confirm is Confirmation.LOG:
            self.is_settling = True
            self._settle(self._loop.time() + self.settling_seconds)
        elif self._saving.confirm is Confirmation.FILE:
            self._fail(UNCONFIRMED)
        elif not self._saving.command:
            self._finish("")

    def _settle(self, limit: float) -> None:
        """Wait until all that was said has been read; a line that confirms ends this at once."""
        if self._is_output_read() or self._loop.time() > limit:
            self._fail(UNCONFIRMED)
        else:
            self._timer = self._loop.call_later(self.period_seconds / 10, self._settle, limit)

    def _look(self) -> None:
        self._timer = self._loop.call_later(self.period_seconds, self._look)
        now = read_files(self._saving.path)
        is_still = now == self._last
        self._last = now
        if not is_still or not self._has_news(now):
            return
        if not is_written_to(self._saving.path, self._members()):
            self._finish("")

    def _has_news(self, now: Files) -> bool:
        return any(self._before.get(name) != what for name, what in now.items())

    # --- ending -----------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        self._finish(reason or "unknown")

    def _finish(self, reason: str) -> None:
        tell, self._tell = self._tell, None
        self.cancel()
        if tell is not None:
            self._loop.call_soon(tell, reason)

    def cancel(self) -> None:
        """Tell nothing any more."""
        self._tell = None
        self.is_settling = False
        if self._timer is not None:
            self._timer.cancel()
        # Our own call may be what ends us; it is over by itself then.
        current = asyncio.current_task() if self._calls else None
        for call in self._calls:
            if call is not current:
                call.cancel()


def would_die(pid: int, signum: signal.Signals) -> bool:
    """Whether the signal would end the process, because it neither catches nor ignores it."""
    if signum in HARMLESS:
        return False
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    handled = int(fields.get("SigCgt", "0"), 16) | int(fields.get("SigIgn", "0"), 16)
    return not handled >> (signum - 1) & 1


def read_files(path: str) -> Files:
    """Return what lies under a path: inode, size and time of each file."""
    return dict(iter_files(path)) if path else {}


def iter_files(path: str) -> Iterator[tuple[str, tuple[int, int, int]]]:
    waiting, count = [path], 0
    while waiting and count < MOST_FILES:
        for entry in list_folder(waiting.pop()):
            count += 1
            if is_folder(entry):
                waiting.append(entry.path)
                continue
            with contextlib.suppress(OSError):
                status = entry.stat()
                yield entry.path, (status.st_ino, status.st_size, status.st_mtime_ns)


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


def is_written_to(path: str, pids: Iterable[int]) -> bool:
    """Whether one of the processes has a file under the path open for writing."""
    root = str(Path(path).resolve())
    return any(writes_below(root, pid) for pid in pids)


def writes_below(root: str, pid: int) -> bool:
    for entry in list_folder(f"/proc/{pid}/fd"):
        # Between two looks a descriptor may have been closed.
        with contextlib.suppress(OSError, ValueError, IndexError):
            is_below = os.readlink(entry.path).startswith(root.rstrip("/") + "/")  # noqa: PTH115
            if is_below and opened_for_writing(pid, entry.name):
                return True
    return False


def opened_for_writing(pid: int, descriptor: str) -> bool:
    text = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text(encoding="ascii")
    flags = int(text.split("flags:")[1].split()[0], 8)
    return flags & os.O_ACCMODE != os.O_RDONLY

"""
``dljob up --detach``: the same program goes on in the background once it answers.

Called by :mod:`dljob.cli.verbs.server.up`, which forks here when all options are read. The child keeps the terminal's
standard error until the server answers, so that an error reads as it does in the foreground;
then it writes to its log alone. The parent waits for that moment and returns.
"""

import os
import select
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dljob.cli.output.messages import complain, say

READY = b"ready"

NOTICE_S = 10.0
"""The wait after which the command prints what it waits for."""

LAST_LINES = 10
"""The number of log lines that are shown after a failed start."""

FIRST_INHERITED = 3
"""The first file descriptor after standard error."""


@dataclass(frozen=True)
class Child:
    """The background process's own view."""

    pipe: int
    """The parent reads :data:`READY` at the other end, or that this process has ended."""
    log: Path

    def let_go(self) -> None:
        """Write to the log from now on, and let the parent return: the server answers."""
        try:
            kept = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError:
            # A full disk is no reason to end; the log goes on when there is room.
            kept = os.open(os.devnull, os.O_WRONLY)
        os.dup2(kept, sys.stderr.fileno())
        os.close(kept)
        os.write(self.pipe, READY)
        os.close(self.pipe)


@dataclass(frozen=True)
class Parent:
    """The view of the process that the user started, which returns."""

    child: int
    pipe: int
    log: Path
    log_size: int
    """The length of the log before the child, so that only the child's lines are shown."""

    def wait(self) -> int:
        """Wait until the child answers or has ended; returns the exit status of the command."""
        try:
            is_ready = self._read()
        except KeyboardInterrupt:
            os.kill(self.child, signal.SIGTERM)
            os.waitpid(self.child, 0)
            say("Given up; no process is left running.")
            raise
        finally:
            os.close(self.pipe)
        if is_ready:
            return 0
        status = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        if status <= 0:
            ended = f"signal {-status}" if status else "exit status 0"
            complain(f"dljob up has ended ({ended}) before it answered; read its log, {self.log}")
        for line in self._log_lines():
            say(line)
        return status if status > 0 else 1

    def _read(self) -> bool:
        if not select.select([self.pipe], [], [], NOTICE_S)[0]:
            say(f"dljob up does not answer yet; its log is {self.log}. Ctrl-C gives up.")
        return os.read(self.pipe, len(READY)) == READY

    def _log_lines(self) -> list[str]:
        """Return the child's lines in the log, shortened."""
        try:
            with self.log.open("rb") as log:
                # A log that was rotated meanwhile is shorter, and all of it is new.
                log.seek(self.log_size if log.seek(0, os.SEEK_END) >= self.log_size else 0)
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        title = [f"The log, {self.log}, ends with:"] if lines else []
        return [*title, *(f"  {line}" for line in lines[-LAST_LINES:])]


def fork(log: Path) -> Child | Parent:
    """
    Go on as two processes; the child belongs to no terminal and no session of the user.

    To be called before there are threads or an event loop.
    """
    size = log.stat().st_size if log.exists() else 0
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        os.close(writer)
        return Parent(child, reader, log, size)
    # A session of its own: the hang-up of the terminal and Ctrl-C there do not reach it.
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    # Other inherited descriptors would stay open as long as this runs, such as the pipe of a caller
    # that waits for its end.
    for number in sorted(int(each.name) for each in Path("/proc/self/fd").iterdir()):
        if number >= FIRST_INHERITED and number != writer:
            # The folder itself was open while it was read.
            with suppress(OSError):
                os.close(number)
    return Child(writer, log)

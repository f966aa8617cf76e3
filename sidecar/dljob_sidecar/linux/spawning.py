"""
Starting processes and hearing of their end.

Everything that the SideCar starts comes from :func:`start`: training processes, checkpoint
commands, warm spares and our own helper. The one :class:`Reaper` collects every process that ends
below the SideCar, orphans included, because the kernel hands them all to PID 1 or to a subreaper.

Processes that are started here die when we die. With PID 1 the kernel ends all the rest. Elsewhere it sends
SIGKILL at the death of the parent (``PR_SET_PDEATHSIG``), which holds for our direct children only:
not for their children, nor for a set-uid program; for those see :mod:`dljob_sidecar.processes.keeper`.
"""

from __future__ import annotations

import logging
import os
import pkgutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dljob_sidecar.linux.kernel import die_with_parent

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ended:
    """The end of a process: an exit code or a signal; the other one is None."""

    code: int | None
    signal: int | None

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return f"signal {signal.Signals(self.signal).name}"
        except ValueError:
            return f"signal {self.signal}"


class CannotStart(Exception):
    """A command cannot be started; ``reason`` is one word for programs, the text is for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def read_helper(name: str) -> str:
    """
    Return the source of a module that runs in its own process.

    Call this function at startup, because the installed files may be replaced by newer ones.
    """
    source = pkgutil.get_data("dljob_sidecar", name)
    assert source is not None
    return source.decode()


LONGEST_PATH = 400
"""The length at which a PATH is cut in messages."""


def _not_found(name: str, env: Mapping[str, str], *, error: OSError) -> str:
    if "/" in name:
        return f"{name}: {error.strerror}"
    path = env.get("PATH", "")
    shown = path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}…"
    return f"{name}: not found in PATH ({shown})"


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
    pass_fds: Sequence[int] = (),
) -> int:
    """
    Start a command in its own session and return its process id.

    The command is looked up in the PATH of ``env``, as a shell would. The caller must register the
    process with a :class:`Reaper`, because no other code waits for it.
    """
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent()
        # The parent may have died before the prctl call.
        if os.getppid() != parent:
            os._exit(127)

    try:
        process = subprocess.Popen(  # noqa: S603 - the command is the user's own
            list(command),
            env=dict(env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
            # Without preexec_fn, Popen need not copy the SideCar's page tables, which saves much of
            # the cost of a start. Under PID 1, the kernel ends all processes anyway.
            preexec_fn=None if parent == 1 else prepare,  # noqa: PLW1509 - it takes no lock
        )
    except FileNotFoundError as error:
        raise CannotStart("CommandNotFound", _not_found(command[0], env, error=error)) from error
    except PermissionError as error:
        raise CannotStart("CommandNotExecutable", f"{command[0]}: {error.strerror}") from error
    except BlockingIOError as error:
        raise CannotStart("TooManyProcesses", f"{command[0]}: {error.strerror}") from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise CannotStart("CannotStart", f"{command[0]}: {error}") from error
    # The reaper collects the process. Set a code so that Popen never waits for a process id that
    # may belong to another process by then.
    process.returncode = 0
    return process.pid


class Reaper:
    """
    Collects every child that ends, and passes its status to the registered callback.

    :meth:`reap` is called on SIGCHLD. A child without a callback is an orphan of the training and
    is only collected.
    """

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[Ended], None]] = {}
        self.collected = 0
        """The number of collected children; a scan during which it changes is invalid."""

    def watch(self, pid: int, callback: Callable[[Ended], None]) -> None:
        """Call back once when the child ends; call this right after the start."""
        self._callbacks[pid] = callback

    def forget(self, pid: int) -> None:
        """Collect the child as an orphan."""
        self._callbacks.pop(pid, None)

    def reap(self) -> None:
        ends = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self.collected += 1
            ends.append((pid, read_status(status)))
        # The kernel reports ends in the order of the starts. Of simultaneous ends, report a killed
        # process first, because the others may have ended due to its loss.
        for pid, ended in sorted(ends, key=lambda end: end[1].signal is None):
            callback = self._callbacks.pop(pid, None)
            if callback is not None:
                # A failing callback must not lose the other ends, which the kernel reports only
                # once.
                try:
                    callback(ended)
                except Exception:
                    log.exception("hearing of the end of process %d failed", pid)


def read_status(status: int) -> Ended:
    if os.WIFSIGNALED(status):
        return Ended(code=None, signal=os.WTERMSIG(status))
    return Ended(code=os.WEXITSTATUS(status), signal=None)

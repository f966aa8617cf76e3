"""
Servers as processes: started when they serve, stopped, killed, frozen, and never left behind.

They share a process group with a small shell that reads from the tests. When the tests end, even by
a SIGKILL, the kernel closes that pipe, and the shell kills the group. No server has to know of it,
and unlike a death signal of the kernel it does not matter which thread of the tests had started
them.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, Self

from tests.sidecar.drivers import read_state, wait_until

START_SECONDS = 300.0
"""Far more than any of them takes on a machine that has nothing else to do."""
STOP_SECONDS = 60.0
END_SECONDS = 120.0
"""The kernel ends a process that was killed long before."""
LAST_CHARACTERS = 6000
STACKS_SECONDS = 1.0


class Holder(Protocol):
    """Starts processes, and does not let any of them outlive itself."""

    def spawn(
        self, command: Sequence[str | Path], log: Path, environment: dict[str, str] | None = None
    ) -> "subprocess.Popen[bytes]": ...


class Guard:
    """A group of processes that ends with the process that holds it."""

    def __init__(self) -> None:
        # The read ends with a pipe that is closed, and no process ever writes into it.
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", "read nothing; kill -KILL 0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        self._spawned: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def group(self) -> int:
        return self._shell.pid

    def spawn(
        self, command: Sequence[str | Path], log: Path, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in the group, its output added to a file."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=self.group,
            )
        self._spawned.append(process)
        return process

    def close(self) -> None:
        """End every process of the group at once."""
        if self._shell.returncode is None:
            os.killpg(self.group, signal.SIGKILL)
            # This also closes the pipe.
            self._shell.communicate(timeout=END_SECONDS)
            for process in self._spawned:
                process.wait(END_SECONDS)


class Server:
    """A server that keeps its command, and so its port and its data, over restarts."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        guard: Holder,
        log: Path,
        is_ready: Callable[[], bool],
    ) -> None:
        """``is_ready`` is asked again and again while it starts."""
        self._command = command
        self._guard = guard
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None
        self.log = log

    @property
    def name(self) -> str:
        return Path(self._command[0]).name

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, and return when it serves."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start it, and return at once."""
        assert not self.is_running, f"{self.name} is running already"
        self._process = self._guard.spawn(self._command, self.log)

    def wait_until_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if not self.is_running:
                raise RuntimeError(f"{self.name} ended before it served: {self.last_words()}")
            if time.monotonic() > end:
                raise RuntimeError(f"{self.name} does not begin to serve: {self.last_words()}")
            time.sleep(0.02)

    def last_words(self) -> str:
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        code = None if self._process is None else self._process.poll()
        return f"{text[-LAST_CHARACTERS:]}\n" + (
            "it runs" if self.is_running else f"it ended: {code}"
        )

    def ask_for_stacks(self) -> None:
        """Let an operator add the stacks of its threads to its log."""
        if self.is_running:
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(STACKS_SECONDS)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ask it to end, and kill it if it has not done so within these seconds."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_SECONDS)

    def freeze(self) -> None:
        """Let it hold every connection and answer none."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal takes a moment, in which it may still answer.
        wait_until(lambda: read_state(self.pid) in "TZX", what=f"the stop of {self.name}")

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

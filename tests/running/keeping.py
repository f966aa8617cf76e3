"""
Holds one step: starts its command, limits its time, and ends every process that it leaves.

This process is a subreaper, so orphans of the step become its children however they were started. It ends when all of them
have ended, and writes down the processor time that they took together::

    python -m tests.running.keeping LIMIT_S REPORT COMMAND…

Its exit status is that of the command, or 124 when the step ran past its limit.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests import endings
from tests.running import kernel, notes
from tests.running.output import say

OVER_TIME = 124
ENDED = 143
GRACE_S = 5.0
"""After SIGINT, with which pytest still reports what it knows."""
BURIAL_S = 15.0
"""For processes that were killed to vanish; only one that the kernel holds takes longer."""
SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}


@dataclass
class Keeper:
    """The processes of one step."""

    started: float
    limit_s: float
    first: int = 0
    status: int | None = None
    cpu_s: float = 0.0

    def run(self, command: list[str]) -> int:
        """Run the command to its end or to its limit, and leave no process."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            preexec_fn=kernel.unblock_signals,  # noqa: PLW1509 - there are no threads
            process_group=0,
        )
        self.first = process.pid
        result = self._wait()
        # Popen must not wait for a process that was reaped here.
        process.returncode = result
        self._clear()
        return result

    def _wait(self) -> int:
        while True:
            self._reap()
            if self.status is not None:
                return os.waitstatus_to_exitcode(self.status)
            left = self.started + self.limit_s - time.monotonic()
            if left <= 0:
                notes.describe_hang(kernel.find_descendants(os.getpid()), self.limit_s)
                self._interrupt()
                return OVER_TIME
            received = signal.sigtimedwait(SIGNALS, min(left, 60.0))
            if received is not None and received.si_signo != signal.SIGCHLD:
                return ENDED

    def _interrupt(self) -> None:
        """Let pytest report; what does not end by that is killed."""
        os.killpg(self.first, signal.SIGINT)
        end = time.monotonic() + GRACE_S
        while self.status is None and time.monotonic() < end:
            signal.sigtimedwait({signal.SIGCHLD}, 0.2)
            self._reap()

    def _clear(self) -> None:
        """Kill the rest, generation by generation: the children of a killed process become ours."""

        def find() -> list[int]:
            self._reap()
            return kernel.find_children(os.getpid())

        try:
            endings.kill_all(find, seconds=BURIAL_S)
        except TimeoutError as error:
            say(str(error))

    def _reap(self) -> None:
        """Bury what has ended, and count what it took."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.cpu_s += used.ru_utime + used.ru_stime
            if pid == self.first:
                self.status = status


def main(words: list[str]) -> int:
    kernel.become_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    kernel.end_with_parent()
    limit_s, report, *command = words
    keeper = Keeper(time.monotonic(), float(limit_s))
    result = keeper.run(command)
    Path(report).write_text(json.dumps({"cpu_s": keeper.cpu_s}), encoding="utf-8")
    return result if result >= 0 else 128 - result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``dljob`` at a terminal of its own: what is typed goes to it, and what it shows is read."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

LONGEST_S = 60.0
AGAIN_S = 5.0


class Terminal:
    """The command in a new session whose terminal it is, so that Ctrl-C reaches it as a signal."""

    def __init__(self, *arguments: object, cwd: Path, **environment: str) -> None:
        self._leader, follower = pty.openpty()
        script = (
            "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
            "from dlctl.main import main; main()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        )
        os.close(follower)
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._leader)

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def until(self, text: str) -> None:
        """Read until this is shown; it is in the end, or the test fails."""
        end = time.monotonic() + LONGEST_S
        while text not in self.seen:
            assert select.select([self._leader], [], [], max(0.0, end - time.monotonic()))[0], (
                self.seen
            )
            self.seen += os.read(self._leader, 65536).decode()

    def status(self, *, again: str = "") -> int:
        """
        Wait for the end, and return the exit status; what is given is typed again every few seconds.

        Python's input() overlooks a Ctrl-C right between the prompt and its read; a user presses again.
        """
        end, due = time.monotonic() + LONGEST_S, time.monotonic() + AGAIN_S
        while self._process.poll() is None:
            if again and time.monotonic() > due:
                self.type(again)
                due += AGAIN_S
            if select.select([self._leader], [], [], 0.1)[0]:
                self._read_rest()
            assert time.monotonic() < end, self.seen
        return self._process.returncode

    def _read_rest(self) -> None:
        try:
            self.seen += os.read(self._leader, 65536).decode()
        except OSError:
            return

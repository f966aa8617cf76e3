"""``dljob`` at a terminal of its own: what is typed goes to it, and what it shows is read."""

import codecs
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

LONGEST_S = 240.0
AGAIN_S = 20.0
"""Longer than a machine stalls, because what is typed once more may interrupt an answer that is on its way."""


OWN = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
SIZED = {"CI", "COLUMNS", "LINES", "NO_COLOR"}


class Terminal:
    """The command in a new session whose terminal it is, so that Ctrl-C reaches it as a signal."""

    def __init__(
        self,
        *arguments: object,
        cwd: Path,
        columns: int = 0,
        rows: int = 0,
        script: str = "from dljob.cli.main import main; main()",
        words: Sequence[str] = (),
        **environment: str,
    ) -> None:
        """
        Start the command with arguments, or another script of Python, or the words of another program.

        A size of 0 is one that the terminal does not tell; the variables for one are not passed on.
        """
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        python = [sys.executable, "-c", f"{OWN}\n{script}", *map(str, arguments)]
        self._process = subprocess.Popen(
            words or python,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            cwd=cwd,
            env={
                **{name: each for name, each in os.environ.items() if name not in SIZED},
                "PYTHONPATH": os.pathsep.join(sys.path),
                **environment,
            },
        )
        os.close(follower)
        # A character of several bytes may come in two parts.
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)
        os.close(self._leader)

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def until(self, *texts: str) -> None:
        """Read until one of these is shown; it is in the end, or the test fails."""
        end = time.monotonic() + LONGEST_S
        while not any(text in self.seen for text in texts):
            assert select.select([self._leader], [], [], max(0.0, end - time.monotonic()))[0], (
                self.seen
            )
            self.seen += self._decoder.decode(os.read(self._leader, 65536))

    def status(self, *, again: str = "", limit_s: float = LONGEST_S) -> int:
        """
        Wait for the end, and return the exit status; what is given is typed again after a while.

        Python's input() overlooks a Ctrl-C right between the prompt and its read; a user presses again.
        """
        end, due = time.monotonic() + limit_s, time.monotonic() + AGAIN_S
        while self._process.poll() is None:
            if select.select([self._leader], [], [], 0.1)[0]:
                if not self._read():
                    # A closed terminal is ready at once and for ever, and the process ends soon.
                    time.sleep(0.01)
            elif again and time.monotonic() > due:
                self.type(again)
                due += AGAIN_S
            assert time.monotonic() < end, self.seen
        # It may have written its last words right before its end.
        while select.select([self._leader], [], [], 0.0)[0] and self._read():
            pass
        return self._process.returncode

    def _read(self) -> bool:
        """Read what is shown; false: the command has closed the terminal."""
        try:
            shown = os.read(self._leader, 65536)
        except OSError:
            return False
        self.seen += self._decoder.decode(shown)
        return bool(shown)

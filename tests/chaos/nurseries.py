"""Makes the controllers of a world."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Nursery:
    """A process that forks controllers; see :mod:`tests.chaos.controllers`."""

    def __init__(self) -> None:
        path = [str(ROOT), str(ROOT / "operator"), str(ROOT / "sidecar")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.controllers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Unbuffered, because a select would not report a line in the buffer.
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )
        self.pid = 0
        """The living controller's pid, or 0."""

    def bear(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(order)}\n".encode())
        self.pid = int(self._line())

    def wait(self, seconds: float) -> int | None:
        """The exit status of the controller, or None if it lives longer."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        self.pid = 0
        return int(self._line())

    def end(self, signum: int = signal.SIGKILL) -> None:
        # It may have just ended.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def close(self) -> None:
        if self.pid:
            self.end()
        self._process.communicate(timeout=240.0)

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the nursery has ended"
        return line

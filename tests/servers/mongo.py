"""A real server of the MongoDB protocol as a process, to be asked, stopped, killed and started again."""

import os
import selectors
import signal
import subprocess
from pathlib import Path
from typing import Self

from tests.servers.ports import choose_ports

START_SECONDS = 240.0


class MongoServer:
    """
    FerretDB with its data in a folder. It keeps its port over restarts.

    It ends with its standard input, so it never outlives the tests, even if they are killed.
    """

    def __init__(
        self, binary: Path, folder: Path, *, tls: Path | None = None, host: str = "127.0.0.1"
    ) -> None:
        self._binary = binary
        self._data = folder / "data"
        self._log = folder / "log"
        self._tls = tls
        self._process: subprocess.Popen[str] | None = None
        # Not one of the kernel's choice, which clients could have while the server is down.
        self.place = f"{host}:{choose_ports(1, host)[0]}"
        """Where it listens."""
        self._data.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, database: str, options: str = "") -> str:
        return f"mongodb://{self.place}/{database}{options}"

    def start(self) -> None:
        """Start it, and return when it listens."""
        tls = [] if self._tls is None else ["-tls", str(self._tls)]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [self._binary, "-listen", self.place, "-data", str(self._data), *tls],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._wait_until_it_serves()

    def _wait_until_it_serves(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            answers = selector.select(START_SECONDS)
        if not answers or not self._process.stdout.readline():
            self.kill()
            raise RuntimeError(f"it does not begin to serve: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def freeze(self) -> None:
        """Let it hold every connection and answer none."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # The signal takes a moment, in which it may still answer.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

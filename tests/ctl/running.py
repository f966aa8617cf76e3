"""The command as its users run it: in this process where that is enough, else in one of its own."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from dljob.cli.main import run

LONGEST_S = 240.0
"""No law of ours: after this time something hangs."""

TRACES = Path(__file__).parents[1] / "data" / "traces"
HEADER = "job_id,submit_time_s,duration_s,num_gpus\n"
FIVE = HEADER + "0,0,3600,4\n1,60,1800,8\n2,120,600,2\n3,180,7200,4\n4,240,900,1\n"
"""The trace of docs/simulator.md."""


@dataclass(frozen=True)
class Result:
    """The status and the output of a command."""

    status: int
    stdout: str
    stderr: str

    @property
    def data(self) -> Any:
        return json.loads(self.stdout)

    @property
    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.stdout)))


class Command:
    """``dljob`` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Result:
        status = run([str(each) for each in arguments])
        captured = self._capsys.readouterr()
        return Result(status, captured.out, captured.err)


def run_apart(*arguments: object, cwd: Path | None = None, **environment: str) -> Result:
    """Run ``dljob`` in a process of its own."""
    script = "from dljob.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        timeout=10 * LONGEST_S,
    )
    return Result(done.returncode, done.stdout, done.stderr)


class Live:
    """``dljob`` in a process of its own that goes on, and what it prints as it prints it."""

    def __init__(self, *arguments: object) -> None:
        script = "from dljob.cli.main import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            # Else what is read ahead of a line would be missing from the rest.
            bufsize=0,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=LONGEST_S)

    def line(self) -> str:
        """Return the next line; it comes in the end, or the test fails."""
        assert self._process.stdout is not None
        timer = threading.Timer(LONGEST_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        assert line, "it has ended"
        return line.decode()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def rest(self) -> Result:
        """Return its end, and what it printed until then that was not read."""
        out, err = self._process.communicate(timeout=LONGEST_S)
        return Result(self._process.returncode, out.decode(), err.decode())

"""
The notes of pytest and the runner for each other, in a folder of one run that ``DLJOB_TEST_RUN`` names.

Each process of pytest keeps one file with the test that it runs; the first one adds a line for each result.
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from tests.running import kernel
from tests.running.output import say

FOLDER = "DLJOB_TEST_RUN"
STEP = "DLJOB_TEST_STEP"
STACKS_S = 2.0
"""For the processes of pytest to print their stacks."""


@dataclass(frozen=True)
class Running:
    """A test that a process runs."""

    pid: int
    step: str
    test: str
    since: float
    """In seconds of the machine's monotonic clock."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    def __str__(self) -> str:
        return f"{self.test} for {self.seconds:.0f} s"


@dataclass(frozen=True)
class Result:
    """How one phase of a test ended: its set-up, its call or its tear-down."""

    test: str
    phase: str
    outcome: str
    seconds: float
    cpu_s: float
    text: str = ""
    """Why it failed or was skipped."""

    @classmethod
    def read(cls, line: str) -> Self:
        return cls(**json.loads(line))


def folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of this run; none where pytest runs alone."""
    named = environment.get(FOLDER)
    return Path(named) if named else None


def note_running(test: str) -> None:
    """Write down what this process runs now."""
    if place := folder():
        note = Running(os.getpid(), os.environ.get(STEP, ""), test, time.monotonic())
        # In one step, so that no reader sees a half.
        fresh = place / f"running-{os.getpid()}.new"
        fresh.write_text(json.dumps(asdict(note)), encoding="utf-8")
        fresh.replace(place / f"running-{os.getpid()}.json")


def note_idle() -> None:
    if place := folder():
        (place / f"running-{os.getpid()}.json").unlink(missing_ok=True)


def note_result(result: Result) -> None:
    if place := folder():
        with results_file(place, os.environ.get(STEP, "")).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def results_file(place: Path, step: str) -> Path:
    return place / f"results-{step}.jsonl"


def read_results(place: Path, step: str) -> list[Result]:
    file = results_file(place, step)
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [Result.read(line) for line in lines]


def iter_running(place: Path) -> Iterator[Running]:
    """The running tests, longest first; notes of processes that have ended are passed over."""
    found = []
    for file in place.glob("running-*.json"):
        try:
            note: Any = json.loads(file.read_text(encoding="utf-8"))
        except OSError:
            continue
        running = Running(**note)
        if Path("/proc", str(running.pid)).exists():
            found.append(running)
    yield from sorted(found, key=lambda running: running.since)


def describe_hang(processes: list[int], limit_s: float) -> None:
    """Print what a step does that ran past its limit: its tests, their stacks, and its processes."""
    say(f"\nover time: the step took more than {limit_s:.0f} s; it runs")
    place = folder()
    tests = [each for each in iter_running(place) if each.pid in processes] if place else []
    for each in tests:
        say(f"  {each}")
        # The plugin has faulthandler print the stacks of all threads on this signal.
        os.kill(each.pid, signal.SIGQUIT)
    if tests:
        time.sleep(STACKS_S)
    for pid in processes:
        say(f"  {kernel.describe_process(pid)}")

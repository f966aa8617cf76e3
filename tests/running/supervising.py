"""
Runs the steps of a part within its limit, and prints what they print, line by line.

Each step writes to a file, never to a pipe, so that no process that survives it can hold the output of the run open.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.running import kernel, notes
from tests.running.output import say
from tests.running.parts import Lane, Part, Step, environment

HEARTBEAT_S = 60.0
LOOK_S = 0.25
ENDING_S = 15.0
"""For keepers to end their steps, before they are killed with them."""
OVER_TIME = 124


@dataclass
class Done:
    """A step that has ended."""

    step: Step
    status: int
    seconds: float
    cpu_s: float

    @property
    def is_good(self) -> bool:
        # Pytest's 5 means that no test was selected, as in a part without tests of that mark yet.
        return self.status in (0, 5)


class Ended(Exception):
    """The run is to end now; the exit status says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass
class Started:
    """A step that runs: its keeper, and how much of its output was printed."""

    step: Step
    folder: Path
    prefix: str = ""
    printed: int = 0
    begun: float = field(default_factory=time.monotonic)
    keeper: "subprocess.Popen[bytes] | None" = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.step.name}.log"

    def start(self, limit_s: float) -> None:
        command = [sys.executable, "-m", "tests.running.keeping"]
        command += [str(limit_s), str(self.folder / f"{self.step.name}.json"), *self.step.command]
        with self.log.open("ab") as output:
            self.keeper = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                preexec_fn=kernel.unblock_signals,  # noqa: PLW1509 - there are no threads
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        own = {notes.FOLDER: str(self.folder), notes.STEP: self.step.name}
        return dict(os.environ) | environment() | own

    def print_news(self, *, whole: bool = False) -> None:
        """Print the lines that came since; of an unfinished line nothing unless ``whole``."""
        with self.log.open("rb") as file:
            file.seek(self.printed)
            news = file.read()
        end = len(news) if whole else news.rfind(b"\n") + 1
        self.printed += end
        for line in news[:end].decode(errors="replace").splitlines():
            say(f"{self.prefix}{line}")

    def poll(self) -> Done | None:
        """The step as it ended; None while it runs."""
        assert self.keeper is not None
        status = self.keeper.poll()
        if status is None:
            return None
        self.print_news(whole=True)
        report = self.folder / f"{self.step.name}.json"
        used = json.loads(report.read_text())["cpu_s"] if report.exists() else 0.0
        return Done(self.step, status, time.monotonic() - self.begun, used)


@dataclass
class Supervisor:
    """One run of a part."""

    part: Part
    folder: Path
    done: list[Done] = field(default_factory=list)
    running: list[Started] = field(default_factory=list)
    left_out: list[Step] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    built_s: float = 0.0
    """How long the run has done nothing but build, which its limit does not count."""
    beat: float = field(default_factory=time.monotonic)

    def run(self, rounds: Iterable[Sequence[Lane]]) -> None:
        """Run rounds; one that fails to build, or fails lint, is the last."""
        for lanes in rounds:
            self._run_round(lanes)
            if any(not done.is_good and done.step.status != 1 for done in self.done):
                return

    def _run_round(self, lanes: Sequence[Lane]) -> None:
        waiting = [list(lane) for lane in lanes if lane]
        current: dict[int, Started] = {}
        while waiting_now := [n for n, lane in enumerate(waiting) if lane or n in current]:
            for number in waiting_now:
                if number not in current:
                    self._begin_next(waiting[number], number, current, several=len(lanes) > 1)
                elif done := current[number].poll():
                    self.running.remove(current.pop(number))
                    self._take(done, waiting[number])
            self._look()

    def _begin_next(
        self, lane: list[Step], number: int, current: dict[int, Started], *, several: bool
    ) -> None:
        step = lane.pop(0)
        if step.root and os.geteuid() != 0:
            self.left_out.append(step)
            say(f"== {step.name}: left out, because only root can run it")
            return
        started = Started(step, self.folder, f"{step.name}: " if several else "")
        say(f"== {step.name}")
        started.start(step.limit_s if step.building else min(step.limit_s, max(self.left_s, 1.0)))
        current[number] = started
        self.running.append(started)

    def _take(self, done: Done, lane: list[Step]) -> None:
        self.done.append(done)
        verdict = "done" if done.is_good else f"FAILED, exit {done.status}"
        say(
            f"== {done.step.name}: {verdict} in {done.seconds:.0f} s ({done.cpu_s:.0f} s of processor)"
        )
        if not done.is_good and done.step.building:
            lane.clear()

    @property
    def left_s(self) -> float:
        return self.part.limit_s + self.built_s - (time.monotonic() - self.begun)

    def _look(self) -> None:
        """Wait a moment, print what is new, and end a run that is over its limit."""
        before = time.monotonic()
        for started in self.running:
            started.print_news()
        time.sleep(LOOK_S)
        now = time.monotonic()
        if self.running and all(started.step.building for started in self.running):
            self.built_s += now - before
        if now - self.beat > HEARTBEAT_S:
            self.beat = now
            self._print_heartbeat()

    def _print_heartbeat(self) -> None:
        """A line a minute, so that a run that is killed leaves a trail."""
        load = Path("/proc/loadavg").read_text().split()[0]
        steps = ", ".join(started.step.name for started in self.running)
        tests = "; ".join(str(each) for each in list(notes.iter_running(self.folder))[:2])
        since = time.monotonic() - self.begun
        say(f"[{since:5.0f} s, load {load}] {steps}: {tests or '-'}")

    def end(self) -> None:
        """End every step that runs, with all its processes."""
        for started in self.running:
            assert started.keeper is not None
            started.keeper.send_signal(signal.SIGTERM)
        end = time.monotonic() + ENDING_S
        for started in self.running:
            assert started.keeper is not None
            try:
                started.keeper.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                started.keeper.kill()
                started.keeper.wait(5.0)
            started.print_news(whole=True)
        self.running.clear()

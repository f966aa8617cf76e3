"""
Reshapes of a training with checkpoints in files, and kills at random moments.

Tests do a few reshapes of each shape, and ``python -m tests.sidecar.torn`` many.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from dljob_wire.messages import Phase, Saving, State
from tests.sidecar.drivers import HERE, list_pids, read_proc, wait_until
from tests.sidecar.sidecars import SideCar

SAVER = str(HERE / "savers.py")
REAL_SAVER = str(HERE / "real_savers.py")
PATTERNS = {"several": "step-*", "rename": "step-*", "marker": "step-*"}
"""The declared patterns of these shapes; the files of frameworks are recognised."""
COMPLETE = {"several": "auto", "rename": "rename", "marker": "marker"}
SETTLED = (Phase.RUNNING, Phase.FAILED, Phase.EXITED, Phase.STOPPED)
FRAMEWORK = {"framework": "pytorch", "processes": "perGpu"}
"""The port tells a training its generation."""


@dataclass
class Tally:
    """The counts of a job's events."""

    saved: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    checkpoint_seconds: list[float] = field(default_factory=list)


class Job:
    """A job of one shape, over several SideCars if they are killed."""

    def __init__(
        self, folder: Path, token: str, shape: str, *, gap: float, every: int = 100_000, **said: str
    ) -> None:
        self.folder = folder
        self.token = token
        self.path = Path(said.get("path") or folder / "checkpoints")
        self.path.mkdir(exist_ok=True)
        self.journal = folder / "journal"
        self.journal.touch()
        program = (sys.executable, "-S", SAVER)
        if python := said.get("python"):
            program = (python, "-s", REAL_SAVER)
        given = (token, shape, said.get("writes") or str(self.path), str(self.journal))
        self.command = (*program, *given, f"gap={gap}", f"every={every}")
        self.options = {
            **FRAMEWORK,
            "checkpoint.signal": "SIGUSR1",
            "checkpoint.confirm": "file",
            "checkpoint.vet": True,
            "checkpoint.path": str(said.get("watched", self.path)),
            "checkpoint.complete": str(said.get("complete", COMPLETE.get(shape, "auto"))),
            "checkpoint.timeoutSeconds": float(said.get("seconds", "60")),
            "progress.log": r"step (?P<iteration>\d+)",
            **({"checkpoint.files": str(PATTERNS[shape])} if shape in PATTERNS else {}),
            **json.loads(said.get("more", "{}")),
        }
        self.generation = 0
        self.tally = Tally()
        self.sidecar = self.begin()

    def begin(self) -> SideCar:
        sidecar = SideCar(self.folder, self.token, *self.command, options=self.options)
        sidecar.wait_ready()
        return sidecar

    def reshape(self) -> State:
        """Reshape the job, count its checkpoint, and return the state when it trains again."""
        state = self.change()
        if self.generation > 1 and state.change is not None:
            self.tally.saved[state.change.saving.value] += 1
            if state.change.saving is Saving.CONFIRMED:
                self.tally.checkpoint_seconds.append(state.change.checkpoint_seconds)
        return state

    def change(self) -> State:
        """Start the next generation, and wait until it has taken a step."""
        self.generation += 1
        self.sidecar.run(self.generation)
        state = self.sidecar.wait_for(self._is_settled)
        assert state.phase is Phase.RUNNING, self.tell()
        generation = str(self.generation)
        wait_until(lambda: generation in self.read("trains"), what="a step")
        # Before its first reported step a start is not asked for a checkpoint.
        return self.sidecar.wait_for(lambda s: s.progress.begun or s.phase is not Phase.RUNNING)

    def _is_settled(self, state: State) -> bool:
        return state.held_generation == self.generation and state.phase in SETTLED

    def change_under_fire(self, chance: random.Random, longest: float) -> None:
        """Change the job, kill one of its processes at a random moment, and restart it."""
        self.generation += 1
        self.sidecar.run(self.generation)
        time.sleep(chance.uniform(0.0, longest))
        if chance.random() < 0.2:
            self.kill_sidecar()
        else:
            self.kill_training()
        self.change()

    def kill_training(self) -> None:
        phase = self.sidecar.state().phase.value
        for pid in find_trainings(self.token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.tally.kills[f"training while {phase}"] += 1

    def kill_sidecar(self) -> None:
        self.tally.kills[f"SideCar while {self.sidecar.state().phase.value}"] += 1
        self.sidecar.kill()
        self.sidecar.close()
        self.sidecar = self.begin()

    def read(self, word: str) -> list[str]:
        lines = self.journal.read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{word} ")]

    def resumes(self) -> list[int]:
        return [int(step) for step in self.read("resumed")]

    def torn(self) -> list[str]:
        return self.read("torn")

    def tell(self) -> str:
        return f"{self.journal.read_text()}\n{self.sidecar.read_log()}"

    def problems(self) -> dict[str, str]:
        return {problem.name: problem.message for problem in self.sidecar.state().problems}


def find_trainings(token: str) -> list[int]:
    """Return the processes that train, by their command lines."""
    return [
        pid for pid in list_pids() if is_training(read_proc(pid, "cmdline").split(b"\0"), token)
    ]


def is_training(words: list[bytes], token: str) -> bool:
    """Whether a command line is that of a training, and not of its SideCar."""
    return len(words) > 3 and words[2].endswith(b"savers.py") and words[3] == token.encode()

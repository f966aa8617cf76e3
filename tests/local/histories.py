"""
Random histories on one machine: jobs whose checkpoints work, jobs without any, and jobs with broken ones.

``python -m tests.local.histories [--histories 10] [--seed 1]`` is the long run, and :mod:`tests.local.test_trials` has
the short one. Each history has real SideCars and a real controller that wants to reshape its jobs.
The trainings' own logs show what was lost: a start that goes on behind the end of the one before
has lost the rest.

The long run plays each history twice. ``blind`` says of each job ``checkpoint: {trusted: true}``, so that the controller
changes it as if no stop could lose anything, and forecasts without lost work. ``kept`` says nothing of that. The run
fails as soon as a ``kept`` history loses an iteration or stops a job that nothing saves.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from tests.local.ups import Up, going

SAVER = Path(__file__).with_name("saver.py")
KEPT = ("none", "undeclared", "torn", "elsewhere")
"""The jobs whose GPUs nothing may change: no checkpoint of theirs is ever confirmed."""
POLICIES = ("max-min", "afs-l", "foresight")
LOOK_S = 0.25
UNTRIED = ("none", "undeclared")
"""
The jobs that step at one pace: a training that saves itself for a trial waits for its end, as if
that were a stop.
"""
LEAST_LEFT_S = 3.0
"""Forecasts are whole seconds, so that those of a shorter time say nothing."""


@dataclass(frozen=True)
class Planned:
    manner: str
    iterations: int
    after: int
    """How many lines the job before has written when this one comes."""

    def name(self, number: int) -> str:
        return f"{self.manner}-{number}"


@dataclass
class Witness:
    """Looks at the jobs now and then, and notes what is forecast of each."""

    up: Up
    forecasts: list[tuple[str, float, float]] = field(default_factory=list)
    """A job, when it was looked at, and how many seconds it was to take yet."""
    jobs: Mapping[str, Any] = field(default_factory=dict)
    """The status of each job as it was at the last look."""
    looked_at: float = 0.0

    def look(self) -> None:
        if time.time() < self.looked_at + LOOK_S:
            return
        items = self.up.backend.list_jobs().items
        self.looked_at = time.time()
        self.jobs = {item["metadata"]["name"]: item.get("status", {}) for item in items}
        for name, status in self.jobs.items():
            seconds = status.get("progress", {}).get("etaSeconds")
            if status.get("phase") == "Running" and seconds is not None:
                self.forecasts.append((name, self.looked_at, seconds))

    def has_come_so_far(self, path: Path, lines: int) -> bool:
        self.look()
        return len(read(path)) > lines

    def has_completed(self, name: str) -> bool:
        self.look()
        phase = self.jobs.get(name, {}).get("phase")
        assert phase != "Failed", self.jobs[name]
        return bool(phase == "Completed")

    def errors(self) -> Iterator[float]:
        for name, at, seconds in self.forecasts:
            if not name.startswith(UNTRIED):
                continue
            left = datetime.fromisoformat(self.jobs[name]["finishedAt"]).timestamp() - at
            if left >= LEAST_LEFT_S:
                yield abs(seconds / left - 1.0)


@dataclass(frozen=True)
class Outcome:
    losses: Mapping[str, Sequence[int]]
    """For each job how many iterations each of its starts did again, the first left out."""
    errors: Sequence[float]
    """How wrong the forecasts of running jobs that nothing saves were, as shares of the time that was left."""

    @property
    def lost(self) -> int:
        return sum(loss for losses in self.losses.values() for loss in losses)

    @property
    def changes(self) -> int:
        return sum(map(len, self.losses.values()))

    def stopped(self) -> Mapping[str, Sequence[int]]:
        """Which jobs were stopped though nothing saves them."""
        return {name: found for name, found in self.losses.items() if found and not is_good(name)}


def is_good(name: str) -> bool:
    return name.startswith("good")


def draw(seed: int) -> Sequence[Planned]:
    """Four jobs, two of which nothing saves; the next comes while the first two train."""
    chance = random.Random(seed)
    manners = ["good", "good", *chance.sample(KEPT, 2)]
    chance.shuffle(manners)
    return [
        Planned(manner, chance.randrange(400, 800), after=chance.randrange(5, 60))
        for manner in manners
    ]


def play(root: Path, history: Sequence[Planned], policy: str, *, trusted: bool = False) -> Outcome:
    """Submit the jobs as they come, and wait until all have completed."""
    with going(root / "state", "--virtual-gpus", 4, "--policy", policy) as up:
        witness, names = Witness(up), [each.name(number) for number, each in enumerate(history)]
        for number, (name, each) in enumerate(zip(names, history, strict=True)):
            document = job(name, each.manner, root, iterations=each.iterations, trusted=trusted)
            assert up.submit(document).status == 0
            if number < 2:
                journal = root / f"{name}.journal"
                up.until(partial(witness.has_come_so_far, journal, each.after))
        # One after the other, because a blind history does much work again.
        for name in names:
            up.until(partial(witness.has_completed, name))
        losses = {name: lost(read(root / f"{name}.journal")) for name in names}
        return Outcome(losses, list(witness.errors()))


def job(
    name: str, manner: str, root: Path, *, iterations: int, trusted: bool = False
) -> dict[str, Any]:
    folder = root / name / "checkpoints"
    folder.mkdir(parents=True)
    how = "none" if manner == "undeclared" else manner
    words = [how, folder, root / f"{name}.journal", iterations]
    trust = {"trusted": True} if trusted else {}
    checkpoint = {
        "signal": "SIGUSR1",
        "confirm": "file",
        "path": str(folder),
        "complete": "rename",
        # Only what never confirms may time out: on a busy machine a good one takes seconds as well.
        "timeoutSeconds": 60 if manner == "good" else 2,
        "shared": True,
        **trust,
    }
    declared = trust if manner == "undeclared" else checkpoint
    command = [sys.executable, "-S", str(SAVER), *map(str, words)]
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": [1, 2, 4]},
            "training": {"iterations": iterations},
            "processes": "perNode",
            "progress": {"log": r"step (?P<iteration>\d+)"},
            **({"checkpoint": declared} if declared else {}),
            "template": {"spec": {"containers": [{"name": "trainer", "command": command}]}},
        },
    }


def read(journal: Path) -> list[str]:
    return journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []


def lost(lines: Sequence[str]) -> list[int]:
    """How many iterations each start did again, the first left out."""
    losses, last = [], 0
    for line in lines:
        what, _, number = line.partition(" ")
        if what == "begins" and last:
            losses.append(last - int(number))
        last = int(number) if what == "at" else last
    return losses


def main() -> int:
    options = argparse.ArgumentParser(prog="tests.local.histories")
    options.add_argument("--histories", type=int, default=10)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    outcomes: dict[str, list[Outcome]] = {"blind": [], "kept": []}
    for seed in range(given.seed, given.seed + given.histories):
        policy = POLICIES[seed % len(POLICIES)]
        for rule, found in outcomes.items():
            with tempfile.TemporaryDirectory(prefix="dljob-test-") as folder:
                found.append(play(Path(folder), draw(seed), policy, trusted=rule == "blind"))
            say(f"{seed:4d} {policy:10} {describe(rule, found[-1:])}")
        outcome = outcomes["kept"][-1]
        if outcome.lost or outcome.stopped():
            say(f"history {seed}, {policy}: {outcome.losses}")
            return 1
    for rule, found in outcomes.items():
        say(describe(rule, found))
    return 0


def describe(rule: str, outcomes: Sequence[Outcome]) -> str:
    errors = [error for outcome in outcomes for error in outcome.errors]
    wrong = f"{statistics.median(errors):.2f} of {len(errors)}" if errors else "of none"
    return (
        f"{rule:5}: {sum(each.changes for each in outcomes)} changes,"
        f" {sum(each.lost for each in outcomes)} iterations lost,"
        f" {sum(len(each.stopped()) for each in outcomes)} jobs stopped that nothing saves,"
        f" median error of the forecasts {wrong}"
    )


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

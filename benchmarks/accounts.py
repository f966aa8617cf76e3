"""
The sums of `dljob report` on a live run with failures, against the GPUs that there were and the trainings' own accounts.

A ``dljob up`` with eight virtual GPUs gets a new job now and then; each minute a training is killed. The
parts of the report have to add up to eight GPUs times the length of the record. Each training writes down
its steps, so that a second sum says how long which number of GPUs trained, without the steps that were repeated.
"""

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
from _measuring import describe_machine, print_result
from _progress import run, say

from dljob.cli.verbs.watching.record import read_store
from dljob.client.exporting import write_file
from dljob.core.recording.report import By, make_report
from dljob.local.folders import Folders
from tests.local.ups import Up, find_processes, going

GPUS = 8
TRAINING = Path(__file__).with_name("_accounted.py")
USERS = ("ada", "bob", "eve")
MOST_AT_ONCE = 8


class Step(NamedTuple):
    """A step in the account of a training."""

    at: float
    iteration: int
    seconds: float
    gpus: int


def make_job(number: int, folder: Path, *, chance: random.Random) -> Mapping[str, Any]:
    own = folder / f"job-{number}"
    own.mkdir(parents=True)
    iterations = chance.choice((600, 1200, 3000))
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {
            "name": own.name,
            "labels": {"dljob.io/user": chance.choice(USERS)},
        },
        "spec": {
            "gpus": {"options": [1, 2, 4]},
            "framework": "none",
            "processes": "perNode",
            "training": {"iterations": iterations},
            "backoffLimit": 50,
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "checkpoint": {
                "signal": "SIGUSR1",
                "confirm": "file",
                "complete": "rename",
                "shared": True,
                "path": str(own),
            },
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "trainer",
                            "command": [sys.executable, str(TRAINING), str(own), str(iterations)],
                        }
                    ]
                }
            },
        },
    }


def read_account(path: Path) -> Iterator[Step]:
    for line in path.read_text(encoding="utf-8").splitlines():
        at, iteration, seconds, gpus = line.split()
        yield Step(float(at), int(iteration), float(seconds), int(gpus))


def sum_account(path: Path) -> float:
    """Return the GPU-seconds of the steps that no later step has repeated."""
    kept: dict[int, Step] = {step.iteration: step for step in read_account(path)}
    return sum(step.seconds * step.gpus for step in kept.values())


def trouble(up: Up, folder: Path, *, minutes: float, chance: random.Random) -> int:
    """Submit jobs and kill trainings; return how many were killed."""
    end = time.monotonic() + 60 * minutes
    submitted = killed = 0
    kill_at = time.monotonic() + 60
    while time.monotonic() < end:
        jobs = up.backend.list_jobs().items
        unfinished = [job for job in jobs if job["status"]["phase"] not in ("Completed", "Failed")]
        if len(unfinished) < MOST_AT_ONCE and chance.random() < 0.3:
            done = up.submit(make_job(submitted, folder, chance=chance))
            assert done.status == 0, done.stderr
            submitted += 1
        if time.monotonic() >= kill_at:
            kill_at += 60
            killed += _kill_one(folder, chance)
            say(f"{submitted} jobs submitted, {killed} trainings killed")
        time.sleep(chance.uniform(2, 6))
    return killed


def _kill_one(folder: Path, chance: random.Random) -> int:
    # By their command lines, because a training may know itself by the number of a namespace.
    trainings = [
        pid
        for pid in find_processes(folder)
        if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [os.fsencode(TRAINING)]
    ]
    if not trainings:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(trainings), signal.SIGKILL)
    return 1


@click.command(help=__doc__)
@click.option("--minutes", type=click.FloatRange(1), default=5.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--keep", "kept", type=click.Path(path_type=Path), help="Write the record to a file.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, minutes: float, seed: int, kept: Path | None, form: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        root, folder = Path(name, "state"), Path(name, "jobs")
        with going(root, "--cluster", f"1x{GPUS}:A100") as up:
            killed = trouble(up, folder, minutes=minutes, chance=random.Random(seed))
            up.end(signal.SIGINT)
            record = read_store(str(Folders(root).store), 0.0)
            if kept is not None:
                write_file(kept, record, form=None)
        report = make_report(record, By.JOB)
        there = GPUS * (record.header.until - record.begin)
        accounts = {path.parent.name: sum_account(path) for path in folder.glob("*/account")}
    trained = {row.name: row.held.trained for row in report.rows}
    worst = max(accounts, key=lambda job: abs(accounts[job] - trained.get(job, 0.0)))
    whole = sum(accounts.values())
    result = {
        **describe_machine(),
        "minutes": round((record.header.until - record.begin) / 60, 1),
        "jobs": len(report.rows),
        "killed": killed,
        "gpu_seconds": {"there": round(there, 1), "parts": round(report.total, 1)},
        "trained": {"report": round(report.held.trained, 1), "accounts": round(whole, 1)},
        "of_it_in_%": round(100 * (report.held.trained / whole - 1), 2),
        "worst_job": {
            "name": worst,
            "report": round(trained.get(worst, 0.0), 1),
            "account": round(accounts[worst], 1),
        },
        "lost": {
            "to_changes": round(report.held.changing, 1),
            "to_failures": round(report.held.failing, 1),
        },
        "idle_while_waiting": {
            cause or "no decision yet": round(seconds, 1)
            for cause, seconds in report.causes.items()
        },
    }
    print_result(result, form)


if __name__ == "__main__":
    run(main)

"""
How well policies decide about unmeasured jobs, with real processes.

In each draw seven new trainings, each of a type of its own, come within two minutes to a ``dljob up`` with four virtual
GPUs and no profiles. They compute nothing, but load for 15 s, warm up for 10 s at a quarter of their speed after each
start, and save themselves in 2 s. All policies play the same draws, each draw at the same time. A row for each policy:

- mean and p99 of the completion times of all jobs, and how often the processes of a job started;
- ratio: the mean of the first policy over that of this one, a geometric mean over the draws, and the worst of them.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from math import ceil
from pathlib import Path
from statistics import fmean, geometric_mean
from threading import Event
from typing import Any, NamedTuple

import click
from _measuring import describe_machine, print_result
from _progress import attempts, run, say

from tests.local.ups import Up, going

POLICIES = ("foresight", "max-min", "tiresias")
GPUS, OPTIONS = 4, (1, 2, 4)
JOBS, WITHIN_S = 7, 120.0
LENGTH_S = (20.0, 150.0)
"""On one GPU."""
SPEED, SCALING = (0.5, 4.0), (0.5, 1.0)
"""Iterations a second of one GPU, and the power with which that grows."""
LOAD_S, WARM_UP_S, WARM_UP_PACE, SAVE_S = 15.0, 10.0, 0.25, 2.0
TRAINING = Path(__file__).with_name("_newcomer.py")
LIMIT_S = 1200.0
"""Of one draw."""
MOST_LINES = 100
"""Of the history of a job."""


stopping = Event()
"""Set if not all draws are to be played."""


class Newcomer(NamedTuple):
    """The drawn properties of a job."""

    name: str
    at: float
    requested: int
    iterations: int
    speed: float
    scaling: float


class Play(NamedTuple):
    """One draw under one policy."""

    times: Sequence[float]
    starts: Sequence[int]
    loads: Sequence[float]


def draw(seed: int) -> Iterator[Newcomer]:
    chance = random.Random(f"{seed}/newcomers")
    came = [0.0, *sorted(chance.uniform(0.0, WITHIN_S) for _ in range(JOBS - 1))]
    for number, at in enumerate(came):
        requested, seconds = chance.choice(OPTIONS), chance.uniform(*LENGTH_S)
        speed, scaling = chance.uniform(*SPEED), chance.uniform(*SCALING)
        iterations = ceil(seconds * speed)
        yield Newcomer(f"new-{number}", at, requested, iterations, speed, scaling)


def write(job: Newcomer, folder: Path) -> dict[str, Any]:
    """The job as users submit it."""
    numbers = (job.iterations, job.speed, job.scaling, LOAD_S, WARM_UP_S, WARM_UP_PACE, SAVE_S)
    command = [sys.executable, str(TRAINING), str(folder), *(f"{each:g}" for each in numbers)]
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": job.name},
        "spec": {
            "gpus": {"options": list(OPTIONS), "requested": job.requested},
            "framework": "none",
            "processes": "perNode",
            "training": {"iterations": job.iterations},
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "checkpoint": {
                "signal": "SIGUSR1",
                "confirm": "file",
                "complete": "rename",
                "shared": True,
                "path": str(folder),
            },
            "template": {"spec": {"containers": [{"name": "trainer", "command": command}]}},
        },
    }


def play(seed: int, policy: str, *, folder: Path, histories: Path | None) -> Play:
    """Submit each job in its time, and wait for all to end."""
    root = folder / f"{policy}-{seed}"
    jobs, loads = list(draw(seed)), []
    came: dict[str, float] = {}
    ended: dict[str, float] = {}
    with going(root, "--virtual-gpus", GPUS, "--policy", policy) as up:
        began = time.time()
        for _ in attempts(f"draw {seed} has ended under {policy}", LIMIT_S):
            for job in (each for each in jobs[len(came) :] if time.time() >= began + each.at):
                up.backend.create_jobs([write(job, root / "jobs" / job.name)])
                came[job.name] = time.time()
            _note_ended(up, ended)
            loads.append(os.getloadavg()[0])
            if len(ended) == JOBS:
                break
            if stopping.wait(1.0):
                raise click.Abort
        if histories is not None:
            _tell_histories(up, jobs, folder=histories / root.name)
        up.end()
    starts = [_count_lines(root / "jobs" / job.name / "starts") for job in jobs]
    times = [ended[job.name] - came[job.name] for job in jobs]
    say(f"draw {seed} under {policy}: mean {fmean(times):.0f} s, {sum(starts)} starts")
    return Play(times, starts, loads)


def _note_ended(up: Up, ended: dict[str, float]) -> None:
    for item in up.backend.list_jobs().items:
        name, status = item["metadata"]["name"], item["status"]
        if status["phase"] == "Failed":
            raise click.ClickException(f"{name} failed: {status}")
        if status["phase"] == "Completed":
            ended.setdefault(name, time.time())


def _tell_histories(up: Up, jobs: Sequence[Newcomer], *, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        told = {"job": job._asdict(), "history": up.backend.list_history(job.name, MOST_LINES)}
        (folder / f"{job.name}.json").write_text(json.dumps(told, indent=1), encoding="utf-8")


def _count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def sum_up(
    plays: dict[tuple[int, str], Play], seeds: Sequence[int], *, policy: str, first: str
) -> Any:
    own = [plays[seed, policy] for seed in seeds]
    times = sorted(seconds for each in own for seconds in each.times)
    ratios = [fmean(plays[seed, first].times) / fmean(plays[seed, policy].times) for seed in seeds]
    return {
        "policy": policy,
        "draws": len(seeds),
        "mean_s": round(fmean(times), 1),
        "p99_s": round(times[ceil(0.99 * len(times)) - 1], 1),
        "starts_a_job": round(fmean(count for each in own for count in each.starts), 2),
        f"ratio_{first}": round(geometric_mean(ratios), 3),
        f"worst_{first}": round(max(ratios), 3),
        "means_s": [round(fmean(each.times)) for each in own],
    }


@click.command(help=__doc__)
@click.option("--draws", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the first draw.")
@click.option("--policy", "names", multiple=True, default=POLICIES, show_default=True)
@click.option("--at-once", type=click.IntRange(1), default=9, show_default=True, help="Servers.")
@click.option(
    "--histories", type=click.Path(path_type=Path), help="A folder for what dljob history knows."
)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(
    *,
    draws: int,
    seed: int,
    names: tuple[str, ...],
    at_once: int,
    histories: Path | None,
    form: str,
) -> None:
    seeds = range(seed, seed + draws)
    tasks = list(product(seeds, names))
    with tempfile.TemporaryDirectory(prefix="dlb-") as path, ThreadPoolExecutor(at_once) as pool:
        try:
            played = pool.map(
                lambda task: play(*task, folder=Path(path), histories=histories), tasks
            )
            plays = dict(zip(tasks, played, strict=True))
        finally:
            stopping.set()
            pool.shutdown(cancel_futures=True)
    loads = [load for each in plays.values() for load in each.loads]
    machine = {
        **describe_machine(),
        "servers_at_once": at_once,
        "load": {"mean": round(fmean(loads), 1), "max": max(loads)},
    }
    print_result(
        [*(sum_up(plays, seeds, policy=name, first=names[0]) for name in names), machine], form
    )


if __name__ == "__main__":
    run(main)

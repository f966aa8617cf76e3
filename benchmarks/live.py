"""
The pause of a training whose ranks join and leave, with PyTorch's DistributedDataParallel and gloo.

The processes are real: forks of one that has imported PyTorch, as the spares of a SideCar. Stand-ins for the SideCars
declare the changes on their boards (tests/sidecar/live_boards.py), on one container and on two. A pause is from the end of
the last step before a change to the end of the first step after it, less the usual time between the ends of two steps on
the new number of ranks: so it has in it all that newcomers do for the first time. Beside it is what the processes
themselves measured, from entering the boundary to leaving it. Adam's state is twice as large as the parameters.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from _measuring import describe_machine, print_result, summarize
from _progress import ROOT, CannotRun, run, say
from reshape import find_torch

from dljob import training
from tests.sidecar.live_boards import Change, Container, Job, Spares

STEPS_BETWEEN = 6
BOUNDARIES = 20_000
CHANGES = {"4 -> 2": [0, 1], "2 -> 4": [0, 1, -1, -1], "4 -> 1": [0], "1 -> 4": [0, -1, -1, -1]}
"""In this order they begin and end with four ranks."""


class Journal:
    """The steps of all ranks, as the training writes them down."""

    def __init__(self, path: Path) -> None:
        self._rows = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]

    def last(self, step: int) -> float:
        """Return when the last rank had done a step."""
        return float(max(row["ended"] for row in self._rows if row["step"] == step))

    def usual_interval(self, steps: range) -> float:
        return statistics.median(self.last(step + 1) - self.last(step) for step in steps)


def go_around(job: Job, containers: int, count: int) -> Iterator[tuple[str, Change]]:
    """Carry the changes out ``count`` times, with some steps after each."""
    job.wait_for_step(STEPS_BETWEEN)
    for turn in range(1, count + 1):
        for what, members in CHANGES.items():
            say(f"{what}, {turn} of {count}")
            change = job.change(members, [rank % containers for rank in range(len(members))])
            job.wait_for_step(change.at + STEPS_BETWEEN)
            yield what, change


def measure(
    spares: Spares, megabytes: float, containers: int, count: int
) -> Iterator[dict[str, Any]]:
    """Yield what the changes of one training took."""
    found: dict[str, list[tuple[Change, range]]] = {name: [] for name in CHANGES}
    with tempfile.TemporaryDirectory() as name:
        journal = Path(name) / "journal"
        environment = {"LIVE_DDP": json.dumps({"megabytes": megabytes, "pace": 0.01})}
        homes = [rank % containers for rank in range(4)]
        say(f"starts 4 ranks, {megabytes:g} MB, {containers} container(s)")
        with Job(
            Path(name),
            [str(journal)],
            homes,
            environment=environment,
            seconds=120.0,
            spawn=spares,
        ) as job:
            for what, change in go_around(job, containers, count):
                usual = range(change.at + 2, change.at + STEPS_BETWEEN - 1)
                found[what].append((change, usual))
        steps = Journal(journal)
    for what, changes in found.items():
        pauses = [
            steps.last(change.at + 1) - steps.last(change.at) - steps.usual_interval(later)
            for change, later in changes
        ]
        yield {
            "what": f"{what} ranks, {megabytes:g} MB of parameters, {containers} container(s)",
            "changes": len(changes),
            "pause_ms": summarize([1000 * pause for pause in pauses]),
            "boundary_ms": summarize([1000 * max(change.pauses) for change, _ in changes]),
            "usual_interval_ms": round(
                1000 * statistics.median(steps.usual_interval(later) for _, later in changes), 1
            ),
        }


def measure_boundary() -> dict[str, Any]:
    """Measure a boundary at which no change is pending, in this process."""
    with tempfile.TemporaryDirectory() as name:
        container = Container(Path(name) / "container")
        os.environ.update(
            DLJOB_LIVE=str(container.folder),
            DLJOB_LIVE_SLOT="0",
            DLJOB_AGREEMENT=str(container.folder / "agreement"),
            WORLD_SIZE="4",
            LOCAL_WORLD_SIZE="4",
        )
        training.live(training.batches(1000, 10))
        taken = list(time_boundaries())
        container.close()
    return {
        "what": "a boundary between changes, which also answers should_save",
        "boundaries": BOUNDARIES,
        "us": summarize(taken),
        "share_of_a_step_of_100_ms": f"{statistics.median(taken) / 1e5:.4%}",
    }


def time_boundaries() -> Iterator[float]:
    for step in range(1, BOUNDARIES + 1):
        began = time.perf_counter()
        training.boundary(step)
        yield 1e6 * (time.perf_counter() - began)


def read_sizes(_: object, __: object, text: str) -> list[float]:
    return [float(size) for size in text.split(",")]


def choose_python(_: object, __: object, python: str) -> str:
    """Prefer the latest PyTorch that is installed for the tests."""
    installed = [ROOT / ".frameworks" / name / "bin" / "python" for name in ("latest", "pytorch")]
    candidates = [python] if python else [*map(str, filter(Path.exists, installed)), sys.executable]
    return next((each for each in candidates if find_torch(each)), "")


@click.command(help=__doc__)
@click.option(
    "--megabytes",
    default="1,100",
    callback=read_sizes,
    help="Sizes of the parameters; 1000 is 1 GB.",
)
@click.option(
    "--rounds", default=2, show_default=True, help="How often 4 -> 2 -> 4 -> 1 -> 4 is gone."
)
@click.option("--python", default="", callback=choose_python, help="An interpreter with PyTorch.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, megabytes: Sequence[float], rounds: int, python: str, form: str) -> None:
    """Measure one training after the other."""
    if not python:
        raise CannotRun("no PyTorch; make test-frameworks installs one")
    torch = find_torch(python)
    rows = [measure_boundary()]
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}", "OMP_NUM_THREADS": "1"}
    with Spares(python, path) as spares:
        for size in megabytes:
            for containers in (1, 2):
                rows += measure(spares, size, containers, rounds)
    machine = {**describe_machine(), "load": os.getloadavg()[0]}
    print_result([{**row, "torch": torch, "machine": machine} for row in rows], form)


if __name__ == "__main__":
    run(main)

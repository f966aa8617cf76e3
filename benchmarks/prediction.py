"""
How right the time is that ``dljob get`` says a job will still take, after the first 5 % of its iterations.

Jobs replay speeds (examples/replay) with a real controller, real SideCars and real processes, all at
once on GPUs of their own. Half of them are of types that were measured before; of the others nothing
is known but what they show. They are slow and fast, and as long as ``--seconds`` says.

A row a job: the first prediction after 5 % of its iterations, with its range, and how long the job
really took from then. If there is no prediction at 5 %, the benchmark asks again until there is
one; ``told_at`` is the share of the iterations at that time.

With ``--speeds`` no job runs: it is compared how far the speeds that DLJob predicts from the first
two or three numbers of GPUs are from those that were measured, and those that Coach's marginal utility
predicts from the same points. A row a predictor and number of points, over all shipped profiles.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
from _controlling import controlling, until
from _measuring import describe_machine, print_result
from _predictors import compare
from _progress import run
from _replaying import Document, make_document

from dljob.cli.inputs.ending import run_to_the_end
from dljob.client.local.socket_client import SocketClient
from dljob.control.scheduling import Options
from dljob.core.model import JobId, Node
from dljob.core.profiles import JobType, Profile, Speed
from dljob.local.running import Running
from dljob.local.setup import Setup
from dljob.sim import policies
from dljob_lab.demonstrating.script import write_speeds
from dljob_wire.messages import Shape

SHARE, LIMIT = 0.05, 0.10
SPEEDS = (0.5, 2.0, 8.0, 40.0)
"""Iterations a second."""
ASK_EVERY_S = 0.5


class Case(NamedTuple):
    """A job, and whether its type was measured."""

    name: JobId
    kind: JobType
    speed: float
    is_known: bool


@dataclass(frozen=True, slots=True)
class Told:
    """A prediction that a user got."""

    at: float
    fraction: float
    remaining: float
    low: float | None
    high: float | None


CASES = tuple(
    Case(JobId(f"{word}-{speed:g}".replace(".", "-")), JobType(f"{word}-{speed:g}"), speed, known)
    for speed in SPEEDS
    for word, known in (("known", True), ("unknown", False))
)


def make_documents(folder: Path, seconds: float) -> list[Document]:
    """Write the jobs, each of which trains for ``seconds``."""
    table = folder / "speeds.csv"
    write_speeds(table, {(case.kind, 1): case.speed for case in CASES})
    return [
        make_document(
            folder,
            table,
            case.name,
            case.kind,
            iterations=max(1, round(seconds * case.speed)),
            options=(1,),
        )
        for case in CASES
    ]


async def play(setup: Setup, documents: Sequence[Document], seconds: float) -> list[dict[str, Any]]:
    """Submit all at once, ask at 5 %, and compare in the end."""
    async with controlling(setup) as running:
        for document in documents:
            running.registry.submit(document, time.time())
        running.controller.wake(burst=True)
        client = SocketClient(running.folders.socket)
        told = await asyncio.gather(*(_ask(running, client, case.name) for case in CASES))
        entries = running.registry.entries
        await until(
            running,
            lambda: all(running.registry.entries[case.name].status.is_final for case in CASES),
            "all jobs have ended",
            3 * seconds + 60.0,
        )
        entries = running.registry.entries
        ended = [entries[case.name].status.finished_at or 0.0 for case in CASES]
    return [_row(*each) for each in zip(CASES, told, ended, strict=True)]


async def _ask(running: Running, client: SocketClient, job: JobId) -> Told | None:
    """Ask as ``dljob get`` does, until there is a prediction from 5 % on."""
    while not running.registry.entries[job].status.is_final:
        document = await asyncio.to_thread(client.ask, "GET", ("jobs", job))
        progress = document["status"].get("progress", {})
        remaining = progress.get("etaSeconds")
        if progress.get("fraction", 0.0) >= SHARE and remaining is not None:
            bounds = (progress.get(f"eta{end}Seconds") for end in ("Low", "High"))
            return Told(time.time(), progress["fraction"], remaining, *bounds)
        await asyncio.sleep(ASK_EVERY_S)
    return None


def _row(case: Case, told: Told | None, ended: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "job": case.name,
        "type_is_known": case.is_known,
        "iterations_per_s": case.speed,
    }
    if told is None:
        return {**row, "error": None, "is_right": False}
    took = ended - told.at
    error = (told.remaining - took) / took
    return {
        **row,
        "told_at": told.fraction,
        "told_s": told.remaining,
        "from_s": told.low,
        "to_s": told.high,
        "took_s": round(took, 1),
        "error": round(error, 4),
        "is_right": abs(error) <= LIMIT,
    }


def profiles() -> tuple[Profile, ...]:
    """Return the profiles from before."""
    return tuple(
        Profile(case.kind, {Shape(1): Speed(case.speed)}) for case in CASES if case.is_known
    )


@click.command(help=__doc__)
@click.option("--seconds", type=click.FloatRange(min=30.0), default=60.0, show_default=True)
@click.option("--speeds", is_flag=True, help="Compare predictors of speeds instead.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, seconds: float, speeds: bool, form: str) -> None:
    """Measure it."""
    if speeds:
        print_result(list(compare()), form)
        return
    logging.getLogger("dljob.local").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="dljob-prediction-") as path:
        folder = Path(path)
        setup = Setup(
            state=folder / "state",
            nodes=lambda: (Node.of("node", len(CASES)),),
            virtual_gpus=True,
            options=Options(policy=policies.make("fifo")),
            profiles=profiles(),
        )
        rows = run_to_the_end(play(setup, make_documents(folder, seconds), seconds))
    print_result([*rows, {"machine": describe_machine()}], form)


if __name__ == "__main__":
    run(main)

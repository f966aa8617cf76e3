"""
How soon DLJob reacts on one machine: with a real controller, real SideCars and real processes.

A long job trains on both of two GPUs. Short ones are submitted one by one, each when all is quiet.
``submission_to_decision_ms`` is from the first byte of the request at the socket of ``dljob up`` to the
record that gives the short job its GPU; it is on the disk by then. The end of a short job is the
reason to give the long one its GPU back: ``decision_to_run_ms`` is from that record to the SideCar's
acceptance of ``Run``, so it holds the way there and a part of the way back.

All moments are read in this process from one clock (CLOCK_MONOTONIC), so that what else the event
loop has to do counts.
"""

import asyncio
import logging
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import click
from _controlling import controlling, until
from _measuring import describe_machine, print_result, summarize
from _progress import count, run
from _replaying import ENDLESS, SPEEDS, make_document, write_table

from dljob.cli.inputs.ending import run_to_the_end
from dljob.client.local.socket_client import SocketClient
from dljob.control.scheduling import Options
from dljob.control.situation.ports import PodKey
from dljob.core import policies
from dljob.core.model import JobId, Node, Phase
from dljob.local.running import Running
from dljob.local.setup import Setup
from dljob_wire.messages import Run, State

LIMIT_DECISION_MS, LIMIT_RUN_MS = 100.0, 20.0
GPUS = 2
LONG = JobId("long")
KIND = next(iter(SPEEDS))
STEPS = 5
QUIET_S = 0.5
PATIENCE_S = 120.0


class Decided(NamedTuple):
    """A decision: when it was recorded, and for how many GPUs."""

    at: float
    gpus: int


class Stopwatch:
    """Reads the times of decisions and of their effects."""

    def __init__(self) -> None:
        self.decided: dict[tuple[JobId, int], Decided] = {}
        """By the job and the generation of its status."""
        self.accepted: dict[tuple[JobId, int], float] = {}
        """When it was known that a SideCar has this generation as its target."""

    def hear(self, key: PodKey, state: State, _: float) -> None:
        """Take in what a SideCar says."""
        if isinstance(state.target, Run):
            generation = state.target.generation // 2
            self.accepted.setdefault((key.job, generation), time.monotonic())

    async def watch(self, running: Running) -> None:
        """Note each decision when it is recorded, for ever."""
        changes = running.registry.changes
        while True:
            now = time.monotonic()
            for job, entry in running.registry.entries.items():
                status = entry.status
                if status.placement is not None:
                    decided = Decided(now, status.placement.gpus)
                    self.decided.setdefault((job, status.generation), decided)
            await changes.wait(changes.version, 3600.0)


async def measure(setup: Setup, watch: Stopwatch, folder: Path, rounds: int) -> dict[str, Any]:
    """Submit ``rounds`` short jobs."""
    table = write_table(folder)
    decisions: list[float] = []
    async with controlling(setup) as running:
        watching = asyncio.create_task(watch.watch(running))
        client = SocketClient(running.folders.socket)
        await _have_long_job(running, client, folder, table)
        for number in count(range(rounds)):
            decisions.append(await _submit(running, client, watch, folder, f"short-{number}"))
            await until(
                running, lambda: _is_at_rest(running), "the long job has all GPUs", PATIENCE_S
            )
            await asyncio.sleep(QUIET_S)
        watching.cancel()
    runs = _find_runs(watch)
    return {
        "submissions": len(decisions),
        "submission_to_decision_ms": summarize(decisions),
        "is_decided_soon": summarize(decisions)["p99"] < LIMIT_DECISION_MS,
        "changes": len(runs),
        "decision_to_run_ms": summarize(runs),
        "is_told_soon": summarize(runs)["p99"] < LIMIT_RUN_MS,
    }


async def _have_long_job(running: Running, client: SocketClient, folder: Path, table: Path) -> None:
    document = make_document(
        folder, table, LONG, KIND, iterations=ENDLESS, options=(1, GPUS), waits=False
    )
    await asyncio.to_thread(client.ask, "POST", ("jobs",), body=document)
    await until(running, lambda: _is_at_rest(running), "the long job has all GPUs", PATIENCE_S)


async def _submit(
    running: Running, client: SocketClient, watch: Stopwatch, folder: Path, name: str
) -> float:
    """Submit a short job, wait for its end, and return after how many milliseconds it was decided."""
    document = make_document(
        folder, folder / "speeds.csv", name, KIND, iterations=STEPS, options=(1,), waits=False
    )
    began = time.monotonic()
    await asyncio.to_thread(client.ask, "POST", ("jobs",), body=document)
    job = JobId(name)
    await until(
        running,
        lambda: running.registry.entries[job].status.is_final,
        f"{name} has ended",
        PATIENCE_S,
    )
    first = min(decided.at for (who, _), decided in watch.decided.items() if who == job)
    return 1000 * (first - began)


def _is_at_rest(running: Running) -> bool:
    """Return whether the long job trains on all GPUs, as its SideCar says, and no other pod is left."""
    entries = running.registry.entries
    status = entries[LONG].status
    has_all = status.placement is not None and status.placement.gpus == GPUS
    others = [entry for job, entry in entries.items() if job != LONG and entry.status.pods]
    return has_all and status.phase is Phase.RUNNING and status.paused_at is None and not others


def _find_runs(watch: Stopwatch) -> list[float]:
    """The times from decisions to the commands to run for the long job, where it had to wait for nothing."""
    # Where it gives one up, it trains on until the short job is ready to have it.
    return [
        1000 * (watch.accepted[key] - decided.at)
        for key, decided in watch.decided.items()
        if key[0] == LONG and decided.gpus == GPUS and key in watch.accepted
    ]


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, rounds: int, form: str) -> None:
    """Measure it."""
    logging.getLogger("dljob.local").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="dljob-latency-") as path:
        folder, watch = Path(path), Stopwatch()
        setup = Setup(
            state=folder / "state",
            nodes=lambda: (Node.of("node", GPUS),),
            virtual_gpus=True,
            options=Options(policy=policies.make("adaptive")),
            listener=watch.hear,
        )
        result = run_to_the_end(measure(setup, watch, folder, rounds))
    print_result({**result, "machine": describe_machine()}, form)


if __name__ == "__main__":
    run(main)

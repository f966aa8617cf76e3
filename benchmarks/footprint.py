"""
The cost of a SideCar for a machine that trains: memory, processor time, and the time until it is ready.

Processor time is counted by the kernel for all processes of the SideCar (keeper, agent, and the
helper that runs regular expressions), per poll and per line, and then given as the share of one core
at the rate that the limit names. So other load on the machine changes it little. Memory is given
twice: as the sum over all processes, in which shared pages count more than once, and with
each page counted once. The training itself counts in neither.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from _measuring import describe_machine, print_result, summarize
from _progress import count, run
from _sidecars import MODULE, SideCar, count_held, measure_memory, read_processor_seconds

SLEEP = ("sleep", "100000")
EXPRESSION = {"progress.log": r"step (?P<iteration>\d+) loss=(?P<loss>[\d.]+)"}
ALL_DOORS = ("--health", "127.0.0.1:0")
POLLS_PER_S = 1 / 5
LINES_PER_S = 1000
IDLE_S = 3.0

# Each line is written by itself, as a training does that does not keep them back.
LINES = """
import os, sys, time
count, pace = int(sys.argv[1]), float(sys.argv[2])
due = time.monotonic()
for step in range(1, count + 1):
    os.write(1, b"step %d loss=0.5 lr=0.1 images/s=1234 eta 3:04:05\\n" % step)
    due += pace
    time.sleep(max(0.0, due - time.monotonic()))
time.sleep(100000)
"""


def spend(pids: Sequence[int]) -> float:
    return sum(map(read_processor_seconds, pids))


@contextlib.contextmanager
def training(
    program: Sequence[str], options: Mapping[str, Any], *, flags: Sequence[str] = ()
) -> Iterator[tuple[SideCar, list[int]]]:
    """Yield a SideCar with a training that does nothing, and what of it is the SideCar's own."""
    with (
        tempfile.TemporaryDirectory() as name,
        SideCar(Path(name), SLEEP, program=program, options=options, flags=flags) as sidecar,
    ):
        sidecar.wait_ready()
        pids = sidecar.pids()
        sidecar.put(1)
        sidecar.wait_running(1)
        yield sidecar, pids


def measure_starts(program: Sequence[str], count: int) -> dict[str, Any]:
    waits, spent = [], []
    for _ in range(count):
        with (
            tempfile.TemporaryDirectory() as name,
            SideCar(Path(name), SLEEP, program=program) as sidecar,
        ):
            waits.append(sidecar.wait_ready())
            spent.append(spend(sidecar.pids()))
    return {
        "what": "from the start of the process to its first answer",
        "starts": count,
        "ready_s": summarize(waits),
        "limit_s": 0.8,
        "processor_s": summarize(spent),
    }


def measure_residence(
    program: Sequence[str], options: Mapping[str, Any], what: str, *, flags: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the memory while a training runs."""
    with training(program, options, flags=flags) as (_, pids):
        memory = measure_memory(pids)
    return {
        "what": f"memory {what}",
        "resident_mb": memory.once,
        "limit_mb": 45,
        "sum_of_rss_mb": memory.sum_of_rss,
        "processes": len(pids),
    }


def measure_polls(program: Sequence[str], count: int) -> dict[str, Any]:
    """Ask for the state, with a connection for each question."""
    with training(program, EXPRESSION) as (sidecar, pids):
        before = spend(pids)
        for _ in range(count):
            sidecar.state()
        poll = (spend(pids) - before) / count
        before = spend(pids)
        time.sleep(IDLE_S)
        idle = (spend(pids) - before) / IDLE_S
    return {
        "what": "a poll every 5 s",
        "polls": count,
        "core_percent": round(100 * (idle + POLLS_PER_S * poll), 3),
        "limit_percent": 1,
        "ms_per_poll": round(1000 * poll, 3),
        "idle_core_percent": round(100 * idle, 3),
    }


def measure_lines(program: Sequence[str], count: int, *, to_file: bool) -> dict[str, Any]:
    """Print lines one by one, a thousand a second, of which each is progress."""
    with tempfile.TemporaryDirectory() as name:
        options = {**EXPRESSION, **({"logFile": f"{name}/training.log"} if to_file else {})}
        command = [sys.executable, "-S", "-c", LINES, str(count), str(1 / LINES_PER_S)]
        with SideCar(Path(name), command, program=program, options=options) as sidecar:
            sidecar.wait_ready()
            pids = sidecar.pids()
            before, began = spend(pids), time.monotonic()
            sidecar.put(1)
            sidecar.wait_for(lambda s: s.progress.iteration == count, "all lines are read")
            seconds = time.monotonic() - began
            line = (spend(pids) - before) / count
    return {
        "what": f"1,000 lines a second into a {'file' if to_file else 'pipe'}",
        "lines": count,
        "core_percent": round(100 * LINES_PER_S * line, 2),
        "limit_percent": 10,
        "us_per_line": round(1e6 * line, 1),
        "lines_per_s": round(count / seconds),
    }


def measure_reshapes(program: Sequence[str], count: int) -> dict[str, Any]:
    """See what many reshapes leave behind."""
    with training(program, EXPRESSION) as (sidecar, pids):
        before, spent, began = count_held(pids), spend(pids), time.monotonic()
        for generation in range(2, count + 2):
            sidecar.put(generation)
            sidecar.wait_running(generation)
        after = count_held(pids)
        seconds, spent = time.monotonic() - began, spend(pids) - spent
    return {
        "what": "what reshapes leave behind",
        "reshapes": count,
        "new": {key: after[key] - before[key] for key in before},
        "seconds": round(seconds, 1),
        "processor_ms_per_reshape": round(1000 * spent / count, 2),
    }


@click.command(help=__doc__)
@click.option("--starts", default=5, show_default=True)
@click.option("--polls", default=300, show_default=True)
@click.option("--lines", default=3000, show_default=True)
@click.option("--reshapes", default=100, show_default=True, help="The limit is meant for 1000.")
@click.option("--archive", type=click.Path(exists=True), help="The SideCar as one file, instead.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(
    *, starts: int, polls: int, lines: int, reshapes: int, archive: str | None, form: str
) -> None:
    """Measure one after the other, each with SideCars of its own."""
    program = (sys.executable, "-I", "-S", archive) if archive else MODULE
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "starts": lambda: measure_starts(program, starts),
        "memory": lambda: measure_residence(program, {}, "without a helper"),
        "memory with all doors": lambda: measure_residence(
            program, EXPRESSION, "with a helper and all doors", flags=ALL_DOORS
        ),
        "polls": lambda: measure_polls(program, polls),
        "lines": lambda: measure_lines(program, lines, to_file=False),
        "lines into a file": lambda: measure_lines(program, lines, to_file=True),
        "reshapes": lambda: measure_reshapes(program, reshapes),
    }
    rows = [measures[name]() for name in count(tuple(measures))]
    print_result([{**row, "machine": describe_machine()} for row in rows], form)


if __name__ == "__main__":
    run(main)

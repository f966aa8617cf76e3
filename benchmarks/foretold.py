"""
Predictions of "what if" about live jobs, and the times when these jobs then really started and ended.

Each run has a ``dljob up`` with four virtual GPUs and nine jobs that replay measured speeds. When all are submitted, one
thing is changed, such as a priority; just before, the page's question "what if" is asked about it. Then the future as it is is asked
for, again and again while the jobs run. Nothing else comes meanwhile, so that what happens is what was to be foretold. The
record then says when each job had its first GPUs and when it ended.

An error is the time that was foretold less the time that came, in seconds, and as a share of the time that was foretold
for it. Starts of jobs that had GPUs already are not counted, nor ends of jobs that had ended.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import click
from _measuring import describe_machine, print_result
from _progress import run, say, wait_until

from dljob.cli.verbs.server.profiles import open_profiles
from dljob.cli.verbs.watching.record import read_store
from dljob.core.recording.record import Ended, Given, Record
from dljob.local.folders import Folders
from dljob.sim.inputs.shipped import load_shipped
from dljob.store.importing import import_profiles
from tests.local.ups import Up, going, replay

Json = dict[str, Any]

JOBS = 9
ITERATIONS = (90, 140, 45)
"""About 50, 75 and 25 seconds of one GPU."""
FIRST_S = 8.0
"""After all are submitted; then the first of them train."""
AFTER_S = 15.0
"""Between two predictions of a run."""
LIMIT_S = 900.0

QUESTIONS: tuple[Json, ...] = (
    {"job": "job-8", "priority": 10},
    {"job": "job-0", "most": 1},
    {"job": "job-7", "priority": 5},
    {"job": "job-1", "least": 2},
)
"""One of them is asked in each run, and then done."""


class Foretold(NamedTuple):
    """A prediction: when each job starts and ends."""

    at: float
    is_supposed: bool
    """True if one thing was different from what was then."""
    starts: Mapping[str, float]
    ends: Mapping[str, float]


def predict(up: Up, question: Json) -> Foretold:
    """Ask as the page does; with a question, for the future in which it is so."""
    at = time.time()
    told = up.backend.what_if(question)
    future = told["futures"][1 if question else 0]
    return Foretold(
        at,
        bool(question),
        {job["job"]: at + job["spans"][0] for job in future["jobs"] if job["spans"]},
        {
            job["job"]: at + job["endsInSeconds"]
            for job in future["jobs"]
            if job["endsInSeconds"] is not None
        },
    )


def change(up: Up, question: Json) -> None:
    """Do what a question supposes."""
    document = up.backend.get_job(question["job"])
    spec = document["spec"]
    if "priority" in question:
        spec["priority"] = question["priority"]
    else:
        least, most = question.get("least", 1), question.get("most", 4)
        options = [each for each in spec["gpus"]["options"] if least <= each <= most]
        spec["gpus"] = {"options": options}
    up.backend.replace_job(document)


def play(folder: Path, question: Json, predictions: int) -> Iterator[Json]:
    """Have one run; yields an error for each start and each end that was foretold."""
    root = folder / "state"
    root.mkdir(parents=True)
    with open_profiles(str(Folders(root).store), None) as store:
        import_profiles(store, load_shipped().values(), instead=False)
    with going(root, "--cluster", "1x4:A100") as up:
        jobs = [
            replay(f"job-{number}", root, iterations=ITERATIONS[number % 3], faster=1.0)
            for number in range(JOBS)
        ]
        say("submits jobs, and asks again and again when each will start and end")
        up.submit(*jobs)
        time.sleep(FIRST_S)
        foretold = [predict(up, question)]
        change(up, question)
        while len(foretold) < predictions:
            time.sleep(AFTER_S)
            foretold.append(predict(up, {}))
        _wait_for_end(up)
        record = read_store(str(Folders(root).store), 0.0)
        up.end()
    for each in foretold:
        yield from _compare(each, record)


def _wait_for_end(up: Up) -> None:
    def have_ended() -> bool:
        jobs = up.backend.list_jobs().items
        return all(job["status"]["phase"] in ("Completed", "Failed") for job in jobs)

    wait_until(have_ended, "all jobs have ended", limit_s=LIMIT_S, every_s=1.0)


def _compare(foretold: Foretold, record: Record) -> Iterator[Json]:
    started: dict[str, float] = {}
    ended: dict[str, float] = {}
    for line in record.lines:
        if isinstance(line, Given) and line.placement is not None:
            started.setdefault(line.job, line.at)
        elif isinstance(line, Ended):
            ended[line.job] = line.at
    for what, told, came in (
        ("start", foretold.starts, started),
        ("end", foretold.ends, ended),
    ):
        for job, at in told.items():
            if job in came and came[job] > foretold.at:
                yield {
                    "what": what,
                    "supposed": foretold.is_supposed,
                    "error_s": at - came[job],
                    "ahead_s": came[job] - foretold.at,
                }


def sum_up(errors: list[Json]) -> list[Json]:
    """Make a row for starts and ends, of futures as it is and of those that were supposed."""
    rows = []
    for what in ("start", "end"):
        for supposed in (False, True):
            chosen = [
                each for each in errors if each["what"] == what and each["supposed"] == supposed
            ]
            if chosen:
                rows.append(_row(what, chosen, supposed=supposed))
    return rows


def _row(what: str, chosen: list[Json], *, supposed: bool) -> Json:
    sizes = sorted(abs(each["error_s"]) for each in chosen)
    return {
        "foretold": f"{what}s, {'if one thing is different' if supposed else 'as it is'}",
        "number": len(chosen),
        "ahead_s": round(fmean(each["ahead_s"] for each in chosen), 1),
        "error_s": {
            "median": round(median(sizes), 1),
            "p90": round(sizes[int(0.9 * (len(sizes) - 1))], 1),
            "max": round(sizes[-1], 1),
        },
        "mean_error_s": round(fmean(each["error_s"] for each in chosen), 1),
        "error_share": round(
            sum(sizes) / sum(each["ahead_s"] for each in chosen),
            3,
        ),
    }


@click.command(help=__doc__)
@click.option("--runs", type=click.IntRange(1, len(QUESTIONS)), default=1, show_default=True)
@click.option("--predictions", type=click.IntRange(1), default=5, show_default=True)
@click.option("--at-once", type=click.IntRange(1), default=1, show_default=True, help="Runs.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, runs: int, predictions: int, at_once: int, form: str) -> None:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as pool:
        played = pool.map(
            lambda number: list(play(Path(folder) / str(number), QUESTIONS[number], predictions)),
            range(runs),
        )
        errors = [each for run in played for each in run]
    print_result([{**describe_machine(), "predictions": runs * predictions}, *sum_up(errors)], form)


if __name__ == "__main__":
    run(main)

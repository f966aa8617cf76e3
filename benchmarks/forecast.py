"""
How well it is foreseen when a training will have reached its target, from its own log so far.

Plays real learning curves (tests/data/learning) up to a share of the iterations that each target
took in fact, asks :func:`dljob.core.predicting.learning_curves.predict_iterations`, and compares. The targets are 80, 90 and
95 % of all that the training learnt. A row an application and share: the median error, the median of
the stated confidence, and how often the truth was within the stated range.
"""

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
from _measuring import draw_rows, print_result
from _progress import count, run

from dljob.core.model import Direction, Target
from dljob.core.predicting.learning_curves import Forecast, predict_iterations
from dljob.core.profiles import AccuracyPoint

CURVES = Path(__file__).parents[1] / "tests" / "data" / "learning" / "curves.csv.gz"
FALLING = frozenset({"deepspeech2", "yolov3"})
"""The metric of these jobs gets better as it falls."""
GOALS = (0.8, 0.9, 0.95)
SHARES = (0.25, 0.5, 0.75)
FEWEST_POINTS = 4
LARGEST_ERROR = 10.0
"""The error of a forecast that never reaches the goal."""


class Training(NamedTuple):
    """One log."""

    application: str
    batch: int
    points: Sequence[AccuracyPoint]


class Outcome(NamedTuple):
    """One forecast, and when the target was reached in fact."""

    error: float
    seen: Forecast
    reached: float


@cache
def trainings() -> Sequence[Training]:
    """Read all logs."""
    points: dict[tuple[str, int], list[AccuracyPoint]] = defaultdict(list)
    with gzip.open(CURVES, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["application"], int(row["global_batch_size"]))
            points[key].append(AccuracyPoint(float(row["iteration"]), float(row["metric"])))
    return [Training(*key, each) for key, each in sorted(points.items())]


def targets(training: Training) -> Iterator[tuple[Target, float]]:
    """Targets at several shares of all that was learnt, and when they were first reached."""
    sign = -1.0 if training.application in FALLING else 1.0
    learnt = [sign * point.value for point in training.points]
    best = sum(sorted(learnt)[-5:]) / min(5, len(learnt))
    for share in GOALS:
        goal = learnt[0] + share * (best - learnt[0])
        reached = next(
            p.iteration for p, value in zip(training.points, learnt, strict=True) if value >= goal
        )
        direction = Direction.FALLS if sign < 0 else Direction.RISES
        yield Target(metric="m", value=sign * goal, direction=direction), reached


@cache
def outcomes(application: str, share: float) -> Sequence[Outcome]:
    """Forecasts after a share of the iterations to each target."""
    found = []
    for training in trainings():
        if training.application != application:
            continue
        for target, reached in targets(training):
            online = [p for p in training.points if p.iteration <= share * reached]
            if len(online) >= FEWEST_POINTS:
                seen = predict_iterations((), online, target=target, asked=None)
                error = min(abs(seen.iterations - reached) / reached, LARGEST_ERROR)
                found.append(Outcome(error, seen, reached))
    return found


def measure(application: str, share: float) -> Mapping[str, Any] | None:
    """Sum up one application; ``None`` where the logs are too short to say anything."""
    found = outcomes(application, share)
    if not found:
        return None
    within = [outcome.seen.low <= outcome.reached <= outcome.seen.high for outcome in found]
    return {
        "application": application,
        "share": share,
        "forecasts": len(found),
        "median_error": round(median(outcome.error for outcome in found), 4),
        "median_confidence": round(median(outcome.seen.confidence for outcome in found), 4),
        "within_range": round(sum(within) / len(within), 4),
    }


@click.command(help=__doc__)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
@click.option("--plot", type=click.Path(path_type=Path), default=None, help="Draw to this file.")
def main(form: str, plot: Path | None) -> None:
    applications = sorted({training.application for training in trainings()})
    rows = [
        row
        for application in count(applications)
        for share in SHARES
        if (row := measure(application, share)) is not None
    ]
    print_result(rows, form)
    if plot is not None:
        lines = {
            application: [
                (row["share"], row["median_error"])
                for row in rows
                if row["application"] == application and row["median_error"] > 0
            ]
            for application in applications
        }
        draw_rows(
            plot,
            "When will the target be reached?",
            {name: line for name, line in lines.items() if line},
            across="share of the iterations that it took",
            up="median error",
        )


if __name__ == "__main__":
    run(main)

"""
The effect of ageing: the mean completion time of ``foresight`` against its 99th percentile.

A row a value of the option ``ageing``, over the tuning half of the shipped suite on counted GPUs:
geometric means of the ratios to ``afs-l`` in the same scenario, and the largest ratio of p99. The other half
is for judging, so it must not choose options.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
from _measuring import describe_machine, print_result, save
from _progress import run
from _suites import plan_tasks, play
from matplotlib.figure import Figure

from dlcore.policies.foresight import Foresight
from dlsim.comparing.tasks import Task, Values

REFERENCE = "afs-l"
DEFAULT = Foresight().ageing
COSTS = (0.0, 30.0)
VALUES = (0.0, 0.1, DEFAULT, 0.2, 0.3, 0.5, 1.0)


def name_of(ageing: float) -> str:
    """The policy with this value, as users type it."""
    return f"foresight:ageing={ageing:g}"


def make_row(ageing: float, results: Mapping[Task, Values]) -> dict[str, Any]:
    """Return the results of one value."""
    row: dict[str, Any] = {"ageing": ageing, "is_default": math.isclose(ageing, DEFAULT)}
    by_scenario = {task.scenario: v for task, v in results.items() if task.policy == REFERENCE}
    for figure in ("avg_jct_s", "p99_jct_s"):
        ratios = [
            values[figure] / by_scenario[task.scenario][figure]
            for task, values in results.items()
            if task.policy == name_of(ageing)
        ]
        row[figure] = round(geometric_mean(ratios), 4)
        row[f"worst {figure}"] = round(max(ratios), 4)
        row["scenarios"] = len(ratios)
    return {**row, **describe_machine()}


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the curve, and mark the default on it."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([r["avg_jct_s"] for r in rows], [r["p99_jct_s"] for r in rows], marker="o")
    for row in rows:
        text = f"{row['ageing']:g}" + (" (default)" if row["is_default"] else "")
        place = (row["avg_jct_s"], row["p99_jct_s"])
        # Values below the default lie close to those above it.
        side, offset = ("right", -6) if row["ageing"] < DEFAULT else ("left", 6)
        axes.annotate(text, place, xytext=(offset, 2), textcoords="offset points", ha=side)
        if row["is_default"]:
            axes.plot(*place, marker="o", markersize=11, fillstyle="none", color="black")
    axes.set_xlabel(f"average completion time, over that of {REFERENCE}")
    axes.set_ylabel(f"p99 completion time, over that of {REFERENCE}")
    axes.set_title("foresight: what its option ageing buys")
    return figure


@click.command(help=__doc__)
@click.option("--ageing", "values", type=float, multiple=True, default=VALUES)
@click.option("--window", type=click.IntRange(1), default=300, show_default=True)
@click.option("--jobs", "processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the curve here.")
def main(
    values: tuple[float, ...], window: int, processes: int, form: str, plot: Path | None
) -> None:
    names = [REFERENCE, *map(name_of, sorted(set(values)))]
    planned = plan_tasks(names, parts=("tuning",), window=window, costs=COSTS)
    tasks = [task for task in planned if task.policy is not None and task.scenario.counted]
    results = play(tasks, processes)
    rows = [make_row(value, results) for value in sorted(set(values))]
    if plot is not None:
        save(draw(rows), plot)
    print_result(rows, form)


if __name__ == "__main__":
    run(main)

"""
The gain of each part of ``foresight``: the policy with one option changed, and the policy as it is.

Over the tuning half of the shipped suite, on counted GPUs. Each figure is a geometric mean
of the ratio to ``afs-l`` in the same scenario, and in brackets the largest; the last column counts the changes
of all scenarios. The other half is for judging, so nothing is chosen by this table. ``--full`` plays 300 jobs of each
trace instead of 60.
"""

from collections.abc import Mapping
from statistics import geometric_mean

import click
from _measuring import print_result
from _progress import run
from _suites import plan_tasks, play

from dljob_lab.comparing.tasks import Task, Values

REFERENCE = "afs-l"
WINDOW, FULL_WINDOW = 60, 300
VARIANTS = (
    "foresight",
    "foresight:ageing=0",
    "foresight:ageing=0.3",
    "foresight:ageing=0.6",
    "foresight:arrivals=0",
    "foresight:horizon=1000000000",
)
FIGURES = {"mean": "avg_jct_s", "p99": "p99_jct_s", "makespan": "makespan_s"}


def make_row(policy: str, results: Mapping[Task, Values]) -> dict[str, object]:
    """Sum up one variant."""
    reference = {task.scenario: v for task, v in results.items() if task.policy == REFERENCE}
    own = {task.scenario: v for task, v in results.items() if task.policy == policy}
    row: dict[str, object] = {"policy": policy, "scenarios": len(own)}
    for name, figure in FIGURES.items():
        ratios = [values[figure] / reference[each][figure] for each, values in own.items()]
        row[name] = f"{geometric_mean(ratios):.3f} ({max(ratios):.3f})"
    return {**row, "changes": sum(values["reshapes"] for values in own.values())}


@click.command(help=__doc__)
@click.option("--full", is_flag=True, help=f"{FULL_WINDOW} jobs of each trace.")
@click.option("--cost", "costs", type=float, multiple=True, default=(30.0,), show_default=True)
@click.option(
    "--variant", "variants", multiple=True, default=VARIANTS, help="Such as foresight:ageing=0.5."
)
@click.option("--jobs", "processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(
    *, full: bool, costs: tuple[float, ...], variants: tuple[str, ...], processes: int, form: str
) -> None:
    policies = [REFERENCE, *variants]
    window = FULL_WINDOW if full else WINDOW
    planned = plan_tasks(policies, parts=("tuning",), window=window, costs=costs)
    tasks = [task for task in planned if task.policy is not None and task.scenario.counted]
    results = play(tasks, processes)
    print_result([make_row(policy, results) for policy in variants], form)


if __name__ == "__main__":
    run(main)

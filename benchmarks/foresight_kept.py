"""
The cost of jobs whose work no checkpoint saves: they keep the GPUs that they start with.

Over the tuning half of the shipped suite, counted GPUs, 30 s a change, with shares of jobs that have no
checkpoint, or a broken one. A row for each policy: geometric means of its average completion time and of its 99th
percentile, over those of the same policy where every job saves, and over those of ``afs-l`` with the
same jobs; in brackets the largest.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from statistics import geometric_mean

import click
from _measuring import print_result
from _progress import run
from _suites import plan_tasks, play

from dljob.sim.scenarios import Scenario
from dljob_lab.comparing.tasks import Task, Values

REFERENCE = "afs-l"
COST_S = 30.0
FIGURES = {"mean": "avg_jct_s", "p99": "p99_jct_s"}

Results = Mapping[tuple[str, Scenario], Values]
Filter = Callable[[Task], bool]


def plan(policies: Iterable[str], window: int, chosen: Filter) -> list[Task]:
    """Plan the scenarios of the suite for which ``chosen`` holds, where every job saves."""
    names = tuple(dict.fromkeys((REFERENCE, *policies)))
    tasks = plan_tasks(names, parts=("tuning",), window=window, costs=(COST_S,))
    return [t for t in tasks if t.policy is not None and t.scenario.counted and chosen(t)]


def make_row(policy: str, results: Results, losing: Mapping[Scenario, Scenario]) -> Values:
    """Sum up one policy; ``losing`` has the scenario with such jobs for each without."""
    row: Values = {"policy": policy, "scenarios": len(losing)}
    for title, figure in FIGURES.items():
        own = {saves: results[policy, loses][figure] for saves, loses in losing.items()}
        beside = {
            "itself": {saves: results[policy, saves][figure] for saves in losing},
            REFERENCE: {s: results[REFERENCE, loses][figure] for s, loses in losing.items()},
        }
        for name, others in beside.items():
            ratios = [value / others[saves] for saves, value in own.items()]
            row[f"{title} over {name}"] = f"{geometric_mean(ratios):.3f} ({max(ratios):.3f})"
    return row


@click.command(help=__doc__)
@click.option("--policy", "policies", multiple=True, default=("foresight", REFERENCE))
@click.option("--trace", "traces", multiple=True, help="Only these.")
@click.option("--load", "loads", type=float, multiple=True, help="Only these.")
@click.option("--window", type=click.IntRange(1), default=60, show_default=True)
@click.option("--none", type=click.FloatRange(0.0, 1.0), default=0.2, show_default=True)
@click.option("--broken", type=click.FloatRange(0.0, 1.0), default=0.2, show_default=True)
@click.option("--jobs", "processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(
    *,
    policies: tuple[str, ...],
    traces: tuple[str, ...],
    loads: tuple[float, ...],
    window: int,
    none: float,
    broken: float,
    processes: int,
    form: str,
) -> None:
    def is_chosen(task: Task) -> bool:
        named = not traces or task.trace in traces
        return named and (not loads or task.scenario.load in loads)

    saving = plan(policies, window, is_chosen)
    losing = {
        task.scenario: replace(task.scenario, no_checkpoint=none, broken_checkpoint=broken)
        for task in saving
    }
    tasks = [*saving, *(replace(task, scenario=losing[task.scenario]) for task in saving)]
    played = play(list(dict.fromkeys(tasks)), processes)
    results = {(task.policy or "", task.scenario): values for task, values in played.items()}
    print_result([make_row(policy, results, losing) for policy in policies], form)


if __name__ == "__main__":
    run(main)

"""
How near ``foresight`` comes to what was asked of it, on the shipped suite.

A row for each placement, cost of a change and part: its average completion time over the lower bound; over
the best of the other policies in each case, and over the best of those that its idea comes from;
its 99th percentile and makespan over those of ``afs-l``; and, packed, over its own counted figure. Each figure is a
geometric mean over the cases, and in brackets the largest. ``--full`` plays all of the suite, with 300 jobs of each trace,
and without it 30 jobs at one load and cost. ``--window 2000`` plays longer parts of the traces; ``--trace`` and ``--load`` choose
some of the scenarios, because these take hours.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import click
from _measuring import print_result
from _progress import run
from _suites import plan_tasks, play

from dljob.sim.scenarios import Scenario
from dljob_lab.comparing.suite import PARTS
from dljob_lab.comparing.tasks import Task, Values

POLICY = "foresight"
CAREFUL = "afs-l"
ANCESTORS = ("hdf", "smartfill", "hesrpt")
OTHERS = ("afs-l", "srsf-e", "srtf-e", "afs-p", "lyra", "max-min", "adaptive", "dragon")
BOUND = "bound"
WINDOW, FULL_WINDOW = 30, 300
QUICK_LOADS = (0.9,)
COSTS, QUICK_COSTS = (0.0, 30.0), (30.0,)

Cases = Mapping[Scenario, Mapping[str, Values]]
"""By scenario, the results of all policies and the bound."""


def gather(results: Mapping[Task, Values]) -> Cases:
    """Put what belongs to one scenario together."""
    cases: dict[Scenario, dict[str, Values]] = {}
    for task, values in results.items():
        cases.setdefault(task.scenario, {})[task.policy or BOUND] = values
    return cases


def compare(cases: Cases, reference: Callable[[Mapping[str, Values]], float], figure: str) -> str:
    """Return a figure over a reference: the geometric mean, and the largest."""
    ratios = [case[POLICY][figure] / reference(case) for case in cases.values()]
    return f"{geometric_mean(ratios):.3f} ({max(ratios):.3f})"


def best_of(names: Iterable[str]) -> Callable[[Mapping[str, Values]], float]:
    """The least average completion time of several policies in a case."""
    known = tuple(names)
    return lambda case: min(case[name]["avg_jct_s"] for name in known)


def make_row(cases: Cases, counted: Cases | None, others: Sequence[str]) -> dict[str, object]:
    """Sum up the cases of one placement and cost."""
    jct = "avg_jct_s"
    row: dict[str, object] = {
        "cases": len(cases),
        "over the bound": compare(cases, lambda case: case[BOUND]["bound_avg_jct_s"], jct),
        "best other": compare(cases, best_of(others), jct),
        "ancestors": compare(cases, best_of(ANCESTORS), jct),
        "p99": compare(cases, lambda case: case[CAREFUL]["p99_jct_s"], "p99_jct_s"),
        "makespan": compare(cases, lambda case: case[CAREFUL]["makespan_s"], "makespan_s"),
        "counted": "-",
    }
    if counted:
        ratios = [
            case[POLICY][jct] / counted[replace(scenario, counted=True)][POLICY][jct]
            for scenario, case in cases.items()
        ]
        row["counted"] = f"{geometric_mean(ratios):.3f} ({max(ratios):.3f})"
    return row


def sum_up(
    results: Mapping[Task, Values], part: str, costs: Sequence[float]
) -> list[dict[str, object]]:
    """Make the rows of one part."""
    cases = gather({task: values for task, values in results.items() if task.part == part})
    rows = []
    others = sorted(
        {name for case in cases.values() for name in case} - {POLICY, BOUND, *ANCESTORS}
    )
    # Where only packed figures are asked for, counted ones exist of the policy alone.
    played = {scenario.counted for scenario, case in cases.items() if CAREFUL in case}
    for is_counted in sorted(played, reverse=True):
        for cost in costs:
            chosen, counterparts = (
                {
                    s: case
                    for s, case in cases.items()
                    if (s.counted, s.restart_cost_s) == (which, cost)
                }
                for which in (is_counted, True)
            )
            head = {
                "part": part,
                "placement": "counted" if is_counted else "packed",
                "cost_s": cost,
            }
            rows.append({**head, **make_row(chosen, None if is_counted else counterparts, others)})
    return rows


def is_asked(task: Task, placement: str) -> bool:
    """Return whether a simulation is asked for; packed figures are held against the policy's own counted ones."""
    if placement == "packed" and task.policy == POLICY:
        return True
    return placement in ("both", "counted" if task.scenario.counted else "packed")


@click.command(help=__doc__)
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, default=PARTS)
@click.option(
    "--cost", "costs", type=float, multiple=True, help="Seconds a change; may be repeated."
)
@click.option("--full", is_flag=True, help="300 jobs of each trace, and all loads and costs.")
@click.option("--window", type=click.IntRange(1), help="This number of jobs of each trace.")
@click.option("--other", "others", multiple=True, default=OTHERS, help="A policy to compare with.")
@click.option(
    "--placement",
    type=click.Choice(["both", "counted", "packed"]),
    default="both",
    help="Play GPUs that are only counted, or on nodes; `packed` plays foresight itself in both.",
)
@click.option("--trace", "traces", multiple=True, help="Play this trace alone; may be repeated.")
@click.option(
    "--load", "loads", type=float, multiple=True, help="Play this load alone; may be repeated."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--jobs", "processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("--resume", type=click.Path(path_type=Path), help="Keep results here, and go on.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(  # noqa: PLR0913 - each is an option of the command line
    *,
    parts: tuple[str, ...],
    costs: tuple[float, ...],
    full: bool,
    window: int | None,
    others: tuple[str, ...],
    placement: str,
    traces: tuple[str, ...],
    loads: tuple[float, ...],
    seed: int,
    processes: int,
    resume: Path | None,
    form: str,
) -> None:
    policies = list(dict.fromkeys((POLICY, CAREFUL, *others, *ANCESTORS)))
    window = window or (FULL_WINDOW if full else WINDOW)
    loads = loads or (() if full else QUICK_LOADS)
    costs = costs or (COSTS if full else QUICK_COSTS)
    planned = plan_tasks(policies, parts=parts, window=window, costs=costs, seed=seed)
    tasks = [
        task
        for task in planned
        if is_asked(task, placement)
        and (task.trace in traces or not traces)
        and (task.scenario.load in loads or not loads)
    ]
    if not tasks:
        names = ", ".join(dict.fromkeys(task.trace for task in planned))
        raise click.UsageError(f"the suite has no such scenario; its traces are {names}")
    results = play(tasks, processes, resume)
    print_result([row for part in parts for row in sum_up(results, part, costs)], form)


if __name__ == "__main__":
    run(main)

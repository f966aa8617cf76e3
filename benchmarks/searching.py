"""
How ``sia`` and ``ones``, which search for their decisions, do on the shipped suite, and how long they search.

A row a policy, in scenarios that all of them play: the average completion time over the lower bound, ratios to
``max-min``, and the processor time of a simulation and of each of its decisions, the simulation around them included. ``--full``
plays 300 jobs of each trace, and without it 30. One process plays one simulation after the other, because it
measures times; with ``--resume FILE`` an interrupted run goes on.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from _measuring import describe_machine, print_result
from _progress import count, run
from _suites import plan_tasks

from dljob_lab.comparing.journal import Journal
from dljob_lab.comparing.planning import make_rows
from dljob_lab.comparing.suite import PARTS
from dljob_lab.comparing.summing import Spread, sum_up
from dljob_lab.comparing.tasks import Task, Values

POLICIES = ("sia", "ones", "foresight", "max-min")
REFERENCE = "max-min"
WINDOW, FULL_WINDOW = 30, 300
LOADS, COSTS = (0.5,), (0.0, 30.0)


def play(tasks: Sequence[Task], resume: Path | None) -> dict[Task, Values]:
    """Play each task that the journal lacks, and measure its processor time."""
    with ExitStack() as stack:
        journal = stack.enter_context(closing(Journal.open(resume))) if resume else None
        names = count(tasks, lambda task: f"{task.policy or 'bound'} on {task.trace}")
        return {task: find(task, journal) or measure(task, journal) for task in names}


def find(task: Task, journal: Journal | None) -> Values | None:
    return None if journal is None else journal.find(task.key())


def measure(task: Task, journal: Journal | None) -> Values:
    began = time.process_time()
    values = task.perform()
    values = {**values, "processor_s": time.process_time() - began}
    if journal is not None:
        journal.add(task.key(), values)
    return values


def write(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.mean:.3f} ± {spread.deviation:.3f}"


def make_table(results: dict[Task, Values]) -> list[dict[str, Any]]:
    """Sum the simulations of each policy up."""
    rows = make_rows(results)
    table = []
    for line in sum_up(rows, references=[REFERENCE]):
        own = [values for task, values in results.items() if task.policy == line.policy]
        spent = sum(each["processor_s"] for each in own)
        table.append(
            {
                "policy": line.policy,
                "cases": line.cases,
                "JCT / bound": write(line.bound),
                "worst": "-" if line.bound is None else f"{line.bound.high:.3f}",
                "average JCT": write(line.ratios["avg_jct_s"]),
                "p99 JCT": write(line.ratios["p99_jct_s"]),
                "makespan": write(line.ratios["makespan_s"]),
                "unfair": f"{line.unfair:.1%}",
                "decisions": round(fmean(each["decisions"] for each in own)),
                "ms a decision": round(1000.0 * spent / sum(each["decisions"] for each in own), 2),
                "s a simulation": round(spent / len(own), 1),
                "at most, s": round(max(each["processor_s"] for each in own), 1),
            }
        )
    return table


@click.command(help=__doc__)
@click.option("--policy", "policies", multiple=True, default=POLICIES, show_default=True)
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, default=("judging",))
@click.option("--placement", type=click.Choice(["counted", "packed"]), default="counted")
@click.option("--load", "loads", type=float, multiple=True, default=LOADS, show_default=True)
@click.option("--full", is_flag=True, help="300 jobs of each trace.")
@click.option("--resume", type=click.Path(path_type=Path), help="Keep results here, and go on.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(
    *,
    policies: tuple[str, ...],
    parts: tuple[str, ...],
    placement: str,
    loads: tuple[float, ...],
    full: bool,
    resume: Path | None,
    form: str,
) -> None:
    names = list(dict.fromkeys((*policies, REFERENCE)))
    window = FULL_WINDOW if full else WINDOW
    tasks = [
        task
        for task in plan_tasks(names, parts=parts, window=window, costs=COSTS)
        if task.scenario.counted == (placement == "counted") and task.scenario.load in loads
    ]
    print_result([*make_table(play(tasks, resume)), describe_machine()], form)


if __name__ == "__main__":
    run(main)

"""Simulations of the shipped suite, for benchmarks that ask it something: all cores, a bar, a journal."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import click
from _progress import say

from dljob_lab.comparing.journal import Journal
from dljob_lab.comparing.suite import load_suite, plan_suite
from dljob_lab.comparing.tasks import Task, Values
from dljob_lab.verbs.working import Work


def plan_tasks(
    policies: Sequence[str],
    *,
    parts: Sequence[str],
    window: int,
    costs: Iterable[float],
    seed: int = 0,
) -> list[Task]:
    """Plan the suite, or a part of it, with these costs of a change; a bound to each scenario."""
    planned = plan_suite(load_suite(), policies, parts=parts, window=window)
    varied = (
        replace(task, scenario=replace(task.scenario, restart_cost_s=cost, seed=seed))
        for task in planned
        for cost in costs
    )
    return list(dict.fromkeys(varied))


def play(tasks: Sequence[Task], processes: int, resume: Path | None = None) -> dict[Task, Values]:
    """Play tasks as ``dljob compare`` does; results that ``resume`` holds are not played again."""
    say(f"plays {len(tasks):,} simulations")
    with ExitStack() as stack:
        journal = stack.enter_context(closing(Journal.open(resume))) if resume else None
        work = Work(tasks, journal)
        if not work.run(processes):
            raise click.Abort
    for task, message in work.failures.items():
        raise click.ClickException(f"{task.trace}: {message}")
    return work.results

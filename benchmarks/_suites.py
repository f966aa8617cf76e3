"""Simulations of the shipped suite, for benchmarks that ask it something: all cores, a bar, a journal."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import click

from dlsim.comparing.journal import Journal
from dlsim.comparing.running import Failure, run_tasks
from dlsim.comparing.suite import load_suite, plan_suite
from dlsim.comparing.tasks import Task, Values


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
    """Play tasks on so many processes, with a bar; results that ``resume`` holds are not played again."""
    results: dict[Task, Values] = {}
    with ExitStack() as stack:
        journal = stack.enter_context(closing(Journal.open(resume))) if resume else None
        if journal:
            known = {task: journal.find(task.key()) for task in tasks}
            results = {task: values for task, values in known.items() if values is not None}
        left = [(number, task) for number, task in enumerate(tasks) if task not in results]
        finished = run_tasks(left, processes=processes)
        label = "simulations"
        for number, result in stack.enter_context(
            click.progressbar(finished, length=len(left), label=label)
        ):
            if isinstance(result, Failure):
                raise click.ClickException(f"{tasks[number].trace}: {result.message}")
            results[tasks[number]] = result
            if journal:
                journal.add(tasks[number].key(), result)
    return results

"""
Every combination of traces, scenarios and policies, as a list of tasks.

:mod:`dljob_lab.verbs.compare` calls :func:`plan`, and :func:`make_rows` with the results. Policies are the
innermost of the loops, so tasks that read the same trace follow each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from dljob.sim.scenarios import Scenario
from dljob_lab.comparing.tasks import Task, Values

Axes = Mapping[str, Sequence[Any]]
"""The values of fields of :class:`Scenario` that vary; every combination is played."""


def plan(
    base: Scenario, traces: Sequence[Path], *, axes: Axes, policies: Sequence[str], bound: bool
) -> list[Task]:
    """List the tasks of a comparison; of tasks that are the same, one."""
    tasks: dict[Task, None] = {}
    for trace, *values in product(traces, *axes.values()):
        scenario = replace(base, trace=trace, **dict(zip(axes, values, strict=True)))
        for policy in policies:
            tasks.setdefault(Task(scenario=scenario, policy=policy))
        if bound:
            tasks.setdefault(Task(scenario=scenario).bound())
    return list(tasks)


def make_rows(results: Mapping[Task, Values]) -> list[Values]:
    """Make a row of each policy's result, with its scenario and the bound there."""
    rows = []
    for task, values in results.items():
        if task.policy is not None:
            bound = results.get(task.bound(), {"bound_avg_jct_s": None, "bound_jobs": None})
            rows.append({"policy": task.policy, **task.labels(), **bound, **values})
    return rows

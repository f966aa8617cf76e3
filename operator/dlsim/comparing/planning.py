"""
Every combination of what is to be compared, as a list of tasks.

:mod:`dlctl.verbs.studies.comparing.compare` calls :func:`plan`, and :func:`make_rows` with the results. Policies are the
innermost of the loops, so tasks that read the same trace follow each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from dlsim.comparing.tasks import Task, Values
from dlsim.scenarios import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The axes along which scenarios vary."""

    loads: tuple[float | None, ...] = (None,)
    restart_costs: tuple[float | None, ...] = (None,)
    speed_errors: tuple[float, ...] = (0.0,)
    size_errors: tuple[float, ...] = (0.0,)
    sizes_known: tuple[bool, ...] = (True,)
    seeds: tuple[int, ...] = (0,)

    def vary(self, base: Scenario) -> list[Scenario]:
        """Make each combination of a scenario."""
        return [
            replace(
                base,
                load=load,
                restart_cost_s=cost,
                speed_error=speed_error,
                size_error=size_error,
                sizes_known=known,
                seed=seed,
            )
            for load, cost, speed_error, size_error, known, seed in product(
                self.loads,
                self.restart_costs,
                self.speed_errors,
                self.size_errors,
                self.sizes_known,
                self.seeds,
            )
        ]


def plan(
    base: Scenario,
    traces: Sequence[Path],
    axes: Axes,
    *,
    policies: Sequence[str],
    bound: bool,
) -> list[Task]:
    """List the tasks of a comparison; of tasks that are the same, one."""
    tasks: dict[Task, None] = {}
    for trace in traces:
        for scenario in axes.vary(replace(base, trace=trace)):
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

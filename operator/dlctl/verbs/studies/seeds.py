"""
``dljob simulate --seeds N``: the same simulation with several seeds, on all cores, summed up.

:mod:`dlctl.verbs.studies.simulate` calls :func:`run`. The simulations are tasks of :mod:`dlsim.comparing`, as those
of ``dljob compare`` are; what differs is the table. With one trace and one cluster there is no need
for ratios: each figure is the mean over the seeds, with its standard deviation.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import NamedTuple

import click
from rich import box
from rich.console import Console
from rich.table import Table

from dlctl.output import printing
from dlctl.output.forms import to_json
from dlctl.output.messages import INTERRUPTED, say
from dlctl.verbs.studies.comparing.working import Work
from dlsim.comparing.planning import make_rows
from dlsim.comparing.summing import bound_ratio
from dlsim.comparing.tasks import Task, Values, without_measured
from dlsim.premises import list_premises
from dlsim.scenarios import Scenario, build_setting, read_workload


class Figure(NamedTuple):
    """A column: a field of a result, and how it is written."""

    title: str
    field: str
    is_time: bool = False
    factor: float = 1.0
    digits: int = 1
    unit: str = ""


FIGURES = (
    Figure("avg JCT", "avg_jct_s", is_time=True),
    Figure("JCT/bound", "bound_ratio", digits=3),
    Figure("p50", "p50_jct_s", is_time=True),
    Figure("p95", "p95_jct_s", is_time=True),
    Figure("p99", "p99_jct_s", is_time=True),
    Figure("makespan", "makespan_s", is_time=True),
    Figure("GPU use", "utilization", factor=100.0, unit="%"),
    Figure("avg wait", "avg_wait_s", is_time=True),
    Figure("slowdown", "mean_slowdown", digits=2),
    Figure("worst rho", "worst_local_rho", digits=2),
    Figure("unfair", "unfair_local_share", factor=100.0, unit="%"),
    Figure("reshapes", "reshapes", digits=0),
    Figure("lost to them", "reshape_share", factor=100.0, unit="%"),
    Figure("unfinished", "unfinished", digits=0),
)
"""The more important ones first: those for which the terminal is too narrow are left out."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The simulations, and the form of the output."""

    scenario: Scenario
    policies: Sequence[str]
    seeds: int
    bound: bool
    output: str

    @property
    def scenarios(self) -> list[Scenario]:
        """One for each seed, from the given seed on."""
        first = self.scenario.seed
        return [replace(self.scenario, seed=first + each) for each in range(self.seeds)]

    def tasks(self) -> list[Task]:
        """List the simulations, and the bounds; those of one seed follow each other."""
        tasks: list[Task] = []
        for scenario in self.scenarios:
            tasks += [Task(scenario=scenario, policy=name) for name in self.policies]
            if self.bound:
                tasks.append(Task(scenario=scenario).bound())
        return tasks


def run(plan: Plan) -> int:
    """Play all of it, print what came out, and return the exit status."""
    # A mistake in the input is one error, and not one for each simulation.
    setting = build_setting(plan.scenario)
    workload = read_workload(plan.scenario, setting)
    work = Work(plan.tasks(), None)
    is_complete = work.run(os.cpu_count() or 1)
    rows = make_rows(work.results)
    if rows:
        for note in workload.notes:
            say(f"{note} (seed {plan.scenario.seed})" if plan.seeds > 1 else note)
        click.echo(_show(plan, rows, list_premises(workload, setting, seeds=plan.seeds)), nl=False)
        _report_chance(rows)
    for task, message in work.failures.items():
        say(f"{task.policy or 'bound'} (seed {task.scenario.seed}): {message}")
    if not is_complete:
        say(
            f"interrupted: {len(work.results):,} of {len(work.tasks):,} simulations were played "
            "to the end; the table is about those"
        )
        return INTERRUPTED
    return 1 if work.failures else 0


def _show(plan: Plan, rows: Sequence[Values], premises: Sequence[str]) -> str:
    if plan.output == "csv":
        return printing.to_csv([printing.flatten(row) for row in rows])
    if plan.output == "json":
        return to_json([{**row, "assumed": list(premises)} for row in rows])
    return _tabulate(plan, rows) + printing.list_premises(premises)


def _report_chance(rows: Sequence[Values]) -> None:
    """Say so where nothing was drawn, because a spread of 0 looks like a safe result."""
    by_policy: dict[str, list[Values]] = {}
    for row in rows:
        figures = {name: value for name, value in without_measured(row).items() if name != "seed"}
        by_policy.setdefault(row["policy"], []).append(figures)
    several = [figures for figures in by_policy.values() if len(figures) > 1]
    if several and all(each == figures[0] for figures in several for each in figures):
        say(
            "the seed changes nothing here: no curve, window or error is drawn; "
            "--window N draws parts of the trace"
        )


def _tabulate(plan: Plan, rows: Sequence[Values]) -> str:
    unit = printing.choose_unit(row["avg_jct_s"] for row in rows)
    policies = {name: [row for row in rows if row["policy"] == name] for name in plan.policies}
    values = {
        name: [_read(found, figure, unit) for figure in FIGURES]
        for name, found in policies.items()
        if found
    }
    shown = [
        index
        for index, figure in enumerate(FIGURES)
        # A column of nothing is left out: the bound, and unfinished jobs.
        if figure.field not in ("bound_ratio", "unfinished")
        or any(any(cells[index]) for cells in values.values())
    ]
    title = _title(plan, rows, unit=unit)
    all_of_it = plan.output == printing.WIDE
    wide = Console(width=printing.ENDLESS)
    room = printing.ENDLESS if all_of_it else printing.find_width(printing.ENDLESS)
    table = _make_table(title, values, shown=shown)
    hidden: list[str] = []
    while len(shown) > 1 and wide.measure(table).maximum > room:
        hidden.insert(0, FIGURES[shown[-1]].title)
        shown = shown[:-1]
        table = _make_table(title, values, shown=shown)
    text = printing.render(table, piped_width=printing.ENDLESS, all_of_it=all_of_it)
    return text + printing.tell_hidden(hidden, room)


def _make_table(title: str, values: dict[str, list[list[float]]], *, shown: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title)
    table.title_justify, table.title_style = "left", "bold"
    table.add_column("policy", no_wrap=True)
    for index in shown:
        table.add_column(FIGURES[index].title, justify="right", no_wrap=True)
    for name, cells in values.items():
        table.add_row(name, *(_write(cells[index], FIGURES[index]) for index in shown))
    return table


def _title(plan: Plan, rows: Sequence[Values], *, unit: printing.Unit) -> str:
    seeds = sorted({row["seed"] for row in rows})
    jobs = sorted({row["jobs"] for row in rows})
    count = f"{jobs[0]:,}" if len(jobs) == 1 else f"{jobs[0]:,} to {jobs[-1]:,}"
    return (
        f"{rows[0]['trace']}: {count} jobs; {plan.scenario.mechanism.value}; mean ± standard "
        f"deviation over seeds {seeds[0]} to {seeds[-1]}; times in {unit.name}"
    )


def _read(rows: Sequence[Values], figure: Figure, unit: printing.Unit) -> list[float]:
    """Read a figure from each result that has it."""
    factor = 1.0 / unit.seconds if figure.is_time else figure.factor
    found = [
        bound_ratio(row) if figure.field == "bound_ratio" else row[figure.field] for row in rows
    ]
    return [factor * value for value in found if value is not None and value == value]  # noqa: PLR0124


def _write(values: Sequence[float], figure: Figure) -> str:
    if not values:
        return "–"
    spread = stdev(values) if len(values) > 1 else 0.0
    digits = figure.digits
    return f"{fmean(values):,.{digits}f} ± {spread:,.{max(digits, 1)}f}{figure.unit}"

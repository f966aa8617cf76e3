"""
``dljob bound``: what no policy can go below on a trace, and how close to it a good policy may be.

:mod:`dljob_lab.bounding.bounds` says what the bound takes into account.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from dljob.cli.output import printing
from dljob.cli.output.bars import progress_bar
from dljob.cli.output.forms import to_json
from dljob.cli.output.messages import say
from dljob.cli.verbs.studies.scenarios import (
    CASE,
    CLUSTER,
    OUTPUT,
    PART,
    SPEEDS,
    take_scenario,
    takes,
)
from dljob.sim.engine.settings import Setting
from dljob.sim.jobs.workloads import Workload
from dljob.sim.scenarios import Scenario, build_setting, read_workload
from dljob_lab.bounding.bounds import ROUNDS, Bound, bound_mean_jct


@click.command("bound")
@click.argument("trace", type=click.Path(path_type=Path))
@takes(CLUSTER, SPEEDS, CASE, PART)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=ROUNDS,
    show_default=True,
    metavar="N",
    help="How often the bound is improved. Fewer rounds are faster and prove less.",
)
@takes(OUTPUT)
def command(rounds: int, output: str, **given: Any) -> None:
    """
    Compute a lower bound on the average completion time of TRACE under any policy.

    No policy can be below it with these options, even one that knows the future: it holds for all
    schedules of this simulator. docs/simulator-model.md shows how tight it is on some traces.
    """
    scenario = take_scenario(given)
    setting = build_setting(scenario)
    workload = read_workload(scenario, setting)
    began = time.perf_counter()
    bound = compute(workload, setting, rounds=rounds)
    wall_s = time.perf_counter() - began
    for note in workload.notes:
        say(note)
    click.echo(show(bound, scenario, trace=workload.name, wall_s=wall_s, form=output), nl=False)


def compute(workload: Workload, setting: Setting, *, rounds: int = ROUNDS) -> Bound:
    """Compute the bound, with a bar for a person who watches."""
    with progress_bar() as bar:
        if bar is None:
            return bound_mean_jct(workload, setting, rounds=rounds)
        watch = bar.watch
        return bound_mean_jct(
            workload,
            setting,
            rounds=rounds,
            watch=lambda done, total: watch("bound", done, total),
        )


def show(bound: Bound, scenario: Scenario, *, trace: str, wall_s: float, form: str) -> str:
    """Show a bound in one of the formats of :mod:`dljob.cli.output.printing`."""
    fields = asdict(bound)
    row = {
        "trace": trace,
        "bound_avg_jct_s": fields.pop("avg_jct_s"),
        **fields,
        "wall_s": wall_s,
        "seed": scenario.seed,
        "mechanism": scenario.mechanism.value,
    }
    if form == "json":
        return to_json(row)
    if form == "csv":
        return printing.to_csv([row])
    return printing.tabulate(["", ""], _list_facts(bound, wall_s), title=trace)


def _list_facts(bound: Bound, wall_s: float) -> list[tuple[str, str]]:
    left_out = {"dropped": bound.dropped, "that can never run": bound.never}
    return [
        ("avg JCT of any policy is at least", f"{bound.avg_jct_s:,.1f} s"),
        ("if each job were alone", f"{bound.alone_s:,.1f} s"),
        (f"under {bound.reference}", f"{bound.reference_avg_jct_s:,.1f} s"),
        ("jobs", f"{bound.jobs:,}"),
        *((f"jobs {name}", f"{count:,}") for name, count in left_out.items() if count),
        ("rounds", f"{bound.rounds:,}"),
        ("bins of time", f"{bound.bins:,}"),
        ("gained by the last quarter of the rounds", f"{100 * bound.last_gain:.2f}%"),
        ("computed in", f"{wall_s:,.1f} s"),
    ]

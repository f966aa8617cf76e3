"""
``dljob simulate``: a trace under one or more policies, and the figures of each.

``dljob simulate --help`` lists its options; :mod:`dljob.sim.results.scoring` says what the figures
mean.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import click

from dljob.cli.inputs import arguments
from dljob.cli.inputs.completing import complete_policies
from dljob.cli.output import printing
from dljob.cli.output.forms import to_json
from dljob.cli.output.messages import INTERRUPTED
from dljob.cli.verbs.studies.playing import Options, conclude
from dljob.cli.verbs.studies.scenarios import (
    CASE,
    CLUSTER,
    KNOWLEDGE,
    LIVE,
    OUTPUT,
    PART,
    PICTURES,
    SPEEDS,
    TROUBLE,
    take_scenario,
    takes,
)
from dljob.sim.premises import list_premises
from dljob.sim.results.scoring import Score
from dljob.sim.scenarios import Scenario, build_setting, charge_trials, read_workload


@click.command("simulate")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    "policies",
    type=arguments.read_contestant,
    shell_complete=complete_policies,
    multiple=True,
    default=("foresight",),
    show_default=True,
    metavar="NAME",
    help="The policy that shares out GPUs; may be given several times. "
    "Options follow the name: tiresias:thresholds=3250,7200. See `dljob policies`. FILE.py:Class is a "
    "policy of your own; see docs/policies.md.",
)
@takes(CLUSTER, LIVE, SPEEDS, CASE, PART, KNOWLEDGE, TROUBLE)
@takes(OUTPUT)
@click.option(
    "--jobs-out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write a CSV file with one row a job and policy.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, file_okay=False),
    is_flag=False,
    flag_value="plots",
    metavar="[DIR]",
    help="Also draw the runs, as PNG and SVG, into DIR or plots/. The word behind it is "
    "taken for DIR, so without DIR put it last.",
)
@takes(PICTURES)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write all that happens: as JSON lines, as a trace for Perfetto if the name ends with .pftrace,"
    " or as a page for a browser if it ends with .html. Of several policies each has a file with its name in it. See docs/record.md.",
)
def command(**given: Any) -> int:
    """
    Play TRACE under one or more policies and print their figures.

    TRACE is a CSV file (job_id,submit_time_s,duration_s,num_gpus or any other format that
    `docs/simulator-inputs.md` lists; it may be gzipped), a YAML file of DLJobs with the annotation
    dljob.io/submit-at, or a folder of such files.
    """
    output = given.pop("output")
    scenario = take_scenario(given)
    return run(scenario, Options(source=scenario.trace, **given), output=output)


def run(scenario: Scenario, options: Options, *, output: str) -> int:
    """Play a trace, print the figures, and return the exit status."""
    setting = build_setting(scenario)
    workload = read_workload(scenario, setting)
    setting = charge_trials(scenario, setting, workload=workload)
    played = conclude(options, workload, setting=setting)
    if not played.outcomes:
        return INTERRUPTED
    scores = [outcome.score for outcome in played.outcomes]
    text = tabulate_scores(scores, output, premises=list_premises(workload, setting))
    click.echo(text, nl=False)
    return INTERRUPTED if played.is_cut else 0


# --- the figures --------------------------------------------------------------------------


class Unit(NamedTuple):
    """The unit of the shown times."""

    name: str
    seconds: float


UNITS = (Unit("h", 3600.0), Unit("min", 60.0), Unit("s", 1.0))


class Figure(NamedTuple):
    """A column: a field of a result, and how it is written."""

    title: str
    field: str
    is_time: bool = False
    factor: float = 1.0
    digits: int = 1
    unit: str = ""


LOST_WORK = Figure("lost work", "lost_work_s", is_time=True)

COLUMNS = (
    Figure("avg JCT", "avg_jct_s", is_time=True),
    Figure("p50", "p50_jct_s", is_time=True),
    Figure("p95", "p95_jct_s", is_time=True),
    Figure("p99", "p99_jct_s", is_time=True),
    Figure("makespan", "makespan_s", is_time=True),
    Figure("GPU use", "utilization", factor=100.0, unit="%"),
    Figure("reshapes", "reshapes", digits=0),
    Figure("lost to them", "reshape_share", factor=100.0, unit="%"),
    LOST_WORK,
    Figure("avg wait", "avg_wait_s", is_time=True),
    Figure("queue", "avg_queue"),
    Figure("blocking", "blocking_index", digits=2),
    Figure("efficiency", "cluster_efficiency", factor=100.0, unit="%"),
    Figure("slowdown", "mean_slowdown", digits=2),
    Figure("worst rho", "worst_local_rho", digits=2),
    Figure("unfair", "unfair_local_share", factor=100.0, unit="%"),
    Figure("decisions", "decisions", digits=0),
    Figure("ms each", "decision_ms_p50", digits=2),
)
"""The more important ones first: a narrow terminal leaves out the last ones."""


def tabulate_scores(scores: Sequence[Score], form: str, *, premises: Sequence[str] = ()) -> str:
    """
    Show results in one of :data:`~dljob.cli.output.printing.FORMATS`.

    The assumptions follow a table, and are the field ``assumed`` in JSON; CSV has no place for them.
    """
    rows = [asdict(score) for score in scores]
    if form == "csv":
        return printing.to_csv(rows)
    if form == "json":
        return to_json([{**row, **({"assumed": premises} if premises else {})} for row in rows])
    # One unit for all times of a table, so that they can be compared at a glance.
    least = min((row["avg_jct_s"] for row in rows if row["avg_jct_s"] > 0), default=0.0)
    unit = next((unit for unit in UNITS if least >= 2 * unit.seconds), UNITS[-1])
    flat = [printing.flatten(row) for row in rows]
    # A column of nothing is left out: work that was lost.
    shown = [
        figure
        for figure in COLUMNS
        if figure is not LOST_WORK or any(row[figure.field] for row in flat)
    ]
    score = scores[0]
    dropped = f", {score.dropped} dropped" if score.dropped else ""
    jobs = f"{score.trace}: {score.jobs:,} job{'s' if score.jobs != 1 else ''}{dropped}"
    table = printing.tabulate(
        ["policy", *(figure.title for figure in shown)],
        [[row["policy"], *(_write(row, figure, unit=unit) for figure in shown)] for row in flat],
        title=f"{jobs}; {score.mechanism}, seed {score.seed}; times in {unit.name}",
        hide=[[place] for place in range(len(shown), 1, -1)],
        wide=form == printing.WIDE,
    )
    return table + printing.list_premises(premises)


def _write(row: Mapping[str, Any], figure: Figure, *, unit: Unit) -> str:
    value = row.get(figure.field)
    if value is None or math.isnan(value):
        return "–"
    value *= 1.0 / unit.seconds if figure.is_time else figure.factor
    # Decimals of thousands are useless.
    digits = 0 if abs(value) >= 10_000 else figure.digits
    return f"{value:,.{digits}f}{figure.unit}"

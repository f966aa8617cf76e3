"""
``dljob simulate``: a trace under one or more policies, and the figures of each.

``dljob simulate --help`` lists its options; :mod:`dljob.sim.results.scoring` says what the figures
mean.
"""

from pathlib import Path
from typing import Any

import click

from dljob.cli.inputs import arguments
from dljob.cli.inputs.completing import complete_policies
from dljob.cli.output.messages import INTERRUPTED
from dljob.cli.verbs.studies import figures
from dljob.cli.verbs.studies.playing import Options, conclude
from dljob.cli.verbs.studies.scenarios import (
    CASE,
    CLUSTER,
    KNOWLEDGE,
    OUTPUT,
    PART,
    PICTURES,
    SPEEDS,
    TROUBLE,
    take_scenario,
    takes,
)
from dljob.sim.premises import list_premises
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
@takes(CLUSTER, SPEEDS, CASE, PART, KNOWLEDGE, TROUBLE)
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
    text = figures.show(scores, output, premises=list_premises(workload, setting))
    click.echo(text, nl=False)
    return INTERRUPTED if played.is_cut else 0

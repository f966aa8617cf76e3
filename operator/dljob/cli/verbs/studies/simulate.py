"""
``dljob simulate``: a trace under one or more policies, and the figures of each.

``dljob simulate --help`` lists its options; :mod:`dljob.sim.results.scoring` says what the figures
mean.
"""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dljob.cli.inputs import arguments
from dljob.cli.inputs.completing import complete_policies
from dljob.cli.inputs.options import with_place
from dljob.cli.output.messages import INTERRUPTED, say
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
from dljob.client.places import Place, opened
from dljob.sim import policies
from dljob.sim.premises import list_premises
from dljob.sim.scenarios import Scenario, build_setting, charge_trials, read_workload
from dljob.sim.simulating import Contestant


@click.command("simulate")
@click.argument("trace", required=False, type=click.Path(path_type=Path))
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
@click.option(
    "--live",
    is_flag=True,
    help="Play the jobs that a live system has now, from where they are, instead of a TRACE. The "
    "options below say which; without them it is the one that `dljob get` asks.",
)
@with_place
def command(*, place: Place, live: bool, **given: Any) -> int:
    """
    Play TRACE under one or more policies and print their figures.

    TRACE is a CSV file (job_id,submit_time_s,duration_s,num_gpus or any other format that
    `docs/simulator-inputs.md` lists; it may be gzipped), a YAML file of DLJobs with the annotation
    dljob.io/submit-at, or a folder of such files.
    """
    if live:
        return run_live(place, given)
    if place != Place():
        raise click.UsageError("options of a place are for --live alone; leave them out, or add it")
    if given["trace"] is None:
        raise click.UsageError("Missing argument 'TRACE'.")
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


def run_live(place: Place, given: dict[str, Any]) -> int:
    """Play what a live system has, and print what would become of each of its jobs."""
    # Not at the top, because nothing else here needs what live systems are made of.
    from dljob.cli.verbs.studies import foretelling, live  # noqa: PLC0415

    context = click.get_current_context()
    typed = {n for n in given if context.get_parameter_source(n) is ParameterSource.COMMANDLINE}
    live.check_usage(typed)
    with opened(place) as backend:
        known = live.read_known(backend, state=place.state, profiles=given["profiles"])
        present = live.read(backend, known, seed=given["seed"])
    if not present.workload.jobs:
        say("There are no jobs that train or wait.")
        return 0
    chosen = (
        given["policies"]
        if "policies" in typed
        else (Contestant(present.policy, policies.read(present.policy)),)
    )
    options = Options(
        source=live.NAME,
        policies=chosen,
        jobs_out=given["jobs_out"],
        plot=given["plot"],
        record=given["record"],
        formats=given["formats"],
        look=given["look"],
    )
    workload = live.mislead(present.workload, given)
    played = conclude(options, workload, setting=live.adjust(present.setting, given, typed=typed))
    if played.outcomes:
        click.echo(foretelling.show(workload, played.outcomes, form=given["output"]), nl=False)
    return INTERRUPTED if played.is_cut else 0

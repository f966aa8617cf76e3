"""
``dljob simulate``: a trace under one or more policies, and the figures of each.

``dljob simulate --help`` lists its options; :mod:`dljob.sim.results.scoring` says what the figures
mean.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from dljob.cli.inputs import arguments
from dljob.cli.inputs.completing import complete_policies
from dljob.cli.output.messages import INTERRUPTED, say
from dljob.cli.verbs.studies import bound as bounding
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
from dljob.cli.verbs.studies.working import Work
from dljob.sim.bounding.bounds import Bound
from dljob.sim.comparing.planning import make_rows, plan
from dljob.sim.comparing.tasks import Values, without_measured
from dljob.sim.premises import list_premises
from dljob.sim.results.scoring import Score
from dljob.sim.scenarios import Scenario, build_setting, charge_trials, read_workload

MOST_SEEDS = 10_000


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
@click.option(
    "--seeds",
    type=click.IntRange(1, MOST_SEEDS),
    metavar="N",
    help="Play with N seeds, from --seed on, on all cores, and print the mean and the standard "
    "deviation of each figure; -o json and csv print every simulation.",
)
@click.option(
    "--bound",
    is_flag=True,
    help="Also compute the average completion time that no policy can go below; see `dljob bound`.",
)
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
    seeds, bound, output = given.pop("seeds"), given.pop("bound"), given.pop("output")
    scenario = take_scenario(given)
    options = Options(source=scenario.trace, **given)
    if seeds is None:
        return run(scenario, options, bound=bound, output=output)
    return run_seeds(scenario, options, seeds=seeds, bound=bound, output=output)


def run(scenario: Scenario, options: Options, *, bound: bool, output: str) -> int:
    """Play a trace with one seed, print the figures, and return the exit status."""
    setting = build_setting(scenario)
    workload = read_workload(scenario, setting)
    setting = charge_trials(scenario, setting, workload=workload)
    played = conclude(options, workload, setting=setting)
    if not played.outcomes:
        return INTERRUPTED
    least = None
    if bound and not played.is_cut:
        try:
            least = bounding.compute(workload, setting)
        except KeyboardInterrupt:
            played = replace(played, is_cut=True)
            say("interrupted: the bound is missing")
    scores = [outcome.score for outcome in played.outcomes]
    text = figures.show(
        [asdict(score) | _compare(score, least) for score in scores],
        output,
        title=figures.title_of(scores[0]),
        premises=list_premises(workload, setting),
    )
    click.echo(text, nl=False)
    return INTERRUPTED if played.is_cut else 0


def _compare(score: Score, bound: Bound | None) -> dict[str, float | None]:
    if bound is None:
        return {}
    return {
        "bound_avg_jct_s": bound.avg_jct_s,
        "avg_jct_over_bound": bound.ratio(score.avg_jct_s, score.jobs - score.unfinished),
    }


def run_seeds(scenario: Scenario, options: Options, *, seeds: int, bound: bool, output: str) -> int:
    """Play a trace with several seeds on all cores, print means and spreads, and return the status."""
    for name, what in (("jobs_out", "--jobs-out"), ("record", "--record")):
        if getattr(options, name) is not None:
            raise click.UsageError(f"{what} is for one seed; leave --seeds out, and give --seed")
    if options.plot is not None:
        raise click.UsageError(
            "--plot is for one seed; `dljob compare --seeds N --plot` draws several"
        )
    # A mistake in the input is one error, and not one for each simulation.
    setting = build_setting(scenario)
    workload = read_workload(scenario, setting)
    axes = {"seed": range(scenario.seed, scenario.seed + seeds)}
    labels = [contestant.label for contestant in options.policies]
    work = Work(plan(scenario, [scenario.trace], axes=axes, policies=labels, bound=bound), None)
    is_complete = work.run(os.cpu_count() or 1)
    rows = make_rows(work.results)
    if rows:
        for note in workload.notes:
            say(f"{note} (seed {scenario.seed})" if seeds > 1 else note)
        text = figures.show(
            rows,
            output,
            title=_title_of_seeds(rows, scenario.mechanism.value),
            columns=figures.OF_SEVERAL,
            premises=list_premises(workload, setting, seeds=seeds),
        )
        click.echo(text, nl=False)
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


def _title_of_seeds(rows: Sequence[Values], mechanism: str) -> str:
    seeds = sorted({row["seed"] for row in rows})
    jobs = sorted({row["jobs"] for row in rows})
    count = f"{jobs[0]:,}" if len(jobs) == 1 else f"{jobs[0]:,} to {jobs[-1]:,}"
    return (
        f"{rows[0]['trace']}: {count} jobs; {mechanism}; mean ± standard "
        f"deviation over seeds {seeds[0]} to {seeds[-1]}"
    )


def _report_chance(rows: Sequence[Values]) -> None:
    """Report that the seed changes nothing, because a spread of 0 looks like a safe result."""
    by_policy: dict[str, list[Values]] = {}
    for row in rows:
        same = {name: value for name, value in without_measured(row).items() if name != "seed"}
        by_policy.setdefault(row["policy"], []).append(same)
    several = [found for found in by_policy.values() if len(found) > 1]
    if several and all(each == found[0] for found in several for each in found):
        say(
            "the seed changes nothing here: no curve, window or error is drawn; "
            "--window N draws parts of the trace"
        )

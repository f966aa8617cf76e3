"""
``dljob simulate``: a trace under one or more policies, and the figures of each.

``dljob simulate --help`` lists its options; :mod:`dlsim.results.scoring` says what the figures
mean.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dlclient.extras import check_can_draw
from dlclient.places import Place, opened
from dlcore.model import JobId
from dlctl.inputs import arguments
from dlctl.inputs.completing import complete_policies
from dlctl.inputs.options import with_place
from dlctl.output import printing
from dlctl.output.bars import progress_bar
from dlctl.output.messages import INTERRUPTED, say
from dlctl.output.streams import divert_libraries
from dlctl.verbs.studies import bound as bounding
from dlctl.verbs.studies.scenarios import (
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
from dlsim import policies
from dlsim.engine.settings import Setting
from dlsim.errors import BadInput
from dlsim.jobs.workloads import Workload
from dlsim.premises import list_premises
from dlsim.results import writing
from dlsim.results.looks import LOOKS, Format
from dlsim.results.records import Record, Series
from dlsim.scenarios import Scenario, build_setting, charge_trials, read_workload
from dlsim.simulating import Contestant, Outcome, simulate

MOST_SEEDS = 10_000

MOST_NAMED = 10
"""How many of the jobs that were dropped or never ended are named; all are counted."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line."""

    source: object
    """The played trace or system, as errors name it."""
    policies: tuple[Contestant, ...]
    bound: bool
    output: str
    jobs_out: Path | None
    plot: Path | None
    record: Path | None
    formats: tuple[Format, ...]
    look: str


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
    `docs/simulator.md` lists; it may be gzipped), a YAML file of DLJobs with the annotation
    dljob.io/submit-at, or a folder of such files.
    """
    if live:
        return run_live(place, given)
    if place != Place():
        raise click.UsageError("options of a place are for --live alone; leave them out, or add it")
    if given["trace"] is None:
        raise click.UsageError("Missing argument 'TRACE'.")
    seeds = given.pop("seeds")
    scenario = take_scenario(given)
    options = Options(source=scenario.trace, **given)
    if seeds is None:
        return run(scenario, options)
    return run_seeds(scenario, options, seeds=seeds)


def run_seeds(scenario: Scenario, options: Options, *, seeds: int) -> int:
    """Play a trace with several seeds on all cores, print means and spreads, and return the status."""
    # Not at the top, because one seed needs no other processes.
    from dlctl.verbs.studies import seeds as several  # noqa: PLC0415

    if options.jobs_out is not None:
        raise click.UsageError("--jobs-out is for one seed; leave --seeds out, and give --seed")
    if options.record is not None:
        raise click.UsageError("--record is for one seed; leave --seeds out, and give --seed")
    if options.plot is not None:
        raise click.UsageError(
            "--plot is for one seed; `dljob compare --seeds N --plot` draws several"
        )
    plan = several.Plan(
        scenario=scenario,
        policies=[contestant.label for contestant in options.policies],
        seeds=seeds,
        bound=options.bound,
        output=options.output,
    )
    return several.run(plan)


def run(scenario: Scenario, options: Options) -> int:
    """Play a trace, print the figures, and return the exit status."""
    setting = build_setting(scenario)
    workload = read_workload(scenario, setting)
    setting = charge_trials(scenario, setting, workload=workload)
    played = conclude(options, workload, setting=setting)
    if not played.outcomes:
        return INTERRUPTED
    bound = None
    if options.bound and not played.is_cut:
        try:
            bound = bounding.compute(workload, setting)
        except KeyboardInterrupt:
            played = replace(played, is_cut=True)
            say("interrupted: the bound is missing")
    text = printing.show_scores(
        [outcome.score for outcome in played.outcomes],
        options.output,
        bound=bound,
        premises=list_premises(workload, setting),
    )
    click.echo(text, nl=False)
    return INTERRUPTED if played.is_cut else 0


def run_live(place: Place, given: dict[str, Any]) -> int:
    """Play what a live system has, and print what would become of each of its jobs."""
    # Not at the top, because nothing else here needs what live systems are made of.
    from dlctl.verbs.studies import foretelling, live  # noqa: PLC0415

    context = click.get_current_context()
    typed = {n for n in given if context.get_parameter_source(n) is ParameterSource.COMMANDLINE}
    live.check_usage(typed)
    with opened(place) as backend:
        known = live.read_known(backend, state=place.state, profiles=given["profiles"])
        present = live.look(backend, known, seed=given["seed"])
    if not present.workload.jobs:
        say("There are no jobs that train or wait.")
        return 0
    chosen = given["policies"] if "policies" in typed else _read_policies([present.policy])
    options = Options(
        source=live.NAME,
        policies=chosen,
        bound=False,
        output=given["output"],
        jobs_out=given["jobs_out"],
        plot=given["plot"],
        record=given["record"],
        formats=given["formats"],
        look=given["look"],
    )
    workload = live.mislead(present.workload, given)
    played = conclude(options, workload, setting=live.adjust(present.setting, given, typed=typed))
    if played.outcomes:
        click.echo(foretelling.show(workload, played.outcomes, options.output), nl=False)
    return INTERRUPTED if played.is_cut else 0


def _read_policies(names: Sequence[str]) -> tuple[Contestant, ...]:
    return tuple(Contestant(name, policies.read(name)) for name in names)


@dataclass(frozen=True)
class Played:
    """The results, policy by policy."""

    outcomes: list[Outcome]
    is_cut: bool = False
    """Whether Ctrl-C ended it before all policies were played."""


def conclude(options: Options, workload: Workload, *, setting: Setting) -> Played:
    """Play the workload, say what is to be known of it, and write what is asked for."""
    check_outputs(options)
    played = play(options, workload, setting)
    outcomes = played.outcomes
    if played.is_cut:
        report_cut(options, outcomes)
    if not outcomes:
        return played
    for note in workload.notes:
        say(note)
    report_left_out(outcomes)
    if options.jobs_out is not None:
        write_jobs(options.jobs_out, outcomes, workload=workload)
    if options.plot is not None:
        draw(options.plot, outcomes, options)
    if options.record is not None:
        write_records(options.record, outcomes)
    return played


def report_cut(options: Options, outcomes: Sequence[Outcome]) -> None:
    """Say that this is a part of the result, and of which policies."""
    missing = [contestant.label for contestant in options.policies[len(outcomes) :]]
    say(
        f"interrupted: {len(outcomes)} of {len(options.policies)} policies were played to the end; "
        f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    )


def check_outputs(options: Options) -> None:
    """Find out now, and not after the replay, that a result could not be written."""
    if options.jobs_out is not None:
        writing.check_writable(options.jobs_out)
    if options.plot is not None:
        check_can_draw()
        writing.check_writable(options.plot / "picture.png")
    if options.record is not None:
        writing.check_writable(options.record)


def play(options: Options, workload: Workload, setting: Setting) -> Played:
    """Play the workload under every policy, with a bar for a person who watches."""
    # The output has a line for each of the few jobs of a live system.
    is_live = any(traced.standing is not None for traced in workload.jobs)
    keeps = is_live or options.jobs_out is not None or options.plot is not None
    outcomes: list[Outcome] = []
    with progress_bar() as bar, divert_libraries():
        watch = bar.watch if bar is not None else None
        try:
            played = simulate(
                workload,
                setting,
                options.policies,
                watch=watch,
                records=options.record is not None,
            )
            for outcome in played:
                _check_fits(options, outcome.record)
                outcomes.append(outcome if keeps else forget_history(outcome))
        except KeyboardInterrupt:
            # The results so far may have taken hours, and the user wants to see them.
            return Played(outcomes, is_cut=True)
    return Played(outcomes)


def _check_fits(options: Options, record: Record) -> None:
    if not record.jobs:
        raise BadInput(
            options.source,
            f"has no job that fits into {record.gpus} GPUs",
            remedy="give a larger cluster, or the types of GPU that its jobs ask for",
        )


def forget_history(outcome: Outcome) -> Outcome:
    """Keep the printed part of a run and drop the rest, before the next one needs the memory."""
    record = replace(outcome.record, log=[], series=Series(), decision_s=array("d"))
    return replace(outcome, record=record)


def report_left_out(outcomes: Sequence[Outcome]) -> None:
    """Name the jobs that are not in the figures."""
    # Which jobs are dropped does not depend on the policy, so one of them tells for all.
    dropped = outcomes[0].record.dropped
    if dropped:
        say(f"dropped {_name_jobs(dropped)}: more GPUs requested than the cluster has of a type")
    for outcome in outcomes:
        waiting = [job.job for job in outcome.record.unfinished]
        if waiting:
            say(
                f"{outcome.score.policy}: {_name_jobs(waiting)} never finished;"
                " figures of completions leave them out"
            )


def _name_jobs(jobs: Sequence[JobId]) -> str:
    named = ", ".join(jobs[:MOST_NAMED])
    more = f" and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else ""
    return f"{len(jobs)} job{'s' if len(jobs) > 1 else ''} (id {named}{more})"


def write_jobs(path: Path, outcomes: Sequence[Outcome], *, workload: Workload) -> None:
    """Write one row a job and policy."""
    rows = [
        row
        for outcome in outcomes
        for row in printing.list_jobs(outcome.score.policy, outcome.record, workload)
    ]
    writing.write_text(path, printing.to_csv(rows))


def write_records(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write all that happened, to one file for each policy."""
    # Not at the top, because most simulations are not recorded.
    from dlclient.exporting.files import write_file  # noqa: PLC0415

    for outcome in outcomes:
        assert outcome.happenings is not None
        name = outcome.score.policy.translate(_NO_SEPARATORS)
        own = path if len(outcomes) == 1 else path.with_stem(f"{path.stem}-{name}")
        write_file(own, outcome.happenings)


_NO_SEPARATORS = str.maketrans(dict.fromkeys("/:=,", "-"))
"""The options of a policy, or the file that it is from, are no folders."""


def draw(folder: Path, outcomes: Sequence[Outcome], options: Options) -> None:
    """Draw the runs, each picture named for the trace and what it shows."""
    # Not at the top, because it takes longer to load than a small trace to play.
    from dlctl.output.pictures import write_pictures  # noqa: PLC0415
    from dlsim.results import plots  # noqa: PLC0415

    runs = [plots.Run(outcome.score.policy, outcome.record) for outcome in outcomes]
    trace = outcomes[0].score.trace
    drawn = plots.draw_runs(runs, look=LOOKS[options.look])
    figures = {f"{trace}-{name}": figure for name, figure in drawn.items()}
    write_pictures(folder, figures, forms=options.formats)

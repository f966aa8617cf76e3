"""
``dljob simulate``: a trace under one or more policies, and the figures of each.

What it takes stands in ``dljob simulate --help``; what the figures mean, in
:mod:`dlsim.scoring`.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from dlcore.limits import NamespaceLimits
from dlcore.model import Cluster, JobId, Mechanism
from dlcore.profiles import JobType, Profile
from dlctl import arguments, printing, writing
from dlctl.bars import progress_bar
from dlctl.messages import say
from dlsim import failures, knowing, shipped, workloads
from dlsim.clusters import Machines, build_counted, build_packed, fill_nodes
from dlsim.costs import DEFAULT_COSTS, costs_of_change
from dlsim.errors import BadInput
from dlsim.records import Record, Series
from dlsim.simulating import Contestant, Outcome, simulate
from dlsim.workloads import Workload
from dlsim.world import Setting

DEFAULT_GPUS = 64
MOST_NAMED = 10
"""How many of the jobs that were dropped or never ended are named; all are counted."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line."""

    trace: Path
    gpus: tuple[Machines, ...] | None
    cluster: tuple[Machines, ...] | None
    policies: tuple[Contestant, ...]
    speeds: Path | None
    profiles: Path | None
    rigid: bool
    known: str
    predictor: str
    placement: str
    mechanism: str
    restart_cost: float | None
    period: float | None
    failures: Path | None
    max_gpus: dict[str, int] | None
    max_priority: dict[str, int] | None
    seed: int
    output: str
    jobs_out: Path | None
    plot: Path | None


@click.command("simulate")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--gpus",
    type=arguments.read_gpus,
    metavar="N",
    help=f"A cluster of N GPUs in nodes of eight; the last may be smaller.  [default: {DEFAULT_GPUS}]",
)
@click.option(
    "--cluster",
    type=arguments.read_cluster,
    metavar="NODESxGPUS[:TYPE][,…]",
    help="A cluster of such nodes, for example 2x8:V100,1x4:K80.",
)
@click.option(
    "--policy",
    "policies",
    type=arguments.read_contestant,
    multiple=True,
    default=("adaptive",),
    show_default=True,
    metavar="NAME",
    help="Who gets which GPUs; may be given several times. "
    "Options follow the name: tiresias:thresholds=3250,7200. See `dljob policies`.",
)
@click.option(
    "--speeds",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measured speeds: CSV with the columns gpu_type, model, global_batch_size, num_gpus, "
    "iterations_per_s, and if you like nodes and dataset. They take the place of the shipped ones.",
)
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measured speeds and costs, as `dljob profiles measure` and `export` write them. They take "
    "the place of the shipped ones, and of the default costs.",
)
@click.option(
    "--known",
    type=click.Choice(["all", "mini-epochs"]),
    default="all",
    show_default=True,
    help="Which speeds policies know: all, or what Coach's mini-epochs show of each type of job, for "
    "which every job pays before it trains.",
)
@click.option(
    "--predictor",
    type=click.Choice(["own", "marginal-utility"]),
    default="own",
    show_default=True,
    help="How policies conclude from speeds that they know to others: as DLJob does, or by Coach's "
    "marginal utility.",
)
@click.option("--rigid", is_flag=True, help="Every job runs on exactly the GPUs it requested.")
@click.option(
    "--placement",
    type=click.Choice(["packed", "counted"]),
    default="packed",
    show_default=True,
    help="packed: GPUs are on nodes, and jobs on as few as possible. counted: only numbers matter.",
)
@click.option(
    "--mechanism",
    type=click.Choice([each.value for each in Mechanism]),
    default=Mechanism.IN_PLACE.value,
    show_default=True,
    help="How GPUs change hands: the process restarts in its pod, or the pods are created again.",
)
@click.option(
    "--restart-cost",
    type=arguments.read_seconds,
    metavar="SECONDS",
    help="What each start of a job and each change of its GPUs costs. Default: "
    f"{DEFAULT_COSTS.pod_start(1) + DEFAULT_COSTS.process_start(1):g} s a start; "
    f"{DEFAULT_COSTS.process_restart(1):g} s a change in place, "
    f"{DEFAULT_COSTS.pod_restart(1):g} s by recreation.",
)
@click.option(
    "--period",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Decide at least so often though nothing has happened, as `dljob up` does every 15 s.  "
    "[default: only when something has]",
)
@click.option(
    "--failures",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Nodes that fail: CSV with the columns time_s, node, event (lost or back). "
    "Nodes are called node-0, node-1 and so on; node-00, node-01 where there are more than ten.",
)
@click.option(
    "--max-gpus",
    type=arguments.read_limits,
    metavar="NAMESPACE=N[,…]",
    help="How many GPUs the jobs of a namespace may have together, as the setting limits.maxGpus of "
    "a controller; * stands for those not named. A job NAMESPACE/NAME is in that namespace.",
)
@click.option(
    "--max-priority",
    type=arguments.read_limits,
    metavar="NAMESPACE=N[,…]",
    help="The highest priority that jobs of a namespace may have, as limits.maxPriority.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="For all that is drawn.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(printing.FORMATS),
    default="table",
    show_default=True,
    help="How the figures are printed.",
)
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
    help="Also draw the runs, as PNG and SVG into DIR, or into plots/. The word behind it is "
    "taken for DIR, so without DIR put it last.",
)
def command(**given: Any) -> None:
    """
    Play TRACE under one or more policies and print their figures.

    TRACE is a CSV file (job_id,submit_time_s,duration_s,num_gpus or any other format that
    `docs/simulator.md` lists; it may be gzipped), a YAML file of DLJobs with the annotation
    dljob.io/submit-at, or a folder of such files.
    """
    run(Options(**given))


def run(options: Options) -> None:
    """Do what the command line says."""
    setting = build_setting(options)
    workload = read_workload(options, setting)
    setting, workload = limit_knowledge(options, setting, workload)
    check_outputs(options)
    outcomes = play(options, workload, setting)
    for note in workload.notes:
        say(note)
    report_left_out(outcomes)
    if options.jobs_out is not None:
        write_jobs(options.jobs_out, outcomes)
    if options.plot is not None:
        draw(options.plot, outcomes)
    scores = [outcome.score for outcome in outcomes]
    click.echo(printing.show_scores(scores, options.output), nl=False)


def build_setting(options: Options) -> Setting:
    """Build the world that the options describe."""
    if options.gpus is not None and options.cluster is not None:
        raise click.UsageError("--gpus and --cluster exclude each other; give one of them")
    machines = options.cluster or options.gpus or fill_nodes(DEFAULT_GPUS)
    counted = options.placement == "counted"
    if counted and options.failures is not None:
        raise click.UsageError("--failures needs nodes that can fail; use --placement packed")
    try:
        limits = NamespaceLimits(
            max_gpus=options.max_gpus or {}, max_priority=options.max_priority or {}
        )
    except ValueError as error:
        raise click.UsageError(f"--max-gpus or --max-priority: {error}") from error
    nodes = build_counted(machines) if counted else build_packed(machines)
    names = {node.name for node in nodes}
    cost = options.restart_cost
    return Setting(
        nodes=nodes,
        mechanism=Mechanism(options.mechanism),
        costs=DEFAULT_COSTS if cost is None else costs_of_change(cost),
        seed=options.seed,
        period_s=math.inf if options.period is None else options.period,
        outages=failures.read_failures(options.failures, names) if options.failures else (),
        limits=limits,
    )


def read_workload(options: Options, setting: Setting) -> Workload:
    """Read the trace, and measured speeds if there are any."""
    cluster = Cluster(setting.nodes)
    width = max(len(node.gpus) for node in setting.nodes)
    measured: dict[JobType, Profile] = {}
    if options.speeds is not None:
        measured |= shipped.load_speeds(options.speeds, gpus_per_node=width)
    if options.profiles is not None:
        measured |= shipped.load_profiles(options.profiles)
    return workloads.read(
        options.trace,
        rigid=options.rigid,
        speeds=measured,
        seed=options.seed,
        # The first one named is the one that durations are told for.
        gpu_types=tuple(dict.fromkeys(node.gpu_type for node in cluster.nodes)),
        largest=max(cluster.totals.values()),
        node_gpus=width,
    )


def limit_knowledge(
    options: Options, setting: Setting, workload: Workload
) -> tuple[Setting, Workload]:
    """Let policies know and believe what the options say, and charge for what is measured."""
    if options.known == "mini-epochs":
        workload = knowing.know_by_mini_epochs(workload)
        trials = knowing.price_mini_epochs(workload, setting.costs, setting.mechanism)
        setting = replace(setting, trials=trials)
    if options.predictor == "marginal-utility":
        workload = knowing.believe_marginal_utility(workload)
    return setting, workload


def check_outputs(options: Options) -> None:
    """Find out now, and not after the replay, that a result could not be written."""
    if options.jobs_out is not None:
        writing.check_writable(options.jobs_out)
    if options.plot is not None:
        writing.check_writable(options.plot / "picture.png")


def play(options: Options, workload: Workload, setting: Setting) -> list[Outcome]:
    """Play the workload under every policy, with a bar for who watches."""
    keeps = options.jobs_out is not None or options.plot is not None
    outcomes: list[Outcome] = []
    with progress_bar() as bar:
        watch = bar.watch if bar is not None else None
        for outcome in simulate(workload, setting, options.policies, watch=watch):
            if not outcome.record.jobs:
                raise _nothing_fits(options, outcome.record)
            outcomes.append(outcome if keeps else forget_history(outcome))
    return outcomes


def _nothing_fits(options: Options, record: Record) -> BadInput:
    return BadInput(
        options.trace,
        f"has no job that fits into {record.gpus} GPUs",
        remedy="give a larger cluster, or the types of GPU that its jobs ask for",
    )


def forget_history(outcome: Outcome) -> Outcome:
    """Keep what is told of a run and let go of the rest, before the next one needs the memory."""
    record = replace(outcome.record, log=[], series=Series(), decision_s=array("d"))
    return Outcome(outcome.score, record)


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


def write_jobs(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write one row a job and policy."""
    rows = [
        row
        for outcome in outcomes
        for row in printing.list_jobs(outcome.score.policy, outcome.record)
    ]
    writing.write_text(path, printing.to_csv(rows))


def draw(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Draw the runs, each picture named for the trace and what it shows."""
    # Not at the top, because it takes longer to load than a small trace to play.
    from dlctl.pictures import write_pictures  # noqa: PLC0415
    from dlsim import plots  # noqa: PLC0415

    runs = [plots.Run(outcome.score.policy, outcome.record) for outcome in outcomes]
    trace = outcomes[0].score.trace
    figures = {f"{trace}-{name}": figure for name, figure in plots.draw_runs(runs).items()}
    write_pictures(folder, figures)

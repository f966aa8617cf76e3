"""
The options by which verbs say what is played, and the scenario that they make.

``dljob simulate``, ``compare`` and ``bound`` take the same traces and clusters. Each option is
written once, here, and :func:`take_scenario` turns the values into a
:class:`~dljob.sim.scenarios.Scenario`.
"""

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from dljob.cli.inputs import arguments
from dljob.cli.output import printing
from dljob.core.model import Mechanism
from dljob.core.placement.limits import NamespaceLimits
from dljob.sim.clusters import fill_nodes
from dljob.sim.engine.controlling.costs import DEFAULT_COSTS, LIVE_GROW_S, LIVE_SHRINK_S
from dljob.sim.results.looks import FORMATS, LOOKS, USUAL
from dljob.sim.scenarios import (
    LAB_WORLDS,
    MARGINAL_UTILITY,
    MINI_EPOCHS,
    NONE,
    Scenario,
    load_rules,
)

DEFAULT_GPUS = 64

Options = tuple[Callable[[Any], Any], ...]


def takes(*groups: Options) -> Callable[[Any], Any]:
    """Give a command the options of these groups, in their order."""

    def decorate(command: Any) -> Any:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return decorate


def take_scenario(given: dict[str, Any]) -> Scenario:
    """Take what describes a scenario out of the values of options; others stay."""
    gpus, cluster = given.pop("gpus"), given.pop("cluster")
    if gpus is not None and cluster is not None:
        raise click.UsageError("--gpus and --cluster exclude each other; give one of them")
    world = given.pop("world")
    machines = fill_nodes(DEFAULT_GPUS) if world is None else load_rules(world).machines
    counted = given.pop("placement") == "counted"
    if given.get("no_checkpoint", 0.0) + given.get("broken_checkpoint", 0.0) > 1.0:
        raise click.UsageError(
            "--no-checkpoint and --broken-checkpoint are shares of the same jobs; let them add up to"
            " 1 at most"
        )
    failures = given.pop("failures", None)
    if counted and failures is not None:
        raise click.UsageError("--failures needs nodes that can fail; use --placement packed")
    names = [each.name for each in fields(NamespaceLimits)]
    try:
        limits = NamespaceLimits(**{name: given.pop(name, None) or {} for name in names})
    except ValueError as error:
        raise click.UsageError(f"--max-gpus, --max-priority or --shares: {error}") from error
    period = given.pop("period")
    return Scenario(
        trace=given.pop("trace"),
        machines=cluster or gpus or machines,
        world=world,
        counted=counted,
        mechanism=Mechanism(given.pop("mechanism")),
        restart_cost_s=given.pop("restart_cost", None),
        period_s=math.inf if period is None else period,
        failures=failures,
        no_checkpoint=given.pop("no_checkpoint", 0.0),
        broken_checkpoint=given.pop("broken_checkpoint", 0.0),
        live_jobs=given.pop("live_jobs", 0.0),
        live_cost_s=given.pop("live_cost", (LIVE_SHRINK_S, LIVE_GROW_S)),
        trial_s=given.pop("trial", 0.0),
        limits=limits,
        rigid=given.pop("rigid"),
        speeds=given.pop("speeds"),
        profiles=given.pop("profiles"),
        seed=given.pop("seed", 0),
        window=given.pop("window"),
        load=given.pop("load", None),
        speed_error=given.pop("speed_error", 0.0),
        size_error=given.pop("size_error", 0.0),
        sizes_known=given.pop("sizes", "known") == "known",
        known=given.pop("known", "all"),
        predictor=given.pop("predictor", "own"),
    )


CLUSTER: Options = (
    click.option(
        "--gpus",
        type=arguments.read_gpus,
        metavar="N",
        help=f"A cluster of N GPUs in nodes of eight; the last may be smaller.  [default: {DEFAULT_GPUS}]",
    ),
    click.option(
        "--cluster",
        type=arguments.read_cluster,
        metavar="NODESxGPUS[:TYPE][,…]",
        help="A cluster of such nodes, for example 2x8:V100,1x4:K80.",
    ),
    click.option(
        "--world",
        type=click.Choice(LAB_WORLDS),
        help="Play by the rules of a published evaluation: its cluster, unless another is given, its "
        "speeds, costs, rounds and limits. See docs/simulator-inputs.md.",
    ),
    click.option(
        "--placement",
        type=click.Choice(["packed", "counted"]),
        default="packed",
        show_default=True,
        help="packed: GPUs are on nodes, and jobs on as few as possible. counted: only numbers matter.",
    ),
    click.option(
        "--mechanism",
        type=click.Choice([each.value for each in Mechanism]),
        default=Mechanism.IN_PLACE.value,
        show_default=True,
        help="How GPUs change hands: the process restarts in its pod, or the pods are created again.",
    ),
    click.option(
        "--period",
        type=click.FloatRange(min=0.1, max=arguments.LONGEST_S),
        metavar="SECONDS",
        help="Decide at least so often though nothing has happened, as `dljob up` does every 15 s.  "
        "[default: only when something has]",
    ),
)
"""The cluster, and how its GPUs change hands."""

LIVE: Options = (
    click.option(
        "--live-jobs",
        type=click.FloatRange(0.0, 1.0),
        default=0.0,
        metavar="SHARE",
        help="Let such a share of the jobs, drawn by --seed, change their GPUs live where some of them stay: their "
        "processes go on, and newcomers start meanwhile. A column live of TRACE (0 or 1) says it of single jobs.",
    ),
    click.option(
        "--live-cost",
        type=arguments.read_pauses,
        default=f"{LIVE_SHRINK_S:g},{LIVE_GROW_S:g}",
        show_default=True,
        metavar="SHRINK,GROW",
        help="The pauses of a live change to fewer GPUs and to more, in seconds.",
    ),
)
"""Jobs whose processes stay when their GPUs change."""

SPEEDS: Options = (
    click.option(
        "--speeds",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Measured speeds: CSV with the columns gpu_type, model, global_batch_size, num_gpus, "
        "iterations_per_s, and if you like nodes and dataset. They take the place of the shipped ones.",
    ),
    click.option(
        "--profiles",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Measured speeds and costs, as `dljob profiles measure` and `export` write them. They take "
        "the place of the shipped ones, and of the default costs.",
    ),
    click.option("--rigid", is_flag=True, help="Every job runs on exactly the GPUs it requested."),
)
"""How fast jobs are."""

PART: Options = (
    click.option(
        "--window",
        type=click.IntRange(min=1),
        metavar="N",
        help="Play N consecutive jobs of the trace, from a place that --seed draws.  [default: all]",
    ),
)
"""Which part of a trace is played."""

CASE: Options = (
    click.option(
        "--restart-cost",
        type=arguments.read_seconds,
        metavar="SECONDS",
        help="The cost of each start of a job and each change of its GPUs. Default: "
        f"{DEFAULT_COSTS.pod_start(1) + DEFAULT_COSTS.process_start(1):g} s a start; "
        f"{DEFAULT_COSTS.process_restart(1):g} s a change in place, "
        f"{DEFAULT_COSTS.pod_restart(1):g} s by recreation.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(-arguments.MOST_SEED, arguments.MOST_SEED),
        default=0,
        show_default="0",
        metavar="N",
        help="For all that is drawn.",
    ),
    click.option(
        "--load",
        type=arguments.read_load,
        metavar="X",
        help="Stretch or squeeze the times of submission until the requested GPU time is X times what "
        "the cluster has in that time.  [default: as they are]",
    ),
)
"""The options of which a comparison may have several values."""

KNOWLEDGE: Options = (
    click.option(
        "--speed-error",
        type=arguments.read_error,
        default=0.0,
        metavar="SIGMA",
        help="Let policies believe speeds that are wrong by lognormal factors: 0.2 for some 20 %.",
    ),
    click.option(
        "--size-error",
        type=arguments.read_error,
        default=0.0,
        metavar="SIGMA",
        help="The same for the number of iterations of each job.",
    ),
    click.option(
        "--sizes",
        type=click.Choice(["known", "unknown"]),
        default="known",
        show_default=True,
        help="unknown: policies are not given how many iterations a job needs.",
    ),
    click.option(
        "--known",
        type=click.Choice(["all", MINI_EPOCHS, NONE]),
        default="all",
        show_default=True,
        help="Which speeds policies know: all; what Coach's mini-epochs show of each type of job, for which "
        "every job pays before it trains; or only those that they learn, with the costs, as controllers do.",
    ),
    click.option(
        "--predictor",
        type=click.Choice(["own", MARGINAL_UTILITY]),
        default="own",
        show_default=True,
        help="How policies conclude from speeds that they know to others: as DLJob does, or by Coach's "
        "marginal utility.",
    ),
)
"""The options about the knowledge of policies."""

TROUBLE: Options = (
    click.option(
        "--failures",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Nodes that fail: CSV with the columns time_s, node, event (lost or back). "
        "Nodes are called node-0, node-1 and so on; node-00, node-01 where there are more than ten.",
    ),
    click.option(
        "--no-checkpoint",
        type=click.FloatRange(0.0, 1.0),
        default=0.0,
        metavar="SHARE",
        help="Let such a share of the jobs, drawn by --seed, have no checkpoint: each keeps the GPUs that it "
        "starts with. A column checkpoint of TRACE (good, none or broken) says it of single jobs.",
    ),
    click.option(
        "--broken-checkpoint",
        type=click.FloatRange(0.0, 1.0),
        default=0.0,
        metavar="SHARE",
        help="The same for jobs that declare a checkpoint which does not work, as its trial shows.",
    ),
    click.option(
        "--trial",
        type=arguments.read_seconds,
        default=0.0,
        metavar="SECONDS",
        help="How long the trial of a checkpoint takes; until it is over the job keeps its GPUs.",
    ),
    click.option(
        "--max-gpus",
        type=arguments.read_limits,
        metavar="NAMESPACE=N[,…]",
        help="How many GPUs the jobs of a namespace may have together, as the setting limits.maxGpus of "
        "a controller; * stands for those not named. A job NAMESPACE/NAME is in that namespace.",
    ),
    click.option(
        "--max-priority",
        type=arguments.read_limits,
        metavar="NAMESPACE=N[,…]",
        help="The highest priority that jobs of a namespace may have, as limits.maxPriority.",
    ),
    click.option(
        "--shares",
        type=arguments.read_limits,
        metavar="NAMESPACE=N[,…]",
        help="The weights by which namespaces are owed GPUs, as limits.shares.",
    ),
)
"""Failing nodes, and limits of namespaces."""

PICTURES: Options = (
    click.option(
        "--plot-format",
        "formats",
        type=arguments.read_formats,
        default=",".join(USUAL),
        show_default=True,
        metavar="FORMAT[,…]",
        help=f"How pictures are written: {', '.join(FORMATS)}.",
    ),
    click.option(
        "--plot-width",
        "look",
        type=click.Choice(list(LOOKS)),
        default="page",
        show_default=True,
        help="How wide pictures are: as a page (7 inches), or as one column of a paper in two columns (3.4).",
    ),
)
"""How pictures look."""

OUTPUT: Options = (
    click.option(
        "-o",
        "--output",
        type=click.Choice(printing.FORMATS),
        default="table",
        show_default=True,
        help="How the figures are printed.",
    ),
)
"""How figures are printed."""

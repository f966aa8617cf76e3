"""
How good the shares of ``sia`` are for how much it may search, and how long that takes.

A round of ``sia`` solves an integer programme, which is large where many jobs and several types of GPU are. Its
option ``jobs`` limits among how many jobs a round decides; the others keep what they have, or wait. A row
a limit: the average completion time over the bound that no policy can pass, the processor
time of the decisions, and that of a decision about a crowd: ``--crowd`` jobs that all wait for a cluster with ten
times as many nodes (``crowd_ms``; each of three times). The workload is a part of Gavel's ``continuous_96`` on three types of GPU, because on one
type the programme is a knapsack, which is solved exactly at once.
"""

import gc
import time
from dataclasses import replace
from itertools import cycle as repeat
from itertools import islice
from pathlib import Path
from typing import Any

import click
from _budgets import draw_budgets, play
from _measuring import describe_machine, print_result, summarize
from _progress import count, run

from dljob.core import cycle, policies
from dljob.core.contract import Policy
from dljob.core.model import Cluster, JobId, JobState, Snapshot
from dljob.sim.clusters import Machines, build_packed
from dljob.sim.engine.settings import Setting
from dljob.sim.inputs.shipped import find_folder
from dljob.sim.jobs.workloads import Workload
from dljob.sim.scenarios import Scenario, build_setting, read_workload
from dljob_lab.bounding.bounds import bound_mean_jct

CLUSTER = (Machines(6, 4, "V100"), Machines(6, 4, "P100"), Machines(4, 4, "K80"))
RESTART_S = 30.0
TIMES_LARGER, REPETITIONS = 10, 3


def make_scenario(window: int, load: float) -> Scenario:
    """The workload, on GPUs that are only counted."""
    return Scenario(
        trace=find_folder() / "suite" / "gavel_continuous_96.csv.gz",
        machines=CLUSTER,
        counted=True,
        restart_cost_s=RESTART_S,
        window=window,
        load=load,
    )


def build_crowd(workload: Workload, jobs: int) -> Snapshot:
    """Make a snapshot with ``jobs`` jobs of the workload, which all wait for a large cluster."""
    states = (
        JobState(
            job=replace(traced.job, id=JobId(f"job-{order}")),
            order=order,
            iterations_total=float(traced.job.training.iterations or 0),
        )
        for order, traced in enumerate(islice(repeat(workload.jobs), jobs))
    )
    larger = [each._replace(nodes=each.nodes * TIMES_LARGER) for each in CLUSTER]
    cluster = Cluster(build_packed(larger))
    return Snapshot(now=0.0, cluster=cluster, pending=tuple(states), profiles=workload.known)


def time_crowd(policy: Policy, crowd: Snapshot) -> list[float]:
    """Milliseconds of processor time of whole decisions about the same crowd."""
    times = []
    for _ in range(REPETITIONS):
        gc.collect()
        began = time.process_time()
        cycle.schedule(crowd, policy)
        times.append((time.process_time() - began) * 1000.0)
    return times


def make_row(
    budget: int, workload: Workload, setting: Setting, *, bound_s: float, crowd: Snapshot
) -> dict[str, Any]:
    """Return the results of one limit."""
    policy = policies.make("sia", {"jobs": str(budget)})
    score, times = play(policy, workload, setting)
    return {
        "jobs": budget,
        "avg_jct_over_bound": round(score.avg_jct_s / bound_s, 4),
        "avg_jct_s": round(score.avg_jct_s, 1),
        "p99_jct_s": round(score.p99_jct_s, 1),
        "processor_ms": times,
        "crowd_ms": summarize(time_crowd(policy, crowd)),
    }


@click.command(help=__doc__)
@click.option("--budget", "budgets", type=int, multiple=True, default=(2, 32, 512))
@click.option("--window", type=click.IntRange(1), default=150, show_default=True)
@click.option("--load", type=float, default=1.2, show_default=True)
@click.option("--crowd", "waiting", type=click.IntRange(1), default=2000, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw quality and time here.")
def main(
    *,
    budgets: tuple[int, ...],
    window: int,
    load: float,
    waiting: int,
    form: str,
    plot: Path | None,
) -> None:
    scenario = make_scenario(window, load)
    setting = build_setting(scenario)
    workload = read_workload(scenario, setting)
    bound_s = bound_mean_jct(workload, setting).avg_jct_s
    crowd = build_crowd(workload, waiting)
    time_crowd(
        policies.make("sia", {"jobs": "2"}), crowd
    )  # The process loads its libraries only once.
    rows = [
        make_row(budget, workload, setting, bound_s=bound_s, crowd=crowd)
        for budget in count(sorted(budgets), "{} jobs a round".format)
    ]
    if plot is not None:
        draw_budgets(
            plot,
            "sia: quality and time against its limit",
            rows,
            budget="jobs",
            across="among so many jobs a round decides (option jobs)",
            quality="avg_jct_over_bound",
            up="average JCT / bound",
            times={
                f"about {waiting:,} waiting jobs": ("crowd_ms", "max"),
                "in the workload, 99th percentile": ("processor_ms", "p99"),
            },
        )
    print_result(
        [*rows, {"window": window, "load": load, "crowd": waiting, **describe_machine()}], form
    )


if __name__ == "__main__":
    run(main)

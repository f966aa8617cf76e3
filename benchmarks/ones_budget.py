"""
How good the schedules of ``ones`` are for how much they may search, and how long that takes.

``ones`` evolves schedules, and its options say how many genomes an update may evaluate: a budget
that no slow machine can change. A row a budget: the average completion time on the workload of the
paper (dljob_lab.reproducing.ones_workload) on 16 GPUs, where jobs queue, its mean over seeds and spread, and the
processor time of decisions. Where GPUs are idle the search has nothing to choose, and every budget is as good.
"""

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import click
from _budgets import draw_budgets, play
from _measuring import describe_machine, print_result
from _progress import count, run

from dljob.sim import policies
from dljob.sim.clusters import Machines, build_packed
from dljob.sim.engine.settings import Setting
from dljob.sim.results.scoring import Score
from dljob_lab.reproducing.ones import OURS_COSTS
from dljob_lab.reproducing.ones_workload import Rules, make_workload

MANY = 1000


def measure(budget: int, seed: int, jobs: int) -> tuple[Score, dict[str, float]]:
    """Play the workload with ``budget`` evaluations for each update."""
    workload = make_workload(seed, Rules(jobs=jobs))
    options = {"evaluations": str(budget), "generations": str(MANY), "population": "16"}
    policy = policies.make("ones", options)
    setting = Setting(nodes=build_packed([Machines(4, 4, "V100")]), costs=OURS_COSTS, seed=seed)
    return play(policy, workload, setting)


def make_row(budget: int, seeds: int, jobs: int) -> dict[str, Any]:
    """Return the results of one budget."""
    played = [measure(budget, seed, jobs) for seed in range(seeds)]
    times = [score.avg_jct_s for score, _ in played]
    return {
        "evaluations": budget,
        "avg_jct_s": fmean(times),
        "spread_s": stdev(times) if seeds > 1 else 0.0,
        "processor_ms": {
            which: max(taken[which] for _, taken in played) for which in ("p50", "p99", "max")
        },
        "jobs": jobs,
        "seeds": seeds,
        **describe_machine(),
    }


@click.command(help=__doc__)
@click.option("--budget", "budgets", type=int, multiple=True, default=(4, 64, 512))
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=30, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw quality against time here.")
def main(budgets: tuple[int, ...], seeds: int, jobs: int, form: str, plot: Path | None) -> None:
    rows = [make_row(budget, seeds, jobs) for budget in count(budgets, "{} evaluations".format)]
    if plot is not None:
        draw_budgets(
            plot,
            "ones: quality and time against its budget",
            rows,
            budget="evaluations",
            across="evaluations for each update",
            quality="avg_jct_s",
            up="average JCT (s)",
            times={
                "longest": ("processor_ms", "max"),
                "99th percentile": ("processor_ms", "p99"),
            },
        )
    print_result(rows, form)


if __name__ == "__main__":
    run(main)

"""
How good the schedules of ``ones`` are for how much they may search, and how long that takes.

``ones`` evolves schedules, and its options say how many genomes an update may evaluate: a budget
that no slow machine can change. A row a budget: the average completion time on the workload of the
paper (dlsim.reproducing.ones_workload) on 16 GPUs, where jobs queue, its mean over seeds and spread, and the
time of decisions. Where GPUs are idle the search has nothing to choose, and every budget is as good.
"""

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import click
from _measuring import describe_machine, draw_rows, print_result

from dlcore import policies
from dlsim.clusters import Machines, build_packed
from dlsim.reproducing.ones import INTERVAL_S, OURS_COSTS
from dlsim.reproducing.ones_workload import make_workload
from dlsim.scoring import Score
from dlsim.simulating import Contestant, simulate
from dlsim.world import Setting

MANY = 10**6


def measure(budget: int, seed: int, jobs: int) -> Score:
    """Play the workload with so many evaluations for each update."""
    workload = make_workload(jobs=jobs, interval_seconds=INTERVAL_S, seed=seed)
    options = {"evaluations": str(budget), "generations": str(MANY), "population": "16"}
    policy = policies.make("ones", options)
    setting = Setting(nodes=build_packed([Machines(4, 4, "V100")]), costs=OURS_COSTS, seed=seed)
    (outcome,) = simulate(workload, setting, [Contestant("ones", policy)])
    return outcome.score


def make_row(budget: int, seeds: int, jobs: int) -> dict[str, Any]:
    """What one budget comes to."""
    scores = [measure(budget, seed, jobs) for seed in range(seeds)]
    times = [score.avg_jct_s for score in scores]
    return {
        "evaluations": budget,
        "avg_jct_s": fmean(times),
        "spread_s": stdev(times) if seeds > 1 else 0.0,
        "decision_ms": {
            "p50": max(score.decision_ms.p50 for score in scores),
            "p99": max(score.decision_ms.p99 for score in scores),
            "max": max(score.decision_ms.max for score in scores),
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
    rows = [make_row(budget, seeds, jobs) for budget in budgets]
    if plot is not None:
        points = {
            "average completion time (s)": [(r["evaluations"], r["avg_jct_s"]) for r in rows],
            "longest decision (ms)": [(r["evaluations"], r["decision_ms"]["max"]) for r in rows],
        }
        title = "ones: quality and time against its budget"
        draw_rows(plot, title, points, across="evaluations for each update", up="s or ms")
    print_result(rows, form)


if __name__ == "__main__":
    main()

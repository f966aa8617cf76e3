"""
How fast a trace is replayed: every event of it through the very same cycle as in production.

Each policy is replayed in a process of its own, so that its peak memory is its own. Rigid jobs on
64 GPUs counted without placement, preemption free of charge: the rules under which others
published figures. Without options a small trace is taken; ``--full`` takes the largest, of 41,226
jobs.
"""

import dataclasses
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click
from _measuring import describe_machine, draw_rows, print_result
from _progress import count, run

from dlcore import policies
from dlcore.model import Node
from dlsim.engine.settings import Setting
from dlsim.jobs import workloads
from dlsim.simulating import Contestant, simulate

TRACES = Path(__file__).resolve().parents[1] / "tests" / "data" / "traces"
SMALL = TRACES / "philly_7f04ca.csv.gz"
LARGEST = TRACES / "philly_6214e9.csv.gz"
GPUS = 64
POLICIES = ("fifo", "srtf", "srsf", "tiresias")
LIMIT_S, LIMIT_MB = 60.0, 1024.0


def replay(trace: Path, name: str) -> dict[str, Any]:
    """Replay one trace under one policy and tell what it took."""
    workload = workloads.read(
        trace, rigid=True, speeds=None, seed=0, gpu_types=("",), largest=GPUS, node_gpus=GPUS
    )
    setting = Setting(nodes=(Node.of("all", GPUS),))
    contestants = [Contestant(name, policies.make(name))]
    (outcome,) = simulate(workload, setting, contestants)
    score, queue = outcome.score, outcome.record.series.pending
    return {
        "policy": name,
        "trace": workload.name,
        "jobs": score.jobs,
        "gpus": GPUS,
        "decisions": score.decisions,
        "pending_per_decision": round(sum(queue) / len(queue), 1),
        "decision_ms": {
            key: round(value, 3) for key, value in dataclasses.asdict(score.decision_ms).items()
        },
        "wall_s": round(score.wall_s, 2),
        "ms_per_decision": round(1000 * score.wall_s / score.decisions, 3),
        "peak_rss_mb": round(score.peak_rss_mb, 1),
        "avg_jct_s": round(score.avg_jct_s, 1),
    }


@click.command(help=__doc__)
@click.option("--trace", type=click.Path(exists=True, path_type=Path), help="Another trace.")
@click.option("--full", is_flag=True, help="The largest shipped trace.")
@click.option("--policy", "names", multiple=True, type=click.Choice(policies.NAMES))
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the times into this file.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(
    *, trace: Path | None, full: bool, names: tuple[str, ...], plot: Path | None, form: str
) -> None:
    """Replay under every policy, one process after the other."""
    path = trace or (LARGEST if full else SMALL)
    rows: list[dict[str, Any]] = []
    for name in count(names or POLICIES):
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
            rows.append(pool.submit(replay, path, name).result())
    if plot is not None:
        title = f"Replay of {rows[0]['trace']}: {rows[0]['jobs']} jobs on {GPUS} GPUs"
        points = {row["policy"]: [(row["policy"], row["wall_s"])] for row in rows}
        draw_rows(plot, title, points, across="policy", up="seconds")
    print_result([{**row, "machine": describe_machine()} for row in rows], form)


if __name__ == "__main__":
    run(main)

"""
AFS's section 2.2 with a queue that is full: trace 3 whole, at the load that it has here and squeezed to higher ones.

The paper's Max-Min needs 26 times as long as AFS-L there, because its queue grows for months. The trace at hand lacks the
largest jobs: of the two clusters that are here nearly whole as well, the whole offers 2.0 and 2.7 times the load of the
part, which would be 1.8 and 2.4 for trace 3. A row a load and policy. ``docs/reproduction/afs.md`` shows the outcome.
"""

from collections.abc import Sequence
from typing import Any

import click
from _measuring import print_result
from _progress import run, say

from dljob.sim.inputs.shipped import find_folder
from dljob_lab.reproducing.afs.evaluation import HEAVY
from dljob_lab.reproducing.afs.plays import Figures, Task, Variant, play
from dljob_lab.reproducing.pooling import play_all

DAYS = {"srtf": 3.53, "srsf": 3.32, "max-min": 63.20, "afs-l": 2.40}
"""The averages of the paper."""

DAY_S = 86_400.0


def make_row(task: Task, figures: Figures, *, best: Figures) -> dict[str, Any]:
    """Return the figures of one play, beside those of AFS-L at the same load."""
    return {
        "load": "as it comes" if task.load is None else f"{task.load:g}",
        "policy": task.variant.name,
        "paper_days": DAYS[task.variant.name],
        "days": figures.avg_jct_s / DAY_S,
        "paper_ratio": DAYS[task.variant.name] / DAYS["afs-l"],
        "ratio": figures.avg_jct_s / best.avg_jct_s,
        "queue": figures.queue,
    }


@click.command(help=__doc__)
@click.option("--load", "loads", type=float, multiple=True, default=(1.8, 2.4), show_default=True)
@click.option("--window", type=click.IntRange(1), help="So many jobs in place of all.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, loads: Sequence[float], window: int | None, form: str) -> None:
    path = find_folder() / "afs" / f"philly_{HEAVY}.csv.gz"
    tasks = [
        Task(HEAVY, path, Variant(name, name), 0, window, load)
        for load in (*loads, None)
        for name in reversed(DAYS)
    ]
    found = dict(zip(tasks, play_all(play, tasks, step=lambda: say("one more play")), strict=True))
    best = {task.load: each for task, each in found.items() if task.variant.name == "afs-l"}
    print_result([make_row(task, each, best=best[task.load]) for task, each in found.items()], form)


if __name__ == "__main__":
    run(main)

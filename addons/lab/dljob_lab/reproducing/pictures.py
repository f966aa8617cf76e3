"""
The figures of papers, drawn of our own runs: ``dljob reproduce NAME --plot DIR``.

One run of each policy is drawn, the first seed of those in the tables. The numbers in the names of the pictures are those
of the paper's figures.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from dljob.sim.inputs.shipped import find_folder
from dljob.sim.results.looks import PAGE, Look
from dljob_lab.axes import count_upwards
from dljob_lab.plots import (
    Run,
    add_legend,
    draw_changes,
    draw_gpus,
    draw_jct,
    draw_jobs,
    make_panels,
    style_line,
    styled,
)
from dljob_lab.reproducing.afs.evaluation import (
    HEAVY,
    LOADED_WINDOW,
    LOADS,
    VARIANTS,
    find_traces,
)
from dljob_lab.reproducing.afs.plays import Task, replay
from dljob_lab.reproducing.drawing import draw_dragon, draw_ones
from dljob_lab.reproducing.pooling import play_all
from dljob_lab.reproducing.sidecar.runs import BASELINES, OURS, find_pending, play
from dljob_lab.reproducing.sidecar.workloads import PLANS

Pictures = Mapping[str, Figure]

SIDECAR = (*BASELINES, OURS)
"""The approaches of the SideCar paper."""

UNKNOWN_LENGTHS = ("tiresias", "themis", "optimus", "afs-p", "max-min")
"""The policies of Figures 7 and 10 of AFS; times are compared with those under the first."""

BINS = 100


def draw_sidecar() -> Pictures:
    """Draw Figures 7 to 11 of Workload One, and Figure 9 of Workload Two as well."""
    one, two = ([Run(name, play(plan, name, seed=0)) for name in SIDECAR] for plan in PLANS[:2])
    return {
        "sidecar-7": draw_jobs(one),
        "sidecar-8": draw_pending(one),
        "sidecar-9a": draw_jct(one),
        "sidecar-9b": draw_jct(two),
        "sidecar-10": draw_gpus(one),
        "sidecar-11": draw_changes(one),
    }


def draw_afs() -> Pictures:
    """
    Draw Figures 7 and 10 for traces 9 (moderate contention) and 3 (heavy).

    Of trace 3 a window is drawn at the load at which its queue is full here.
    """
    folder = find_folder()
    paths = dict(find_traces([folder / "afs", folder / "peers"]))
    variants = {variant.name: variant for variant in VARIANTS}
    own: tuple[tuple[str, int | None, float | None], ...] = (
        ("2869ce", None, None),
        (HEAVY, LOADED_WINDOW, LOADS[1]),
    )
    tasks = [
        Task(cluster, paths[cluster], variants[name], 0, window, load)
        for cluster, window, load in own
        for name in UNKNOWN_LENGTHS
    ]
    outcomes = play_all(replay, tasks)
    records = [outcome.record for outcome in outcomes]
    runs = [Run(task.variant.name, each) for task, each in zip(tasks, records, strict=True)]
    moderate, heavy = runs[: len(UNKNOWN_LENGTHS)], runs[len(UNKNOWN_LENGTHS) :]
    return {
        "afs-7a": draw_jobs(moderate[:-1]),
        "afs-7b": draw_jobs(heavy[:-1]),
        "afs-10": draw_gains({"trace 9": moderate, "trace 3": heavy}),
    }


PICTURES: Mapping[str, Callable[[], Pictures]] = {
    "sidecar": draw_sidecar,
    "afs": draw_afs,
    "ones": draw_ones,
    "dragon": draw_dragon,
}
"""By the name of the reproduction."""


@styled
def draw_pending(runs: Sequence[Run], *, look: Look = PAGE) -> Figure:
    """Draw how many jobs are pending when each is submitted (SideCar, Figure 8)."""
    figure, (axes,) = make_panels(look, rows=1, height=2.8)
    for index, run in enumerate(runs):
        levels = list(find_pending(run.record))
        numbers = range(1, len(levels) + 1)
        axes.step(numbers, levels, where="mid", label=run.label, **style_line(index))
    axes.set_xlabel("job, by submission")
    axes.set_ylabel("pending jobs")
    count_upwards(axes)
    add_legend(figure, axes)
    return figure


@styled
def draw_gains(traces: Mapping[str, Sequence[Run]], *, look: Look = PAGE) -> Figure:
    """Draw by how much each policy shortens jobs of each length, over the first one (AFS, Figure 10)."""
    figure, panels = make_panels(look, columns=len(traces), height=3.0)
    for axes, (title, (baseline, *others)) in zip(panels, traces.items(), strict=True):
        times = np.array([job.jct for job in baseline.record.completed])
        order = np.argsort(times, kind="stable")
        for index, run in enumerate(others):
            gains = times / np.array([job.jct for job in run.record.completed])
            means = [part.mean() for part in np.array_split(gains[order], BINS)]
            axes.plot(np.arange(1, BINS + 1), means, label=run.label, **style_line(index))
        axes.axhline(1.0, color="black", linewidth=0.6)
        axes.set_yscale("log")
        axes.set_title(title)
        axes.set_xlabel(f"jobs by their time under {baseline.label} (%)")
    panels[0].set_ylabel("times as fast, mean")
    add_legend(figure, panels[0])
    return figure

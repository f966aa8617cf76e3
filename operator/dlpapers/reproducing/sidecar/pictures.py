"""
The pictures of the SideCar paper's evaluation: Figures 3, 4 and 6 to 11, and Table VIII.

:mod:`dlpapers.reproducing.sidecar.evaluation` calls this module on request. Where the paper's own numbers are
known they are in the picture. Over time, one run is shown, that of the first seed; distributions
and means are over all seeds.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dlpapers.reproducing.sidecar.case import (
    JOB_1,
    JOB_2,
    PAPER,
    Played,
    Sums,
    sum_up,
)
from dlpapers.reproducing.sidecar.constants import FROZEN
from dlpapers.reproducing.sidecar.published import PENDING_AT_LAST, REDUCTIONS, SHARES
from dlpapers.reproducing.sidecar.runs import (
    BASELINES,
    Outcomes,
    play,
    reduce_by,
    spread_of,
)
from dlpapers.reproducing.sidecar.workloads import PLANS
from dlsim.results import plots
from dlsim.results.plots import (
    COLOURS,
    DASHES,
    STYLE,
    WIDTH,
    Run,
)
from dlsim.results.records import Happening, Record

LABELS = {"default": "default", "termination": "termination", "sidecar": "SideCar"}
"""The names of the paper's three approaches in pictures."""

Runs = Mapping[str, Sequence[Outcomes]]
Curve = tuple[list[float], list[float]]
Look = Mapping[str, Any]

_EDGE: Look = {"edgecolor": "black", "linewidth": 0.7}
BARS: Mapping[str, Look] = {
    "default": {**_EDGE, "color": "white", "hatch": "....."},
    "termination": {**_EDGE, "color": "#f3c9a8", "hatch": "/////"},
    "sidecar": {**_EDGE, "color": COLOURS[0]},
    "paper": {**_EDGE, "color": "white", "hatch": "....."},
    "ours": {**_EDGE, "color": COLOURS[0]},
    "this run": {**_EDGE, "color": COLOURS[0]},
}
"""Told apart by hatches as well as by colours."""

_ERRORS: Look = {"elinewidth": 0.9, "capsize": 2.0}


def draw_all(case: Sequence[Played], runs: Runs) -> Mapping[str, Figure]:
    """Draw everything, by the names of the files."""
    first = [Run(LABELS[name], play(PLANS[0], name, seed=0)) for name in LABELS]
    return {
        "sidecar-fig03-case-study": draw_case(case),
        "sidecar-fig04-case-study-times": draw_case_times(case),
        "sidecar-fig06-makespan-and-jct": draw_times(runs),
        "sidecar-fig06-reductions": draw_reductions(runs),
        "sidecar-fig07-jobs": plots.draw_jobs(first),
        "sidecar-fig08-pending": draw_pending(runs["workload-1"]),
        "sidecar-fig09-jct": draw_distributions(runs),
        "sidecar-fig10-gpus": plots.draw_gpus(first),
        "sidecar-fig11-changes": plots.draw_changes(first),
        "sidecar-table8-overhead": draw_overhead(runs),
    }


def _styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw in the style of all pictures, which is looked at whenever something is added."""

    @wraps(draw)
    def styled(*args: Any, **more: Any) -> Figure:
        with mpl.rc_context(dict(STYLE)):
            return draw(*args, **more)

    return styled


# --- the case study -----------------------------------------------------------------------


class Panel(NamedTuple):
    """How fast some jobs trained over time in one approach."""

    title: str
    curves: Mapping[str, Curve]
    """Times and speeds, as steps."""
    marks: Sequence[float] = ()
    """When the paper says that something changed."""


def draw_case(case: Sequence[Played]) -> Figure:
    """How fast both jobs train over time, and when the paper says that they change (Figure 3)."""
    panels = [
        Panel(
            LABELS[played.approach],
            {name: read_speeds(played.record, job) for job, name in CASE_JOBS.items()},
            paper_marks(played.approach),
        )
        for played in case
    ]
    return draw_speeds(panels, until=1300.0, up="training speed (1: as requested)")


CASE_JOBS = {JOB_1: "job 1", JOB_2: "job 2"}


def paper_marks(approach: str) -> list[float]:
    """The times that the paper tells of an approach."""
    return [time for event, time in PAPER[approach].items() if "reshape" not in event]


@_styled
def draw_speeds(panels: Sequence[Panel], *, until: float, up: str) -> Figure:
    """How fast jobs train over time, an approach above the other."""
    figure, places = _make_panels(rows=len(panels), height=4.8, sharex=True)
    speeds = [max(curve[1]) for panel in panels for curve in panel.curves.values()]
    top = max(speeds, default=1.0) * 1.25
    for axes, panel in zip(places, panels, strict=True):
        for index, (name, (times, speed)) in enumerate(panel.curves.items()):
            look = {"color": COLOURS[index], "linestyle": DASHES[index]}
            axes.step(times, speed, where="post", label=name, **look)
        if panel.marks:
            height = 0.9 * top
            axes.plot(
                panel.marks,
                [height] * len(panel.marks),
                linestyle="",
                marker="v",
                color="black",
                markersize=4,
                label="the paper's times",
            )
            axes.vlines(panel.marks, 0, height, color="black", linewidth=0.6, linestyle=DASHES[2])
        axes.set_title(panel.title)
        axes.set_ylim(0, top)
    places[-1].set_xlim(0, until)
    places[-1].set_xlabel("time (seconds)")
    figure.supylabel(up, fontsize=STYLE["font.size"])
    _add_legend(figure, places[0])
    return figure


def read_speeds(record: Record, job: str) -> Curve:
    """The speed of a job of the case study over time, as steps."""
    times, speeds = [0.0], [0.0]
    for entry in record.log:
        if entry.job != job or entry.what not in _SPEED_CHANGES:
            continue
        slower = job == JOB_1 and entry.gpus == 2
        trains = entry.what is Happening.TRAINS
        times.append(entry.time)
        speeds.append((FROZEN.ratio if slower else 1.0) if trains else 0.0)
    return times, speeds


_SPEED_CHANGES = (Happening.TRAINS, Happening.HALTS, Happening.COMPLETED)


def draw_case_times(case: Sequence[Played]) -> Figure:
    """Makespan and average completion time of the two jobs (Figure 4)."""
    groups = {
        "paper": [sum_up(PAPER[played.approach]) for played in case],
        "ours": [sum_up(played.times) for played in case],
    }
    return draw_sums([LABELS[played.approach] for played in case], groups)


@_styled
def draw_sums(names: Sequence[str], groups: Mapping[str, Sequence[Sums]]) -> Figure:
    """Makespan and average completion time, an approach beside the other."""
    figure, panels = _make_panels(columns=2, height=2.6)
    for axes, field, title in (
        (panels[0], "makespan_s", "makespan"),
        (panels[1], "avg_jct_s", "average job completion time"),
    ):
        values = {label: [getattr(each, field) for each in some] for label, some in groups.items()}
        _draw_groups(axes, names, groups=values, fmt="{:,.0f}")
        axes.set_title(title)
    panels[0].set_ylabel("seconds")
    _add_legend(figure, panels[0])
    return figure


# --- the workloads ------------------------------------------------------------------------


@_styled
def draw_times(runs: Runs) -> Figure:
    """Makespan and average completion time of the workloads (Figure 6), ours only."""
    figure, panels = _make_panels(columns=2, height=2.9)
    for axes, quantity, title in (
        (panels[0], "makespan_s", "makespan"),
        (panels[1], "avg_jct_s", "average job completion time"),
    ):
        spreads = {
            LABELS[name]: [
                spread_of(seeds, name, quantity=quantity).times(1 / 3600) for seeds in runs.values()
            ]
            for name in LABELS
        }
        _draw_groups(
            axes,
            _short(runs),
            groups={label: [each.mean for each in some] for label, some in spreads.items()},
            errors={label: [each.deviation for each in some] for label, some in spreads.items()},
            looks={LABELS[name]: BARS[name] for name in LABELS},
            fmt="",
        )
        axes.set_title(title)
        axes.set_xlabel("workload")
    panels[0].set_ylabel("hours")
    _add_legend(figure, panels[0])
    return figure


@_styled
def draw_reductions(runs: Runs) -> Figure:
    """By how much SideCar takes less than the others, beside the paper's figures (Figure 6)."""
    figure, panels = _make_panels(rows=2, columns=2, height=4.6, sharex=True)
    contents = itertools.product(("makespan_s", "avg_jct_s"), BASELINES)
    for axes, (field, baseline) in zip(panels, contents, strict=True):
        spreads = [reduce_by(seeds, baseline, quantity=field) for seeds in runs.values()]
        _draw_groups(
            axes,
            _short(runs),
            groups={
                "paper": [getattr(REDUCTIONS[name][baseline], field) for name in runs],
                "ours": [each.mean for each in spreads],
            },
            errors={"ours": [each.deviation for each in spreads]},
            fmt="{:.0f}",
        )
        title = {"makespan_s": "makespan", "avg_jct_s": "average JCT"}[field]
        axes.set_title(f"{title}, against {LABELS[baseline]}")
        axes.set_ylim(0, 85)
    for axes in panels[2:]:
        axes.set_xlabel("workload")
    figure.supylabel("reduction by SideCar (%)", fontsize=STYLE["font.size"])
    _add_legend(figure, panels[0])
    return figure


@_styled
def draw_pending(seeds: Sequence[Outcomes]) -> Figure:
    """How many jobs of Workload One are pending when each is submitted (Figure 8)."""
    figure, (axes,) = _make_panels(height=2.9)
    jobs = np.arange(1, PLANS[0].jobs + 1)
    for index, name in enumerate(LABELS):
        levels = np.array([run[name].pending for run in seeds], dtype=float)
        low, high = np.percentile(levels, [25, 75], axis=0)
        axes.fill_between(jobs, low, high, color=COLOURS[index], alpha=0.15, linewidth=0)
        axes.plot(
            jobs,
            levels.mean(axis=0),
            color=COLOURS[index],
            linestyle=DASHES[index],
            label=LABELS[name],
        )
        axes.plot(
            [jobs[-1]],
            [PENDING_AT_LAST[name]],
            marker="o",
            markersize=5,
            markerfacecolor="white",
            color=COLOURS[index],
            linestyle="",
        )
        where = (jobs[-1], PENDING_AT_LAST[name])
        axes.annotate("paper", where, (6, -2.5), textcoords="offset points", fontsize=7)
    axes.set_xlim(1, jobs[-1] + 2.5)
    axes.set_ylim(bottom=-0.4)
    axes.set_xlabel("job submitted (line: mean over the seeds; band: their middle half)")
    axes.set_ylabel("pending jobs")
    _add_legend(figure, axes)
    return figure


@_styled
def draw_distributions(runs: Runs) -> Figure:
    """The distribution of completion times in Workloads One and Two (Figure 9), all seeds."""
    figure, panels = _make_panels(columns=2, height=2.9, sharey=True)
    for axes, name, title in zip(
        panels, ("workload-1", "workload-2"), ("Workload One", "Workload Two"), strict=True
    ):
        for index, approach in enumerate(LABELS):
            jcts = np.sort([jct for run in runs[name] for jct in run[approach].jcts]) / 3600
            axes.step(
                np.append([0.0], jcts),
                np.arange(len(jcts) + 1) / len(jcts),
                where="post",
                color=COLOURS[index],
                linestyle=DASHES[index],
                label=LABELS[approach],
            )
        axes.set_title(title)
        axes.set_xlim(0, None)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("job completion time (hours)")
    panels[0].set_ylabel("share of jobs")
    _add_legend(figure, panels[0])
    return figure


@_styled
def draw_overhead(runs: Runs) -> Figure:
    """Which part of their time jobs lose to reshaping (Table VIII)."""
    figure, panels = _make_panels(columns=2, height=2.6, sharey=True)
    for axes, approach in zip(panels, ("termination", "sidecar"), strict=True):
        spreads = [
            spread_of(seeds, approach, quantity="reshape_share").times(100)
            for seeds in runs.values()
        ]
        _draw_groups(
            axes,
            _short(runs),
            groups={
                "paper": [SHARES[name][approach] for name in runs],
                "ours": [each.mean for each in spreads],
            },
            errors={"ours": [each.deviation for each in spreads]},
            fmt="{:.1f}",
        )
        axes.set_title(LABELS[approach])
        axes.set_xlabel("workload")
    panels[0].set_ylabel("time lost to reshaping (%)")
    _add_legend(figure, panels[0])
    return figure


# --- looks --------------------------------------------------------------------------------


def _make_panels(
    *, height: float, rows: int = 1, columns: int = 1, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False)
    return figure, list(panels.flat)


def _short(runs: Runs) -> list[str]:
    """The names of the workloads on an axis."""
    words = {"workload-1": "One", "workload-2": "Two", "workload-3": "Three", "workload-4": "Four"}
    return [words[name] for name in runs]


def _draw_groups(
    axes: Axes,
    names: Sequence[str],
    *,
    groups: Mapping[str, Sequence[float]],
    errors: Mapping[str, Sequence[float]] | None = None,
    looks: Mapping[str, Look] = BARS,
    fmt: str,
) -> None:
    """Bars side by side for each name, one for each group."""
    places = np.arange(len(names))
    width = 0.8 / len(groups)
    for index, (label, values) in enumerate(groups.items()):
        offset = (index - (len(groups) - 1) / 2) * width
        spread = (errors or {}).get(label)
        bars = axes.bar(
            places + offset,
            values,
            width,
            label=label,
            yerr=spread,
            error_kw=_ERRORS,
            **looks[label],
        )
        if fmt:
            axes.bar_label(bars, fmt=fmt, fontsize=7, padding=2)
    axes.set_xticks(places, list(names))
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.15)


def _add_legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), handlelength=3.0)

"""The pictures of a demonstration: the paper's Figures 3 and 4, drawn from its event log."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dljob.sim.results.looks import PAGE
from dljob_lab.demonstrating.closing import Result
from dljob_lab.plots import COLOURS, DASHES, STYLE, add_legend, make_panels, styled
from dljob_lab.reproducing.sidecar.case import JOB_1, JOB_2, PAPER, Sums, sum_up

LABELS = {"default": "default", "termination": "termination", "sidecar": "SideCar"}
"""The names of the paper's three approaches in pictures."""

CASE_JOBS = {JOB_1: "job 1", JOB_2: "job 2"}

_EDGE: Mapping[str, Any] = {"edgecolor": "black", "linewidth": 0.7}
BARS: Mapping[str, Mapping[str, Any]] = {
    "paper": {**_EDGE, "color": "white", "hatch": "....."},
    "this run": {**_EDGE, "color": COLOURS[0]},
}
"""Distinguished by hatches as well as by colours."""


class Panel(NamedTuple):
    """How fast some jobs trained over time in one approach."""

    title: str
    curves: Mapping[str, tuple[list[float], list[float]]]
    """Times and speeds, as steps."""
    marks: Sequence[float] = ()
    """When the paper says that something changed."""


def draw(results: Sequence[Result], *, compared: bool) -> Mapping[str, Figure]:
    """Draw them, the paper's own figures next to those of the run where they can be compared."""
    panels = [
        Panel(
            LABELS[result.approach],
            {CASE_JOBS[job]: curve for job, curve in result.curves.items()},
            _list_marks(result.approach) if compared else (),
        )
        for result in results
    ]
    groups = {"this run": [Sums(result.makespan_s, result.avg_jct_s) for result in results]}
    if compared:
        groups = {"paper": [sum_up(PAPER[result.approach]) for result in results], **groups}
    until = 1.04 * max(result.makespan_s for result in results)
    return {
        "demo-fig03-training-speed": _draw_speeds(panels, until=until),
        "demo-fig04-times": _draw_sums([LABELS[result.approach] for result in results], groups),
    }


def _list_marks(approach: str) -> list[float]:
    """List the times that the paper reports of an approach."""
    return [time for event, time in PAPER[approach].items() if "reshape" not in event]


@styled
def _draw_speeds(panels: Sequence[Panel], *, until: float) -> Figure:
    figure, places = make_panels(PAGE, rows=len(panels), height=4.8)
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
    figure.supylabel("training speed (iterations per second)", fontsize=STYLE["font.size"])
    add_legend(figure, places[0])
    return figure


@styled
def _draw_sums(names: Sequence[str], groups: Mapping[str, Sequence[Sums]]) -> Figure:
    figure, panels = make_panels(PAGE, columns=2, height=2.6)
    for axes, field, title in (
        (panels[0], "makespan_s", "makespan"),
        (panels[1], "avg_jct_s", "average job completion time"),
    ):
        values = {label: [getattr(each, field) for each in some] for label, some in groups.items()}
        _draw_groups(axes, names, groups=values)
        axes.set_title(title)
    panels[0].set_ylabel("seconds")
    add_legend(figure, panels[0])
    return figure


def _draw_groups(
    axes: Axes, names: Sequence[str], *, groups: Mapping[str, Sequence[float]]
) -> None:
    """Draw bars side by side for each name, one for each group."""
    places = np.arange(len(names))
    width = 0.8 / len(groups)
    for index, (label, values) in enumerate(groups.items()):
        offset = (index - (len(groups) - 1) / 2) * width
        bars = axes.bar(places + offset, values, width, label=label, **BARS[label])
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=7, padding=2)
    axes.set_xticks(places, list(names))
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.15)

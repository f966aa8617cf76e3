"""The figures of ONES and DRAGON, drawn of our own runs: distributions of times, and curves over loads."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from dljob.sim.results.looks import PAGE, Look
from dljob_lab.axes import Numbers, distribute, use_times
from dljob_lab.plots import Run, add_legend, draw_gpus, make_panels, style_line, styled
from dljob_lab.reproducing import dragon, ones


def draw_ones() -> Mapping[str, Figure]:
    """Draw Figure 15."""
    played = ones.play_policies()
    parts = ("completion", "execution", "queuing")
    times = {
        f"{part} time": {name: getattr(each, part) for name, each in played.items()}
        for part in parts
    }
    return {"ones-15": draw_distributions(times)}


def draw_dragon() -> Mapping[str, Figure]:
    """Draw Figure 8, and Figures 9 and 10 side by side."""
    records = {name: outcome.record for name, outcome in dragon.play_testbed().items()}
    runs = [Run(name, record) for name, record in records.items() if record is not None]
    simulated = dragon.play_intensities()
    panels = {
        f"DRAGON below {baseline}": {
            f"{part} time": [
                dragon.reduce_elapsed(found, "dragon", baseline=baseline, part=field)
                for found in simulated.values()
            ]
            for part, field in dragon.PARTS.items()
        }
        for baseline in dragon.FIGURES
    }
    curves = draw_curves(
        panels, list(simulated), across="workload intensity", up="time reduction (%)"
    )
    return {"dragon-8": draw_gpus(runs), "dragon-9-10": curves}


@styled
def draw_curves(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    places: Sequence[float],
    *,
    across: str,
    up: str,
    look: Look = PAGE,
) -> Figure:
    """Draw curves over the same places, in one panel for each title."""
    figure, axes = make_panels(look, columns=len(panels), height=2.9)
    for panel, (title, curves) in zip(axes, panels.items(), strict=True):
        for index, (label, values) in enumerate(curves.items()):
            panel.plot(places, values, label=label, **style_line(index))
        panel.axhline(0.0, color="black", linewidth=0.6)
        panel.set(title=title, xlabel=across)
    axes[0].set_ylabel(up)
    add_legend(figure, axes[0])
    return figure


@styled
def draw_distributions(panels: Mapping[str, Mapping[str, Numbers]], *, look: Look = PAGE) -> Figure:
    """Draw the distribution of times by policy, as boxes from the first to the third quartile and as curves below."""
    figure = Figure(figsize=(look.width, 4.6))
    above, below = figure.subplots(2, len(panels), sharex="col", sharey="row", squeeze=False)
    for box, curve, (title, times) in zip(above, below, panels.items(), strict=True):
        # A logarithmic axis has no place for a job that does not wait at all.
        shown = {label: np.maximum(np.sort(each), 1.0) for label, each in times.items()}
        box.boxplot(
            list(shown.values()), orientation="horizontal", showmeans=True, sym=".", widths=0.6
        )
        box.set_yticks(range(1, len(shown) + 1), list(shown))
        box.set_title(title)
        for index, (label, each) in enumerate(shown.items()):
            x, y = distribute(each)
            curve.step(x, y, where="post", label=label, **style_line(index))
        curve.set_ylim(0, 1.02)
        longest = max(float(each[-1]) for each in shown.values())
        for panel in (box, curve):
            use_times(panel, min(float(each[0]) for each in shown.values()), longest=longest)
    below[0].set_ylabel("share of jobs")
    add_legend(figure, below[0])
    return figure

"""The picture of a comparison: ratios of policies over many simulations."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from dljob.sim.results.looks import PAGE, Look
from dljob_lab.axes import MOST_TICKS, Numbers
from dljob_lab.plots import DASHES, RATIOS, make_panels, styled


@styled
def draw_ratios(
    panels: Mapping[str, Mapping[str, Sequence[float]]], *, reference: str, look: Look = PAGE
) -> Figure:
    """
    Policies against a reference, a panel a figure: each case a dot, and their geometric mean.

    ``panels`` holds the ratios by title and policy. Policies are in order of the first panel, the
    best one on top.
    """
    first = next(iter(panels.values()))
    means = {policy: _mean_ratio(ratios) for policy, ratios in first.items()}
    order = sorted(means, key=lambda policy: (-means[policy], policy))
    figure, axes = make_panels(look, columns=len(panels), height=0.9 + 0.26 * len(order))
    for panel, (title, ratios) in zip(axes, panels.items(), strict=True):
        for place, policy in enumerate(order):
            _draw_dots(panel, np.asarray(ratios.get(policy, ()), float), place=place)
        panel.axvline(1.0, color="black", linewidth=0.8, linestyle=DASHES[1])
        _use_ratios(
            panel, [each for some in panels.values() for row in some.values() for each in row]
        )
        panel.set_yticks(range(len(order)), order)
        panel.set_title(title)
    figure.supxlabel(f"ratio to {reference}", fontsize=mpl.rcParams["font.size"])
    return figure


def _use_ratios(panel: Axes, ratios: Sequence[float]) -> None:
    """A logarithmic axis of ratios, with ticks as close as there is room for their numbers."""
    low, high = min([0.95, *ratios]) / 1.02, max([1.05, *ratios]) * 1.02
    panel.set_xscale("log")
    panel.set_xlim(low, high)
    choices = ([tick for tick in ticks if low <= tick <= high] for ticks in RATIOS)
    ticks = next((some for some in choices if len(some) <= MOST_TICKS), [1.0])
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.xaxis.set_minor_locator(NullLocator())


def _mean_ratio(ratios: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios)))) if len(ratios) else np.inf


def _draw_dots(panel: Axes, ratios: Numbers, *, place: int) -> None:
    if len(ratios):
        heights = np.full(len(ratios), place)
        panel.plot([ratios.min(), ratios.max()], [place, place], color="#9ecae1", linewidth=1.0)
        panel.plot(ratios, heights, "o", color="#4292c6", markersize=2.5, alpha=0.5)
        panel.plot([_mean_ratio(list(ratios))], [place], "D", color="black", markersize=4)

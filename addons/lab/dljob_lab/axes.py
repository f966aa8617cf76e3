"""Axes, levels and lines that several pictures draw: units of time, steps, panels and legends."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


STRETCHES = 600
"""How many stretches a series is divided into when it has more points than a picture can show."""


class Unit(NamedTuple):
    """The unit of the time on an axis."""

    name: str
    seconds: float


MOST_TICKS = 6


UNITS = (Unit("days", 86400.0), Unit("hours", 3600.0), Unit("minutes", 60.0))


SECONDS = Unit("seconds", 1.0)


class Levels(NamedTuple):
    """A level over time, each value from its time on; thinned, its mean and what it is between."""

    time: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers


def thin(time: Numbers, value: Numbers, *, stretches: int = STRETCHES) -> Levels:
    """
    Make a series of steps short enough to be drawn.

    A series with no more steps than a picture can show stays as it is. Of others, the mean over
    each of many short stretches of time is kept, and the least and the most in it.
    """
    if len(time) <= 4 * stretches:
        return Levels(time, value, value, value)
    edges = np.linspace(time[0], time[-1], stretches + 1)
    # The integral of steps is straight between them, so at the edges it is interpolated exactly.
    integral = np.concatenate(([0.0], np.cumsum(value[:-1] * np.diff(time))))
    mean = np.diff(np.interp(edges, time, integral)) / np.diff(edges)
    first = np.searchsorted(time, edges[:-1], side="right") - 1
    last = np.searchsorted(time, edges[1:], side="left") - 1
    # The last value begins where the series ends, so it is in no stretch.
    low = np.minimum(np.minimum.reduceat(value[:-1], first), value[last])
    high = np.maximum(np.maximum.reduceat(value[:-1], first), value[last])
    return Levels(edges, *(np.append(each, each[-1]) for each in (mean, low, high)))


_THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}")


_TIMES = {
    1.0: "1 s",
    10.0: "10 s",
    60.0: "1 min",
    600.0: "10 min",
    3600.0: "1 h",
    36000.0: "10 h",
    86400.0: "1 d",
    864000.0: "10 d",
    8640000.0: "100 d",
}


def draw_level(axes: Axes, levels: Levels, **look: Any) -> None:
    if levels.low is not levels.high:
        axes.fill_between(
            levels.time,
            levels.low,
            levels.high,
            step="post",
            color=look["color"],
            alpha=0.18,
            linewidth=0,
        )
    axes.step(levels.time, levels.mean, where="post", **look)


def count_upwards(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(_THOUSANDS)


def choose_unit(span: float) -> Unit:
    return next((unit for unit in UNITS if span >= 3 * unit.seconds), SECONDS)


def use_times(axes: Axes, shortest: float, *, longest: float) -> None:
    """A logarithmic axis of times, with ticks where people have words for them."""
    begin, end = max(1.0, shortest * 0.8), longest * 1.1
    axes.set_xscale("log")
    axes.set_xlim(begin, end)
    ticks = [time for time in _TIMES if begin <= time <= end]
    axes.set_xticks(ticks, [_TIMES[time] for time in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def distribute(times: Numbers) -> tuple[Numbers, Numbers]:
    """The steps of a distribution of sorted times; of very many, enough to look the same."""
    count = len(times)
    ranks = np.unique(np.linspace(1, count, min(count, 4 * STRETCHES)).astype(int))
    return np.append(times[:1], times[ranks - 1]), np.append([0.0], ranks / count)


def is_skewed(times: Numbers) -> bool:
    """Return whether most would be squeezed into a corner on an axis that is not logarithmic."""
    return bool(times[-1] > 50.0 * max(1.0, float(np.median(times))))

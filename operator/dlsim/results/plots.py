"""
Pictures of runs, as one would put them into a paper.

The command calls it with records that :mod:`dlsim.simulating` made. Every function returns a
figure, and :func:`render` turns one into the bytes of a file: the same bytes for the same figure,
with neither date nor random names in them. Nothing here touches ``pyplot``, whose figures and
styles would be shared with the whole process.

The pictures are readable without colour: policies differ in the style of their lines as well, bars
in their hatches. Series too long to be drawn point by point are drawn as their mean over short
stretches, with a band from the least to the most in each.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from dlsim.results.looks import PAGE, Format, Look
from dlsim.results.records import Happening, Record

Numbers = NDArray[np.float64]
WIDTH = PAGE.width
"""Inches: the width of a page between its margins."""

STRETCHES = 600
"""How many stretches a series is divided into when it has more points than can be told apart."""

ROOMY_BARS = 8

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "savefig.dpi": 200,
    # Publishers want fonts of this type, which stay text that can be searched.
    "pdf.fonttype": 42,
    # Names inside an SVG are otherwise drawn at random.
    "svg.hashsalt": "dljob",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
}

COLOURS = ("#0072b2", "#d55e00", "#000000", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe and Ito's, which people tell apart whatever colours they see."""

DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (10, 2)),
    (0, (4, 1, 1, 1, 1, 1)),
    (0, (2, 1.5)),
)
"""As many as colours, so that nobody needs the colours to tell seven policies apart."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run and what to call it."""

    label: str
    record: Record


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure of a paper and ours beside it."""

    label: str
    paper: float
    ours: float
    spread: float = 0.0
    """How far ours varies, up and down."""


class Unit(NamedTuple):
    """What the time on an axis is counted in."""

    name: str
    seconds: float


RATIOS: tuple[tuple[float, ...], ...] = (
    tuple(tick / 100 for tick in range(50, 160, 5)),
    tuple(tick / 10 for tick in range(1, 31)),
    (0.1, 0.2, 0.5, 0.7, 1.0, 1.4, 2.0, 5.0, 10.0),
    (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0),
    tuple(10.0**power for power in range(-3, 7)),
)
"""The ticks of an axis of ratios, from the closest to the widest."""

MOST_TICKS = 6

UNITS = (Unit("days", 86400.0), Unit("hours", 3600.0), Unit("minutes", 60.0))
SECONDS = Unit("seconds", 1.0)


def draw_runs(runs: Sequence[Run], *, look: Look = PAGE) -> Mapping[str, Figure]:
    """Draw all that can be drawn of some runs of one workload, by the name of the picture."""
    return {
        "gpus": draw_gpus(runs, look=look),
        "jct": draw_jct(runs, look=look),
        "jobs": draw_jobs(runs, look=look),
        "changes": draw_changes(runs, look=look),
    }


_NAMELESS: Mapping[Format, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def render(figure: Figure, form: Format) -> bytes:
    """Turn a figure into the content of a file."""
    file = io.BytesIO()
    # What made the file and when would differ from one installation and day to the next.
    metadata = _NAMELESS[form]
    with mpl.rc_context(STYLE):
        figure.savefig(file, format=form, metadata=metadata)
    return file.getvalue()


# --- the pictures -------------------------------------------------------------------------

P = ParamSpec("P")


def _styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in our style: what is added to a figure looks at the style of that moment."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        look = kwargs.get("look", PAGE)
        assert isinstance(look, Look)
        with mpl.rc_context({**STYLE, **look.style}):
            return draw(*args, **kwargs)

    return styled


@_styled
def draw_gpus(runs: Sequence[Run], *, look: Look = PAGE) -> Figure:
    """GPU use over time, one panel a policy (SideCar, Figure 10)."""
    figure, panels = _make_panels(look, rows=len(runs), height=0.75 + 0.9 * len(runs))
    clock = _Clock(runs)
    for axes, run in zip(panels, runs, strict=True):
        levels = clock.read(run.record, run.record.series.used)
        axes.fill_between(levels.time, levels.mean, step="post", color="#9ecae1", linewidth=0)
        _draw_level(axes, levels, color="#08519c", linewidth=0.8)
        axes.axhline(run.record.gpus, color="black", linewidth=0.8, linestyle=DASHES[1])
        axes.set_ylim(0, run.record.gpus * 1.1)
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_title(run.label)
        use = _tell_use(run.record, look)
        axes.set_title(use, loc="right", weight="normal", size=look.note_size)
        clock.label(axes)
    figure.supylabel("GPUs held", fontsize=mpl.rcParams["font.size"])
    return figure


@_styled
def draw_jct(runs: Sequence[Run], *, look: Look = PAGE) -> Figure:
    """The distribution of completion times (SideCar, Figure 9)."""
    figure, (axes,) = _make_panels(look, rows=1, height=2.4 if look.is_narrow else 3.2)
    times = {run.label: np.sort([job.jct for job in run.record.completed]) for run in runs}
    some = [each for each in times.values() if len(each)]
    longest = max((float(each[-1]) for each in some), default=1.0)
    logarithmic = any(_is_skewed(each) for each in some)
    unit = SECONDS if logarithmic else _choose_unit(longest)
    for index, (label, each) in enumerate(times.items()):
        if len(each):
            x, y = _distribute(np.maximum(each, 1.0) if logarithmic else each)
            axes.step(x / unit.seconds, y, where="post", label=label, **_line(index))
    if logarithmic:
        _use_times(axes, min(float(each[0]) for each in some), longest)
        axes.set_xlabel("job completion time")
    else:
        axes.set_xlim(0, longest / unit.seconds)
        axes.set_xlabel(f"job completion time ({unit.name})")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("share of jobs")
    _add_legend(figure, axes)
    return figure


@_styled
def draw_jobs(runs: Sequence[Run], *, look: Look = PAGE) -> Figure:
    """How many jobs wait and how many run, over time (SideCar, Figure 7)."""
    figure, panels = _make_panels(look, rows=2, height=3.4 if look.is_narrow else 4.4)
    clock = _Clock(runs)
    for axes, name in zip(panels, ("pending", "running"), strict=True):
        for index, run in enumerate(runs):
            levels = clock.read(run.record, getattr(run.record.series, name))
            _draw_level(axes, levels, label=run.label, **_line(index))
        axes.set_ylabel(f"{name} jobs")
        _count_upwards(axes)
        clock.label(axes)
    _add_legend(figure, panels[0])
    return figure


ADDS = frozenset({Happening.ADDING})
REMOVES = frozenset({Happening.REMOVING, Happening.STOPPED})
"""To lose some GPUs, or all of them."""


@_styled
def draw_changes(runs: Sequence[Run], *, look: Look = PAGE) -> Figure:
    """How often GPUs were added to running jobs and taken from them (SideCar, Figure 11)."""
    figure, panels = _make_panels(look, columns=2, height=2.9)
    clock = _Clock(runs)
    for axes, kinds, name in zip(
        panels, (ADDS, REMOVES), ("GPUs added", "GPUs removed"), strict=True
    ):
        for index, run in enumerate(runs):
            at = [entry.time for entry in run.record.log if entry.what in kinds]
            levels = clock.read(run.record, range(1, len(at) + 1), at=at)
            _draw_level(axes, levels, label=run.label, **_line(index))
        axes.set_title(name)
        _count_upwards(axes)
        clock.label(axes)
    for axes in panels if look.is_narrow else panels[:1]:
        axes.set_ylabel("changes so far")
    _add_legend(figure, panels[0])
    return figure


@_styled
def draw_bars(
    bars: Sequence[Bar],
    *,
    quantity: str,
    title: str = "",
    theirs: str = "paper",
    logarithmic: bool = False,
    look: Look = PAGE,
) -> Figure:
    """Figures of a paper and ours side by side, with how far ours vary."""
    # More bars than these leave no room for words beside each other.
    crowded = len(bars) > ROOMY_BARS
    figure, (axes,) = _make_panels(look, rows=1, height=3.4 if crowded else 2.9)
    places = np.arange(len(bars))
    spreads = [bar.spread for bar in bars]
    papers = axes.bar(
        places - 0.19, [bar.paper for bar in bars], 0.38, label=theirs, **_OUTLINE, **_HATCHED
    )
    ours = axes.bar(
        places + 0.19,
        [bar.ours for bar in bars],
        0.38,
        label="ours",
        yerr=spreads if any(spreads) else None,
        error_kw={"elinewidth": 0.9, "capsize": 2.5},
        **_OUTLINE,
        **_SOLID,
    )
    if not crowded:
        for container in (papers, ours):
            axes.bar_label(container, fmt=_write, fontsize=7, padding=2)
    axes.set_xticks(places, [bar.label for bar in bars])
    if crowded:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.grid(visible=False, axis="x")
    axes.margins(x=0.02, y=0.12)
    if logarithmic:
        axes.set_yscale("log")
    axes.axhline(0, color="black", linewidth=0.6)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _write(value)))
    axes.set_ylabel(quantity)
    axes.set_title(title)
    _add_legend(figure, axes)
    return figure


@_styled
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
    figure, axes = _make_panels(look, columns=len(panels), height=0.9 + 0.26 * len(order))
    for panel, (title, ratios) in zip(axes, panels.items(), strict=True):
        for place, policy in enumerate(order):
            _draw_dots(panel, np.asarray(ratios.get(policy, ()), float), place)
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


def _draw_dots(panel: Axes, ratios: Numbers, place: int) -> None:
    if len(ratios):
        heights = np.full(len(ratios), place)
        panel.plot([ratios.min(), ratios.max()], [place, place], color="#9ecae1", linewidth=1.0)
        panel.plot(ratios, heights, "o", color="#4292c6", markersize=2.5, alpha=0.5)
        panel.plot([_mean_ratio(list(ratios))], [place], "D", color="black", markersize=4)


# --- series -------------------------------------------------------------------------------


class Levels(NamedTuple):
    """A level over time, each value from its time on; thinned, its mean and what it is between."""

    time: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers


class _Clock:
    """The time axis of all panels of a picture: from the first submission to the last end."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._end = max((_begin_and_end(run.record)[1] for run in runs), default=0.0)
        self._begin = min((_begin_and_end(run.record)[0] for run in runs), default=0.0)
        self._unit = _choose_unit(self._end - self._begin)

    def read(
        self, record: Record, values: Sequence[float], *, at: Sequence[float] | None = None
    ) -> Levels:
        """Make a level of values that hold from these times on, and of 0 before."""
        times = record.series.time if at is None else at
        end = _begin_and_end(record)[1]
        time = np.concatenate(([self._begin], np.asarray(times, float), [end]))
        value = np.concatenate(([0.0], np.asarray(values, float)))
        value = np.append(value, value[-1])
        levels = thin(np.maximum(time, self._begin), value)
        return levels._replace(time=(levels.time - self._begin) / self._unit.seconds)

    def label(self, axes: Axes) -> None:
        """Let the axes show this time, and name it where it is not the panel above another."""
        axes.set_xlim(0, (self._end - self._begin) / self._unit.seconds or 1.0)
        place = axes.get_subplotspec()
        if place is None or place.is_last_row():
            axes.set_xlabel(f"time ({self._unit.name})")
        else:
            axes.tick_params(labelbottom=False)


def _begin_and_end(record: Record) -> tuple[float, float]:
    begin = min((job.submitted_at for job in record.jobs), default=0.0)
    ends = [job.completed_at for job in record.completed if job.completed_at is not None]
    # What never ends is drawn for as long as anything happened.
    return begin, record.ended_at if record.unfinished or not ends else max(ends)


def thin(time: Numbers, value: Numbers, stretches: int = STRETCHES) -> Levels:
    """
    Make a series of steps short enough to be drawn.

    One that has no more steps than can be told apart stays as it is. Of others, the mean over
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


def _distribute(times: Numbers) -> tuple[Numbers, Numbers]:
    """The steps of a distribution of sorted times; of very many, enough to look the same."""
    count = len(times)
    ranks = np.unique(np.linspace(1, count, min(count, 4 * STRETCHES)).astype(int))
    return np.append(times[:1], times[ranks - 1]), np.append([0.0], ranks / count)


def _is_skewed(times: Numbers) -> bool:
    """Whether most would be squeezed into a corner on an axis that is not logarithmic."""
    return bool(times[-1] > 50.0 * max(1.0, float(np.median(times))))


def _write(value: float) -> str:
    """As many digits as can be told apart in a picture."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _tell_use(record: Record, look: Look) -> str:
    begin, end = _begin_and_end(record)
    share = record.sums.used / (record.gpus * (end - begin)) if end > begin else 0.0
    whole = f"{share:.1%} of {record.gpus:,} GPUs"
    return whole if look.is_narrow else f"{whole} on average"


# --- looks --------------------------------------------------------------------------------


_OUTLINE: Mapping[str, Any] = {"edgecolor": "black", "linewidth": 0.7}
_HATCHED: Mapping[str, Any] = {"facecolor": "#f0f0f0", "hatch": "/////"}
_SOLID: Mapping[str, Any] = {"facecolor": "#4292c6"}
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


def _make_panels(
    look: Look, *, height: float, rows: int = 1, columns: int = 1
) -> tuple[Figure, Sequence[Axes]]:
    share = columns > 1
    if look.is_narrow and columns > 1:
        rows, columns, height = columns, 1, 0.75 * columns * height
    figure = Figure(figsize=(look.width, height))
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, sharex=True, sharey=share, squeeze=False)
    return figure, list(panels.flat)


def _line(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[(index + index // len(COLOURS)) % len(DASHES)],
    }


def _draw_level(axes: Axes, levels: Levels, **look: Any) -> None:
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


def _count_upwards(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(_THOUSANDS)


def _choose_unit(span: float) -> Unit:
    return next((unit for unit in UNITS if span >= 3 * unit.seconds), SECONDS)


def _use_times(axes: Axes, shortest: float, longest: float) -> None:
    """A logarithmic axis of times, with ticks where people have words for them."""
    begin, end = max(1.0, shortest * 0.8), longest * 1.1
    axes.set_xscale("log")
    axes.set_xlim(begin, end)
    ticks = [time for time in _TIMES if begin <= time <= end]
    axes.set_xticks(ticks, [_TIMES[time] for time in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def _add_legend(figure: Figure, axes: Axes) -> None:
    """One legend above all panels, in as many lines as it needs."""
    handles, labels = axes.get_legend_handles_labels()
    widest = max((len(label) for label in labels), default=0)
    columns = max(1, min(len(labels), int(90 / (widest + 8) * figure.get_figwidth() / WIDTH)))
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, handlelength=3.2)

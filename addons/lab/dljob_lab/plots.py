"""
Pictures of runs, as one would put them into a paper.

``dljob simulate --plot`` finds :func:`draw_runs` and :func:`write_pictures` by the entry points ``dljob.pages``, with
records that :mod:`dljob.sim.simulating` made. Every drawing function returns a figure, and :func:`render` turns one into the bytes of a file: the same bytes for the same figure,
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
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dljob.cli.output.messages import say
from dljob.sim.results import writing
from dljob.sim.results.looks import PAGE, USUAL, Format, Look
from dljob.sim.results.records import Happening, Record
from dljob_lab.axes import (
    SECONDS,
    Levels,
    choose_unit,
    count_upwards,
    distribute,
    draw_level,
    is_skewed,
    thin,
    use_times,
)

WIDTH = PAGE.width
"""Inches: the width of a page between its margins."""


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
"""The colours of Okabe and Ito, which colour-blind people distinguish as well."""

DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (10, 2)),
    (0, (4, 1, 1, 1, 1, 1)),
    (0, (2, 1.5)),
)
"""As many as colours, so that seven policies can be distinguished without colours."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run and what to call it."""

    label: str
    record: Record


RATIOS: tuple[tuple[float, ...], ...] = (
    tuple(tick / 100 for tick in range(50, 160, 5)),
    tuple(tick / 10 for tick in range(1, 31)),
    (0.1, 0.2, 0.5, 0.7, 1.0, 1.4, 2.0, 5.0, 10.0),
    (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0),
    tuple(10.0**power for power in range(-3, 7)),
)
"""The ticks of an axis of ratios, from the closest to the widest."""


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
    # The names of program and date would differ from one installation and day to the next.
    metadata = _NAMELESS[form]
    with mpl.rc_context(STYLE):
        figure.savefig(file, format=form, metadata=metadata)
    return file.getvalue()


def write_pictures(
    folder: Path, figures: Mapping[str, Figure], *, forms: Sequence[Format] = USUAL
) -> None:
    """Write all of them, each whole or not at all."""
    for name, figure in figures.items():
        for form in forms:
            writing.write_bytes(folder / f"{name}.{form}", render(figure, form))
    count = len(figures) * len(forms)
    say(f"{count} pictures are in {folder}/" if count else "there is nothing to draw")


# --- the pictures -------------------------------------------------------------------------

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Run the drawing function under our style, because matplotlib reads the style when it adds each element."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        look = kwargs.get("look", PAGE)
        assert isinstance(look, Look)
        with mpl.rc_context({**STYLE, **look.style}):
            return draw(*args, **kwargs)

    return styled


@styled
def draw_gpus(runs: Sequence[Run], *, look: Look = PAGE) -> Figure:
    """GPU use over time, one panel a policy (SideCar, Figure 10)."""
    figure, panels = make_panels(look, rows=len(runs), height=0.75 + 0.9 * len(runs))
    clock = _Clock(runs)
    for axes, run in zip(panels, runs, strict=True):
        levels = clock.read(run.record, run.record.series.used)
        axes.fill_between(levels.time, levels.mean, step="post", color="#9ecae1", linewidth=0)
        draw_level(axes, levels, color="#08519c", linewidth=0.8)
        axes.axhline(run.record.gpus, color="black", linewidth=0.8, linestyle=DASHES[1])
        axes.set_ylim(0, run.record.gpus * 1.1)
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_title(run.label)
        begin, end = _begin_and_end(run.record)
        share = run.record.sums.used / (run.record.gpus * (end - begin)) if end > begin else 0.0
        use = f"{share:.1%} of {run.record.gpus:,} GPUs{'' if look.is_narrow else ' on average'}"
        axes.set_title(use, loc="right", weight="normal", size=look.note_size)
        clock.label(axes)
    figure.supylabel("GPUs held", fontsize=mpl.rcParams["font.size"])
    return figure


@styled
def draw_jct(runs: Sequence[Run], *, look: Look = PAGE) -> Figure:
    """The distribution of completion times (SideCar, Figure 9)."""
    figure, (axes,) = make_panels(look, rows=1, height=2.4 if look.is_narrow else 3.2)
    times = {run.label: np.sort([job.jct for job in run.record.completed]) for run in runs}
    some = [each for each in times.values() if len(each)]
    longest = max((float(each[-1]) for each in some), default=1.0)
    logarithmic = any(is_skewed(each) for each in some)
    unit = SECONDS if logarithmic else choose_unit(longest)
    for index, (label, each) in enumerate(times.items()):
        if len(each):
            x, y = distribute(np.maximum(each, 1.0) if logarithmic else each)
            axes.step(x / unit.seconds, y, where="post", label=label, **style_line(index))
    if logarithmic:
        use_times(axes, min(float(each[0]) for each in some), longest=longest)
        axes.set_xlabel("job completion time")
    else:
        axes.set_xlim(0, longest / unit.seconds)
        axes.set_xlabel(f"job completion time ({unit.name})")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("share of jobs")
    add_legend(figure, axes)
    return figure


@styled
def draw_jobs(runs: Sequence[Run], *, look: Look = PAGE) -> Figure:
    """Draw how many jobs wait and how many run, over time (SideCar, Figure 7)."""
    figure, panels = make_panels(look, rows=2, height=3.4 if look.is_narrow else 4.4)
    clock = _Clock(runs)
    for axes, name in zip(panels, ("pending", "running"), strict=True):
        for index, run in enumerate(runs):
            levels = clock.read(run.record, getattr(run.record.series, name))
            draw_level(axes, levels, label=run.label, **style_line(index))
        axes.set_ylabel(f"{name} jobs")
        count_upwards(axes)
        clock.label(axes)
    add_legend(figure, panels[0])
    return figure


ADDS = frozenset({Happening.ADDING})
REMOVES = frozenset({Happening.REMOVING, Happening.STOPPED})
"""To lose some GPUs, or all of them."""


@styled
def draw_changes(runs: Sequence[Run], *, look: Look = PAGE) -> Figure:
    """Draw how often GPUs were added to running jobs and taken from them (SideCar, Figure 11)."""
    figure, panels = make_panels(look, columns=2, height=2.9)
    clock = _Clock(runs)
    for axes, kinds, name in zip(
        panels, (ADDS, REMOVES), ("GPUs added", "GPUs removed"), strict=True
    ):
        for index, run in enumerate(runs):
            at = [entry.time for entry in run.record.log if entry.what in kinds]
            levels = clock.read(run.record, range(1, len(at) + 1), at=at)
            draw_level(axes, levels, label=run.label, **style_line(index))
        axes.set_title(name)
        count_upwards(axes)
        clock.label(axes)
    for axes in panels if look.is_narrow else panels[:1]:
        axes.set_ylabel("changes so far")
    add_legend(figure, panels[0])
    return figure


# --- series -------------------------------------------------------------------------------


class _Clock:
    """The time axis of all panels of a picture: from the first submission to the last end."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._end = max((_begin_and_end(run.record)[1] for run in runs), default=0.0)
        self._begin = min((_begin_and_end(run.record)[0] for run in runs), default=0.0)
        self._unit = choose_unit(self._end - self._begin)

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
    # A job that never ends is drawn up to the last event.
    return begin, record.ended_at if record.unfinished or not ends else max(ends)


# --- looks --------------------------------------------------------------------------------


def make_panels(
    look: Look, *, height: float, rows: int = 1, columns: int = 1
) -> tuple[Figure, Sequence[Axes]]:
    share = columns > 1
    if look.is_narrow and columns > 1:
        rows, columns, height = columns, 1, 0.75 * columns * height
    figure = Figure(figsize=(look.width, height))
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, sharex=True, sharey=share, squeeze=False)
    return figure, list(panels.flat)


def style_line(index: int) -> dict[str, Any]:
    """The colour and dashes of the policy with this number."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[(index + index // len(COLOURS)) % len(DASHES)],
    }


def add_legend(figure: Figure, axes: Axes) -> None:
    """One legend above all panels, in as many lines as it needs."""
    handles, labels = axes.get_legend_handles_labels()
    widest = max((len(label) for label in labels), default=0)
    columns = max(1, min(len(labels), int(90 / (widest + 8) * figure.get_figwidth() / WIDTH)))
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, handlelength=3.2)

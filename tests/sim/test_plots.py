"""Pictures: the same bytes for the same runs, true to the series, and drawable after every run."""

import random
import zlib

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.lines import Line2D

from dljob.core.model import NodeName
from dljob.sim import policies
from dljob.sim.engine.settings import Outage
from dljob.sim.results import axes, plots
from dljob.sim.results.looks import LOOKS
from dljob.sim.results.plots import Run
from dljob.sim.results.records import Record
from dljob_lab.comparing import bar_charts
from tests.sim.worlds import make_traced, play


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    jobs = tuple(make_traced(f"j{i}", at=60.0 * i, iterations=900.0) for i in range(12))
    return [Run(name, play(jobs, policies.make(name))) for name in ("fifo", "adaptive", "srtf")]


def labels_of(figure: Figure) -> set[str]:
    return {text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel()) if text}


# --- bytes --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [pytest.param("png", marks=pytest.mark.slow), "svg"])
def test_the_same_runs_make_the_same_bytes(runs, form):
    assert plots.render(plots.draw_gpus(runs), form) == plots.render(plots.draw_gpus(runs), form)


# --- what is in them ----------------------------------------------------------------------


def test_axes_say_what_they_show(runs):
    figures = plots.draw_runs(runs)
    assert set(figures) == {"gpus", "jct", "jobs", "changes"}
    assert labels_of(figures["jct"]) == {"job completion time (minutes)", "share of jobs"}
    assert labels_of(figures["jobs"]) == {"pending jobs", "running jobs", "time (minutes)"}
    assert "changes so far" in labels_of(figures["changes"])
    assert [axes.get_title(loc="left") for axes in figures["gpus"].axes] == [
        "fifo",
        "adaptive",
        "srtf",
    ]


def look_of(line: Line2D) -> tuple[str, str]:
    return str(line._unscaled_dash_pattern), str(line.get_color())  # type: ignore[attr-defined]


def test_policies_differ_even_without_their_colours(runs):
    (axes,) = plots.draw_jct([Run(str(i), runs[0].record) for i in range(21)]).axes
    looks = [look_of(line) for line in axes.lines]
    assert len(set(looks)) == 21
    assert len({dashes for dashes, _ in looks[:7]}) == 7


# --- unusual runs ---------------------------------------------------------------------------


def test_runs_in_which_nothing_ended_can_be_drawn():
    record = play(
        (make_traced("a"),), policies.make("fifo"), outages=(Outage(NodeName("n1"), 0.0),)
    )
    assert plots.render(plots.draw_jct([Run("fifo", record)]), "svg")
    assert len(plots.draw_runs([Run("fifo", record)])) == 4


def test_times_far_apart_are_drawn_on_an_axis_with_words():
    jobs = [make_traced(f"j{i}", iterations=40.0) for i in range(9)]
    jobs.append(make_traced("long", iterations=4_000_000.0))
    record = play(tuple(jobs), policies.make("srtf"))
    (axes,) = plots.draw_jct([Run("srtf", record)]).axes
    assert axes.get_xscale() == "log"
    assert "1 d" in [label.get_text() for label in axes.get_xticklabels()]


# --- long series --------------------------------------------------------------------------


def make_steps(count: int) -> tuple[np.ndarray, np.ndarray]:
    lots = random.Random(1)
    time = np.cumsum([lots.expovariate(1.0) for _ in range(count)])
    return time, np.array([float(lots.randrange(65)) for _ in range(count)])


def test_a_thinned_series_has_the_same_integral_and_extremes():
    time, value = make_steps(80_000)
    levels = axes.thin(time, value)
    assert len(levels.time) == axes.STRETCHES + 1
    whole = float((value[:-1] * np.diff(time)).sum())
    assert (levels.mean[:-1] * np.diff(levels.time)).sum() == pytest.approx(whole)
    assert levels.low.min() == value[:-1].min()
    assert levels.high.max() == value[:-1].max()
    assert (levels.low <= levels.mean + 1e-9).all()
    assert (levels.mean <= levels.high + 1e-9).all()


def test_a_long_replay_makes_no_large_files(runs):
    record = Record("long", "fifo", "in-place", 0, 64, jobs=runs[0].record.jobs)
    time, value = make_steps(80_000)
    end = max(job.completed_at or 0.0 for job in record.jobs)
    for at, level in zip(time / time[-1] * end, value, strict=True):
        record.series.add(float(at), used=float(level), running=int(level), pending=int(level))
    for figure in (plots.draw_gpus, plots.draw_jobs):
        svg = plots.render(figure([Run("fifo", record)]), "svg")
        assert len(svg) < 400_000
        assert len(zlib.compress(svg)) < 80_000


# --- for papers ---------------------------------------------------------------------------


def place_of(axes: Axes) -> SubplotSpec:
    place = axes.get_subplotspec()
    assert place is not None
    return place


def test_a_picture_for_a_column_is_as_wide_as_one_and_its_panels_are_below_each_other(runs):
    column = LOOKS["column"]
    for name, figure in plots.draw_runs(runs, look=column).items():
        assert figure.get_figwidth() == column.width, name
        assert {place_of(axes).colspan.start for axes in figure.axes} == {0}, name
    ratios = {"average JCT": {"fifo": [1.0], "srtf": [0.8]}, "makespan": {"fifo": [1.0]}}
    figure = bar_charts.draw_ratios(ratios, reference="fifo", look=column)
    assert len({place_of(axes).rowspan.start for axes in figure.axes}) == 2
    assert figure.axes[0].title.get_fontsize() < plots.STYLE["axes.titlesize"]


def test_a_pdf_is_as_large_as_said_holds_its_fonts_as_text_and_no_date(runs):
    content = plots.render(plots.draw_jct(runs, look=LOOKS["column"]), "pdf")
    assert content.startswith(b"%PDF-")
    assert b"/MediaBox [ 0 0 244.8 " in content
    assert b"/Type3" not in content
    assert b"Date" not in content

"""Pictures are reproducible, true to the series, and drawable after every run."""

import random
import zlib

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from dljob.core.model import NodeName
from dljob.sim import policies
from dljob.sim.engine.settings import Outage
from dljob.sim.results.looks import LOOKS
from dljob.sim.results.records import Record
from dljob_lab import axes, plots
from dljob_lab.comparing import bar_charts
from dljob_lab.plots import Run
from tests.sim.worlds import make_traced, play


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    jobs = tuple(make_traced(f"j{i}", at=60.0 * i, iterations=900.0) for i in range(12))
    return [Run(name, play(jobs, policies.make(name))) for name in ("fifo", "adaptive", "srtf")]


def labels_of(figure: Figure) -> set[str]:
    return {text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel()) if text}


@pytest.mark.parametrize("form", [pytest.param("png", marks=pytest.mark.slow), "svg"])
def test_same_runs_give_the_same_bytes(runs, form):
    assert plots.render(plots.draw_gpus(runs), form) == plots.render(plots.draw_gpus(runs), form)


def test_axes_are_labelled(runs):
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


def test_policies_differ_without_colours(runs):
    (axes,) = plots.draw_jct([Run(str(i), runs[0].record) for i in range(21)]).axes
    looks = [(str(line._unscaled_dash_pattern), line.get_color()) for line in axes.lines]  # type: ignore[attr-defined]
    assert len(set(looks)) == 21
    assert len({dashes for dashes, _ in looks[:7]}) == 7


def test_run_without_ended_jobs_is_drawable():
    record = play(
        (make_traced("a"),), policies.make("fifo"), outages=(Outage(NodeName("n1"), 0.0),)
    )
    assert plots.render(plots.draw_jct([Run("fifo", record)]), "svg")
    assert len(plots.draw_runs([Run("fifo", record)])) == 4


def test_wide_time_range_has_a_log_axis():
    jobs = [make_traced(f"j{i}", iterations=40.0) for i in range(9)]
    jobs.append(make_traced("long", iterations=4_000_000.0))
    record = play(tuple(jobs), policies.make("srtf"))
    (axes,) = plots.draw_jct([Run("srtf", record)]).axes
    assert axes.get_xscale() == "log"
    assert "1 d" in [label.get_text() for label in axes.get_xticklabels()]


def make_steps(count: int) -> tuple[np.ndarray, np.ndarray]:
    lots = random.Random(1)
    time = np.cumsum([lots.expovariate(1.0) for _ in range(count)])
    return time, np.array([float(lots.randrange(65)) for _ in range(count)])


def test_thinning_keeps_integral_and_extremes():
    time, value = make_steps(80_000)
    levels = axes.thin(time, value)
    assert len(levels.time) == axes.STRETCHES + 1
    whole = float((value[:-1] * np.diff(time)).sum())
    assert (levels.mean[:-1] * np.diff(levels.time)).sum() == pytest.approx(whole)
    assert levels.low.min() == value[:-1].min()
    assert levels.high.max() == value[:-1].max()
    assert (levels.low <= levels.mean + 1e-9).all()
    assert (levels.mean <= levels.high + 1e-9).all()


def test_long_replay_makes_small_files(runs):
    record = Record("long", "fifo", "in-place", 0, 64, jobs=runs[0].record.jobs)
    time, value = make_steps(80_000)
    end = max(job.completed_at or 0.0 for job in record.jobs)
    for at, level in zip(time / time[-1] * end, value, strict=True):
        record.series.add(float(at), used=float(level), running=int(level), pending=int(level))
    for figure in (plots.draw_gpus, plots.draw_jobs):
        svg = plots.render(figure([Run("fifo", record)]), "svg")
        assert len(svg) < 400_000
        assert len(zlib.compress(svg)) < 80_000


def place_of(axes: Axes) -> SubplotSpec:
    place = axes.get_subplotspec()
    assert place is not None
    return place


def test_column_pictures_stack_their_panels(runs):
    column = LOOKS["column"]
    for name, figure in plots.draw_runs(runs, look=column).items():
        assert figure.get_figwidth() == column.width, name
        assert {place_of(axes).colspan.start for axes in figure.axes} == {0}, name
    ratios = {"average JCT": {"fifo": [1.0], "srtf": [0.8]}, "makespan": {"fifo": [1.0]}}
    figure = bar_charts.draw_ratios(ratios, reference="fifo", look=column)
    assert len({place_of(axes).rowspan.start for axes in figure.axes}) == 2
    assert figure.axes[0].title.get_fontsize() < plots.STYLE["axes.titlesize"]


def test_pdf_has_exact_size_text_fonts_and_no_date(runs):
    content = plots.render(plots.draw_jct(runs, look=LOOKS["column"]), "pdf")
    assert content.startswith(b"%PDF-")
    assert b"/MediaBox [ 0 0 244.8 " in content
    assert b"/Type3" not in content
    assert b"Date" not in content

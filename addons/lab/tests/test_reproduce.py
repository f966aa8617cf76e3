"""``dljob reproduce``: rows for programs, a table for people."""

import filecmp
from math import nan
from pathlib import Path
from typing import cast

import pytest

from dljob.sim import policies
from dljob.sim.inputs.shipped import find_folder
from dljob_lab import reproducing
from dljob_lab.plots import Run, draw_jobs
from dljob_lab.reproducing import peers, pictures
from dljob_lab.reproducing.findings import Reproduction, Row, Verdict, Wanted
from dljob_lab.verbs.reproduce import show_rows
from tests.ctl.running import TRACES
from tests.sim.worlds import make_traced, play

ROWS = (
    Row("a/b", "time", "s", 100.0, 97.5),
    Row("c", "makespan reduction", "%", 45.0, 44.2, 3.1, Wanted.MORE, in_sample=True),
    Row("d", "time", "s", 7.0, nan, wanted=Wanted.LESS, is_tried=False),
)


@pytest.fixture
def small(monkeypatch):
    """A reproduction that is done at once, in the place of a real one."""

    def reproduce(watch: object) -> Reproduction:
        return Reproduction(ROWS, notes=("Mind this.",))

    monkeypatch.setitem(cast(dict[str, object], reproducing.REPRODUCTIONS), "peers", reproduce)


def test_json_rows_have_the_fields_that_programs_rely_on(dljob, small):
    result = dljob("reproduce", "peers", "-o", "json")
    assert result.status == 0
    first, second, third = result.data
    assert first == {
        "item": "a/b",
        "quantity": "time",
        "unit": "s",
        "paper": 100.0,
        "ours": 97.5,
        "spread": 0.0,
        "verdict": None,
        "sample": "out of sample",
    }
    assert (second["verdict"], second["sample"]) == ("equal within a tenth", "in-sample")
    assert (third["ours"], third["verdict"]) == (None, "not tried")
    assert result.stderr == "Mind this.\n"


def test_table_has_published_and_own_figures():
    *_, first, second, third, _ = show_rows(ROWS, "table").splitlines()
    assert first.split() == ["a/b", "time", "s", "100", "97.5", "0.975"]
    assert second.split() == [
        "c",
        "makespan",
        "reduction",
        "%",
        "45",
        "44.2",
        "3.1",
        "0.982",
        *["equal", "within", "a", "tenth", "(fitted)"],
    ]
    assert third.split() == ["d", "time", "s", "7", "not", "tried"]


@pytest.mark.parametrize(
    ("wanted", "unit", "paper", "ours", "verdict"),
    [
        (Wanted.MORE, "x", 2.0, 2.3, Verdict.BETTER),
        (Wanted.MORE, "x", 2.0, 1.7, Verdict.WORSE),
        (Wanted.MORE, "x", 2.0, 0.9, Verdict.NOT_REPRODUCED),
        (Wanted.MORE, "%", 40.0, -2.0, Verdict.NOT_REPRODUCED),
        (Wanted.LESS, "x", 2.0, 1.3, Verdict.BETTER),
        (Wanted.LESS, "%", 8.9, 12.0, Verdict.WORSE),
        (Wanted.SAME, "s", 100.0, 109.0, Verdict.EQUAL),
        (Wanted.SAME, "s", 100.0, 130.0, Verdict.NOT_REPRODUCED),
        (Wanted.MORE, "x", 2.0, nan, Verdict.NOT_REPRODUCED),
        (None, "s", 100.0, 130.0, None),
    ],
)
def test_verdict_says_how_ours_stands_to_the_claim(wanted, unit, paper, ours, verdict):
    assert Row("a", "b", unit, paper, ours, wanted=wanted).verdict is verdict


@pytest.fixture
def drawn(monkeypatch):
    """One picture, in the place of those that take a while."""
    run = Run("fifo", play((make_traced("a"),), policies.make("fifo")))
    drawing = {"sidecar": lambda: {"sidecar-7": draw_jobs([run])}}
    monkeypatch.setattr(pictures, "PICTURES", drawing)


def test_figures_of_a_paper_are_drawn_into_a_folder(dljob, drawn, tmp_path):
    assert dljob("reproduce", "sidecar", "--plot", tmp_path).status == 0
    assert (tmp_path / "sidecar-7.svg").read_bytes().startswith(b"<?xml")
    refused = dljob("reproduce", "ones", "--plot", tmp_path)
    assert (refused.status, "ones has no pictures" in refused.stderr) == (2, True)


# Whole traces; what is replayed of them at every change is in tests/sim/test_peers.py.
@pytest.mark.long
def test_peers_are_equal_or_explained(dljob):
    rows = dljob("reproduce", "peers", "-o", "json").data
    philly = [row for row in rows if row["item"].startswith("philly")]
    assert len(philly) == 80
    for row in philly:
        # The average of the idle cluster was published as a range of 1 s, and stands as its middle.
        allowed = 0.55 if "e13805" in row["item"] else 0.05
        assert abs(row["ours"] - row["paper"]) <= allowed, row
    means = {row["item"]: row for row in rows if row["quantity"] == "mean avg jct"}
    ratios = [means[f"pollux_{load}/tiresias"] for load in ("0.5", "1.0", "1.5", "2.0")]
    assert [round(row["ours"] / row["paper"], 1) for row in ratios] == [0.9, 0.8, 0.8, 0.8]
    assert all(row["spread"] > 0 for row in ratios)


def test_the_shipped_copies_are_those_that_the_tests_use():
    shipped = find_folder() / "peers"
    traces = sorted(shipped.glob("*.csv.gz"))
    assert len(traces) == 24
    for trace in traces:
        assert filecmp.cmp(trace, TRACES / trace.name, shallow=False)
    assert filecmp.cmp(shipped / "philly_published.csv", TRACES / "peer_figures.csv", shallow=False)


def test_every_trace_of_published_figures_is_shipped():
    for published in (*peers.read_philly(), *peers.read_pollux()):
        assert Path(find_folder() / "peers" / f"{published.trace}.csv.gz").is_file()

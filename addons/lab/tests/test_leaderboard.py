"""The benchmark that is shipped, and the page that is written of it."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import yaml

from dljob.sim import policies
from dljob.sim.errors import BadInput
from dljob.sim.inputs.shipped import find_folder
from dljob_lab.comparing.planning import make_rows
from dljob_lab.comparing.suite import load_suite, plan_suite
from dljob_lab.verbs import compare
from dljob_lab.verbs.leaderboard import BEGIN, END, write_page
from tests.ctl.running import FIVE

SUITE = load_suite()

TRACES = [
    {"file": "suite/five.csv", "part": "tuning", "cluster": "1x8"},
    {"file": "suite/same.csv", "part": "judging", "cluster": "2x4"},
]
DEFINITION = {
    "version": 7,
    "placements": ["counted", "packed"],
    "loads": [0.9],
    "restartCosts": [0],
    "seeds": [0],
    "window": 4,
    "reference": "max-min",
    "traces": TRACES,
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "suite"
    folder.mkdir()
    for name in ("five.csv", "same.csv"):
        (folder / name).write_text(FIVE, encoding="utf-8")
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(DEFINITION), encoding="utf-8")
    return path


def make_up(policy: str) -> list[dict[str, Any]]:
    """Rows as if each task of the shipped suite had been played."""
    score: dict[str, Any] = {"avg_jct_s": 3.0, "p99_jct_s": 9.0, "makespan_s": 9.0, "unfinished": 0}
    score |= {"unfair_local_share": 0.1, "jobs": 5}
    tasks = plan_suite(SUITE, [policy])
    return make_rows(
        {
            task: score if task.policy else {"bound_avg_jct_s": 2.0, "bound_jobs": 5}
            for task in tasks
        }
    )


# --- the definition -----------------------------------------------------------------------


def test_every_trace_of_the_suite_is_shipped_and_small():
    sizes = [entry.path.stat().st_size for entry in SUITE.entries]
    assert sum(sizes) < 1_000_000
    assert all(entry.path.is_relative_to(find_folder()) for entry in SUITE.entries)
    assert all(gzip.decompress(entry.path.read_bytes()) for entry in SUITE.entries)


def test_half_of_the_traces_are_for_judging_and_share_no_cluster_with_the_others():
    clusters: dict[str, set[str]] = {part: set() for part in ("tuning", "judging")}
    for entry in SUITE.entries:
        name = entry.path.name.split(".csv")[0].removesuffix("_part").removesuffix("_models")
        clusters[entry.part].add(name)
    assert not clusters["tuning"] & clusters["judging"]
    assert abs(len(clusters["tuning"]) - len(clusters["judging"])) <= 1
    assert SUITE.reference in policies.NAMES


def test_the_suite_is_every_trace_in_every_scenario_with_a_bound(small):
    tasks = plan_suite(load_suite(small), ["fifo", "srtf"])
    assert len(tasks) == 2 * 2 * 3
    assert {task.part for task in tasks} == {"tuning", "judging"}
    assert {task.scenario.window for task in tasks} == {4}
    assert {task.part for task in plan_suite(load_suite(small), ["fifo"], parts=["tuning"])} == {
        "tuning"
    }


def test_a_wrong_definition_is_refused(small):
    for change, told in (
        ({"placements": ["scattered"]}, "placement"),
        ({"traces": [TRACES[0]] * 2}, "twice"),
        ({"traces": [TRACES[0] | {"part": "both"}]}, "'both' is no part"),
    ):
        small.write_text(yaml.safe_dump(DEFINITION | change), encoding="utf-8")
        with pytest.raises(BadInput, match=told):
            load_suite(small)


# --- the page -----------------------------------------------------------------------------


def test_the_command_plays_the_suite_and_writes_the_page(dljob, folder, small, monkeypatch):
    monkeypatch.setattr(compare, "load_suite", lambda: load_suite(small))
    result = dljob("compare", "--suite", "--policy", "srtf", "--jobs", 1, "--write", "page.md")
    assert result.status == 0
    page = (folder / "page.md").read_text(encoding="utf-8")
    assert page.count("| srtf | 1 |") == 4
    # The policy that all are compared with comes by itself.
    assert page.count("| max-min | 1 |") == 4
    assert ". Not played: foresight, " in page
    assert "suite 7" in page
    assert "count for nothing" not in page
    assert "from–to" not in page


def test_the_tables_of_a_page_are_replaced_and_its_other_text_stays():
    rows = make_up("srtf") + make_up("max-min")
    docs = Path(__file__).parents[3] / "docs" / "leaderboard.md"
    present = docs.read_text(encoding="utf-8")
    page = write_page(SUITE, rows, window=None, present=present)
    head, rest = present.split(BEGIN)
    assert page.startswith(head + BEGIN)
    assert page.endswith(rest.split(END)[1])
    assert "Not played" in page
    assert "| foresight | 36 |" in present.split(BEGIN)[1]
    assert "| foresight | 36 |" not in page.split(BEGIN)[1].split(END)[0]
    assert write_page(SUITE, rows, window=None, present=page) == page
    assert write_page(SUITE, rows, window=None, present="other").startswith("# Leaderboard\n")


def test_lines_are_in_order_of_their_distance_from_the_bound():
    rows = [{**row, "avg_jct_s": 2.5} for row in make_up("srtf")] + make_up("max-min")
    page = write_page(SUITE, rows, window=None)
    first = [line for line in page.splitlines() if line.startswith(("| srtf", "| max-min"))]
    assert [line.split()[1] for line in first[:2]] == ["srtf", "max-min"]


def test_suite_names_its_scenarios(dljob, folder):
    for options, told in (
        (("--suite", "--loads", "0.5"), "leave loads out"),
        (("--suite", "five.csv"), "leave traces out"),
        (("five.csv", "--part", "tuning"), "are for --suite alone"),
        (("five.csv", "--write", "page.md"), "are for --suite alone"),
    ):
        result = dljob("compare", *options, "--policy", "fifo")
        assert result.status == 2
        assert told in result.stderr

"""Records of simulations as files, and what a trace for Perfetto has of them."""

import csv
import json

import pytest

from addons.web.tests.reading import embedded, fours, gpu_seconds
from dljob.core.recording.record import decode
from dljob.core.recording.sums import list_levels
from tests.builders import sum_gpu_seconds
from tests.ctl.running import FIVE
from tests.ctl.traces import slice_seconds


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(FIVE, encoding="utf-8")
    return file


def simulate(dljob, trace, *words):
    jobs = trace.with_name("jobs.csv")
    result = dljob("simulate", trace, "--cluster", "2x4", "--jobs-out", jobs, *words)
    assert result.status == 0, result.stderr
    with jobs.open(encoding="utf-8") as rows:
        return {
            policy: {row["job_id"]: float(row["gpu_seconds"]) for row in found}
            for policy, found in by_policy(csv.DictReader(rows)).items()
        }


def by_policy(rows):
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(row["policy"], []).append(row)
    return found


def test_a_simulation_is_recorded_with_the_gpu_seconds_of_its_figures(dljob, trace, tmp_path):
    file = tmp_path / "record.jsonl"
    figures = simulate(
        dljob,
        trace,
        "--policy",
        "foresight",
        "--policy",
        "tiresias:thresholds=60,600",
        "--record",
        file,
    )
    assert not file.exists()
    for policy, expected in figures.items():
        own = tmp_path / f"record-{policy.translate(str.maketrans(':=,', '---'))}.jsonl"
        with own.open(encoding="utf-8") as lines:
            record = decode(lines, own.name)
        assert record.header.policy == policy
        assert sum_gpu_seconds(record) == pytest.approx(expected, abs=1e-3)


def test_a_page_for_a_browser_has_the_same_gpu_seconds(dljob, trace, tmp_path):
    page = tmp_path / "record.html"
    figures = simulate(dljob, trace, "--policy", "adaptive", "--record", page)["adaptive"]
    data = embedded(page.read_text(encoding="utf-8"))
    assert data["epoch"] is None
    # The page has milliseconds.
    assert gpu_seconds(data) == pytest.approx(figures, abs=0.1)
    held = {job["name"]: job["trained"] + job["changing"] for job in data["jobs"]}
    assert held == pytest.approx(figures, abs=1e-3)
    for lane in (lane for node in data["nodes"] for lane in node["lanes"]):
        # The page searches in it.
        assert lane["spans"][1::4] == sorted(lane["spans"][1::4])
        for begin, _, job, decision in fours(lane["spans"]):
            assert data["jobs"][job]["history"][decision]["at"] == begin


def test_a_trace_for_perfetto_has_the_same_gpu_seconds(dljob, trace, tmp_path):
    file, lines = tmp_path / "record.pftrace", tmp_path / "record.jsonl"
    words = ("--policy", "adaptive", "--record")
    figures = simulate(dljob, trace, *words, file)
    assert simulate(dljob, trace, *words, lines) == figures
    content = file.read_bytes()
    assert slice_seconds(content) == pytest.approx(figures["adaptive"], abs=1e-3)
    for word in (b"reason", b"ItsTurn", b"expected_pause_seconds", b"submitted", b"starting"):
        assert word in content
    # Counters say what the record does.
    with lines.open(encoding="utf-8") as text:
        levels = list_levels(decode(text, lines.name))
    queue = [each for each in json.loads(content)["traceEvents"] if each["name"] == "Queue"]
    assert [each["args"]["jobs"] for each in queue] == [level.queued for level in levels]
    assert [each["ts"] / 1e6 for each in queue] == pytest.approx([level.at for level in levels])


def test_unwritable_record_is_refused(dljob, folder):
    for words, told in (
        (("record", "--since", "yesterday"), "'yesterday' is not a length of time or a time"),
        (("record", "-o", "/"), "is a folder"),
    ):
        result = dljob(*words)
        assert result.status != 0
        assert told in result.stderr

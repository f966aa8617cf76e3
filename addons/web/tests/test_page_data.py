"""The data of the page; tests/ctl/test_record.py has them against the figures of a report."""

import csv
import io

import pytest

from addons.web.tests.records import ONE, SCRIPT, TURNED, hostile_record
from dljob.core.recording.record import Given, Record
from dljob_web import page_data
from dljob_web.page_data import NO_DECISION, make_page_data


def test_history_has_the_record_of_a_job():
    data = make_page_data(hostile_record())
    assert data.epoch == 1000.0
    assert data.length == 100.0
    job = data.jobs[0]
    assert (job.submitted, job.ended, job.outcome) == (0.0, 80.0, "Completed")
    assert [(each.name, each.old, each.new) for each in job.history] == [
        ("start", 0, 2),
        ("reshape", 2, 1),
        ("Crashed", 0, 0),
    ]
    assert (job.gpus, job.changes) == (2, 1)
    assert job.pauses == [10.0, 16.0]
    assert job.metrics[:2] + job.metrics[-2:] == [16.0, 4.0, 55.0, 2.05]
    assert job.trained + job.changing == 120.0
    assert data.waiting == [0.0, 10.0, 50.0, 100.0]


def test_nodes_are_in_the_order_of_their_numbers_with_their_outages():
    data = make_page_data(hostile_record())
    assert [node.name for node in data.nodes] == ["node-2", "node-10"]
    assert data.nodes[1].lanes[0].outages == [40.0, 100.0]
    assert data.nodes[1].lanes[0].reasons == ["<b>ECC</b>"]
    assert data.nodes[0].lanes[1].spans == [10.0, 60.0, 0, 0]


def test_a_span_without_a_decision_says_so():
    record = hostile_record()
    lines = [line for line in record.lines if getattr(line, "step", "") != "start"]
    data = make_page_data(type(record)(record.header, tuple(lines)))
    assert data.nodes[0].lanes[1].spans[3] == NO_DECISION


def test_invisible_characters_are_shown():
    names = [job.name for job in make_page_data(hostile_record()).jobs]
    assert names == [SCRIPT, r"=evil/a\u202eb\x07"]


def test_a_namespace_is_no_formula_of_a_spreadsheet():
    record = hostile_record()
    lines = [*record.lines, Given(at=1090.0, job=TURNED, placement=ONE)]
    data = make_page_data(Record.of(record.header, lines))
    rows = list(csv.DictReader(io.StringIO(data.sums.csv)))
    assert {row["namespace"] for row in rows} == {"'=evil", SCRIPT.rpartition("/")[0], ""}
    # Three GPUs for 100 seconds.
    assert sum(float(row["gpu_seconds"]) for row in rows) == pytest.approx(300.0)


def test_a_long_line_of_speeds_is_thinned_and_keeps_its_end():
    points = [(float(number), 0.0, 1.0) for number in range(10_001)]
    thinned = page_data._thin(points)
    assert len(thinned) <= page_data.MOST_SPEEDS
    assert thinned[-1] == points[-1]
    assert list(thinned) == sorted(thinned)

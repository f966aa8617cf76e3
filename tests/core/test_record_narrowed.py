"""A narrowed record shows of hidden jobs only when they hold each GPU."""

from dataclasses import replace

from dljob.core.model import NodeName, Placement
from dljob.core.recording.narrowing import WITHHELD, list_jobs, narrow
from dljob.core.recording.record import (
    Decided,
    Ended,
    Given,
    Gpu,
    Happened,
    Header,
    Line,
    Record,
    Source,
    Submitted,
)
from dljob.core.recording.report import By, list_parts, make_report
from dljob.core.recording.sums import list_outages

NODE = NodeName("n")
LACK = "you see a part"


def placed(*gpus):
    return Placement.of({NODE: gpus}, "T4")


RECORD = Record.of(
    Header(
        source=Source.CLUSTER,
        until=100.0,
        missing=("of blue/b only the latest decisions are known", "phases are not known"),
    ),
    [
        *(Gpu(at=0.0, node=NODE, gpu=number, gpu_type="T4", uuid="GPU-x") for number in range(3)),
        Gpu(at=90.0, node=NODE, gpu=2, in_service=False, reason="blue/b holds it"),
        Submitted(at=0.0, job="red/a"),
        Submitted(at=0.0, job="blue/b"),
        Decided(at=10.0, job="red/a", step="start", generation=1, new=placed(0)),
        Given(at=10.0, job="red/a", generation=1, placement=placed(0)),
        Given(at=10.0, job="blue/b", generation=1, placement=placed(1, 2)),
        Given(at=40.0, job="red/a", generation=2, placement=placed(0, 1)),
        Given(at=40.0, job="blue/b", generation=2, placement=placed(2)),
        Ended(at=60.0, job="red/a", outcome="Completed"),
    ],
)


def narrow_to_red(record):
    hidden = frozenset(job for job in list_jobs(record) if not job.startswith("red/"))
    return narrow(record, hidden, lack=LACK)


def shown(record):
    """Return the times when other jobs hold each GPU, or it is out of service."""
    outages = list_outages(narrow_to_red(record))
    return {
        ref.number: [(each.begin, each.end, each.is_held) for each in found]
        for ref, found in outages.items()
    }


def test_gpus_of_hidden_jobs_are_blocks():
    # GPU 2 is out of service from 90 on, but until the end another job has it.
    assert shown(RECORD) == {0: [], 1: [(10.0, 40.0, True)], 2: [(10.0, 100.0, True)]}
    report = make_report(narrow_to_red(RECORD), By.NAMESPACE)
    assert report.held_by_others == 30.0 + 90.0
    assert report.held.total == 70.0
    assert report.out_of_service == 0.0
    assert report.total == 3 * 100.0
    assert ("", "held by other jobs", 120.0) in [(*each.values(),) for each in list_parts(report)]


def test_released_gpu_is_out_of_service_without_reason():
    ended = Record.of(
        RECORD.header, [*RECORD.lines, Ended(at=95.0, job="blue/b", outcome="Failed")]
    )
    assert shown(ended)[2] == [(10.0, 95.0, True), (95.0, 100.0, False)]
    reasons = [
        each.reason for found in list_outages(narrow_to_red(ended)).values() for each in found
    ]
    assert reasons == ["", "", WITHHELD]


def test_hidden_jobs_cannot_be_counted():
    mine = [line for line in RECORD.lines if isinstance(line, Gpu) or line.job == "red/a"]
    others: list[Line] = [
        Submitted(at=1.0, job="blue/x"),
        Submitted(at=70.0, job="green/waits"),
        Given(at=10.0, job="blue/x", generation=1, placement=placed(2)),
        Given(at=10.0, job="green/y", generation=1, placement=placed(1)),
        # One reshapes, and both exchange GPU 2.
        Given(at=20.0, job="green/y", generation=2, placement=placed(1, 2)),
        Given(at=20.0, job="blue/x", generation=2, placement=None),
        Happened(at=25.0, job="green/y", name="Crashed"),
        Given(at=40.0, job="green/y", generation=3, placement=placed(2)),
        Ended(at=80.0, job="green/y", outcome="Failed"),
        Given(at=80.0, job="blue/x", generation=3, placement=placed(2)),
    ]
    in_service = [line for line in mine if not isinstance(line, Gpu) or line.in_service]
    for alike in ([*mine, *others], [*in_service, *others]):
        record = Record.of(replace(RECORD.header, missing=("phases are not known",)), alike)
        assert narrow_to_red(record) == narrow_to_red(RECORD)


def test_narrowed_record_begins_with_the_first_visible_job():
    lines: list[Line] = [
        Gpu(at=3.0, node=NODE, gpu=1),
        Submitted(at=3.0, job="blue/first"),
        Submitted(at=5.0, job="red/a"),
    ]
    record = Record.of(RECORD.header, lines)
    assert narrow_to_red(record).begin == 5.0
    nothing = narrow(record, list_jobs(record), lack=LACK)
    assert (nothing.begin, nothing.header.missing[-1]) == (nothing.header.until, LACK)

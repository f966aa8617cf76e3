"""The parts of GPU time in a report, against the GPU-seconds of jobs and by hand."""

from dataclasses import replace

import pytest

from dljob.core.model import NodeName, Placement
from dljob.core.recording.record import (
    Decided,
    Ended,
    Given,
    Gpu,
    Happened,
    Header,
    Phase,
    Progress,
    Record,
    Source,
    Stage,
    Submitted,
)
from dljob.core.recording.report import By, list_parts, make_document, make_report
from dljob.core.recording.usage import Held, merge, read_timelines
from tests.builders import sum_gpu_seconds

NODE = NodeName("n")
ONE = Placement.of({NODE: [0]}, "A100")
BOTH = Placement.of({NODE: [0, 1]}, "A100")


def record(*lines):
    gpus = (Gpu(at=0.0, node="n", gpu=number, gpu_type="A100") for number in (0, 1))
    return Record.of(Header(source=Source.MACHINE, until=100.0), (*gpus, *lines))


def test_gpu_time_is_split_into_all_parts():
    found = record(
        Submitted(at=10.0, job="a/x"),
        Decided(at=12.0, job="a/x", step="wait", cause="NoRoomForPod"),
        Given(at=20.0, job="a/x", generation=1, placement=ONE),
        Phase(at=20.0, job="a/x", phase=Stage.ASKED, generation=1),
        Phase(at=25.0, job="a/x", phase=Stage.FIRST_STEP, generation=1),
        Ended(at=60.0, job="a/x", outcome="Completed"),
        Gpu(at=90.0, node="n", gpu=1, in_service=False, reason="ECC"),
    )
    report = make_report(found, By.NAMESPACE)
    assert [(row.name, row.held) for row in report.rows] == [("a", Held(35.0, 5.0))]
    # Both GPUs are free while the job waits from 10 to 20.
    assert report.causes == {"NoRoomForPod": 16.0, "": 4.0}
    assert report.rows[0].idle_while_waiting == 20.0
    assert (report.out_of_service, report.idle, report.total) == (10.0, 130.0, 200.0)
    assert list(merge(wait[:2] for wait in read_timelines(found).waits)) == [(10.0, 20.0)]


def test_live_change_is_lost_time_and_counted_apart():
    decided = Decided(at=40.0, job="x", step="reshape", generation=2, old=ONE, new=BOTH)
    found = record(
        Submitted(at=0.0, job="x"),
        Given(at=0.0, job="x", generation=1, placement=ONE),
        replace(decided, cost_seconds=0.5, how="live"),
        Given(at=40.0, job="x", generation=2, placement=BOTH),
        Phase(at=40.0, job="x", phase=Stage.ASKED, generation=2),
        Phase(at=50.0, job="x", phase=Stage.PAUSED, generation=2),
        Phase(at=50.5, job="x", phase=Stage.FIRST_STEP, generation=2),
    )
    report = make_report(found, By.JOB)
    assert report.held == Held(trained=159.0, changing=1.0)
    assert report.pauses == {"live": [0.5]}
    assert make_document(report)["changes"] == {"live": {"count": 1, "pauseSeconds": 0.5}}


def test_job_trains_until_it_saves():
    found = record(
        Submitted(at=0.0, job="x"),
        Given(at=0.0, job="x", generation=1, placement=ONE),
        Decided(at=40.0, job="x", step="reshape", generation=2, old=ONE, new=BOTH),
        Given(at=40.0, job="x", generation=2, placement=BOTH),
        Phase(at=40.0, job="x", phase=Stage.ASKED, generation=2),
        Phase(at=50.0, job="x", phase=Stage.SAVING, generation=2),
        Phase(at=70.0, job="x", phase=Stage.FIRST_STEP, generation=2),
    )
    report = make_report(found, By.JOB)
    assert report.held == Held(trained=120.0, changing=40.0)
    assert sum_gpu_seconds(found) == {"x": pytest.approx(160.0)}
    assert report.idle == 40.0


def test_failure_costs_restart_and_repeated_iterations():
    found = record(
        Submitted(at=0.0, job="x", model="resnet", user="ada"),
        Decided(at=0.0, job="x", step="start", generation=1, new=BOTH),
        Given(at=0.0, job="x", generation=1, placement=BOTH),
        Phase(at=0.0, job="x", phase=Stage.ASKED, generation=1),
        Phase(at=10.0, job="x", phase=Stage.FIRST_STEP, generation=1),
        Progress(at=30.0, job="x", iteration=20.0, iterations_per_second=1.0),
        # The controller tries it again, without a decision of the scheduler.
        Happened(at=50.0, job="x", name="TrainingFailed", warning=True),
        Given(at=50.0, job="x", generation=2, placement=BOTH),
        Phase(at=50.0, job="x", phase=Stage.ASKED, generation=2),
        Phase(at=60.0, job="x", phase=Stage.FIRST_STEP, generation=2),
        Progress(at=70.0, job="x", iteration=25.0, iterations_per_second=1.0, lost_seconds=25.0),
        Ended(at=100.0, job="x", outcome="Completed", lost_seconds=25.0),
    )
    # 20 GPU-seconds each for the start and the restart, and 25 s of two GPUs are repeated.
    held = Held(trained=200.0 - 40.0 - 50.0, changing=20.0, failing=20.0 + 50.0)
    for by, name in ((By.JOB, "x"), (By.MODEL, "resnet"), (By.USER, "ada"), (By.TYPE, "A100")):
        report = make_report(found, by)
        assert [(row.name, row.jobs, row.held) for row in report.rows] == [(name, {"x"}, held)]
        assert sum(part["gpu_seconds"] for part in list_parts(report)) == 200.0


def test_restart_after_failure_counts_as_failing():
    found = record(
        Decided(at=0.0, job="x", step="start", generation=1, new=ONE),
        Given(at=0.0, job="x", generation=1, placement=ONE),
        Given(at=40.0, job="x", generation=2, placement=None),
        Decided(at=50.0, job="x", step="start", generation=3, new=ONE),
        Given(at=50.0, job="x", generation=3, placement=ONE),
        Phase(at=50.0, job="x", phase=Stage.ASKED, generation=3),
        Phase(at=58.0, job="x", phase=Stage.FIRST_STEP, generation=3),
    )
    assert make_report(found, By.JOB).held == Held(trained=82.0, failing=8.0)


def test_suspended_job_does_not_wait():
    found = record(
        Submitted(at=0.0, job="x"),
        Given(at=0.0, job="x", generation=1, placement=ONE),
        Decided(at=20.0, job="x", step="stop", cause="Suspended", generation=2, old=ONE),
        Given(at=20.0, job="x", generation=2, placement=None),
        Decided(at=80.0, job="x", step="wait", cause="NextRound", generation=2),
    )
    report = make_report(found, By.JOB)
    assert report.causes == {"NextRound": 40.0}
    assert report.idle == 80.0 + 60.0


def test_kept_gpu_out_of_service_belongs_to_its_job():
    found = record(
        Given(at=0.0, job="x", generation=1, placement=ONE),
        Gpu(at=50.0, node="n", gpu=0, in_service=False, reason="ECC"),
    )
    report = make_report(found, By.JOB)
    assert (report.held.trained, report.out_of_service, report.total) == (100.0, 0.0, 200.0)

"""Where GPU time went: the five sums, against GPU-seconds of jobs and by hand."""

import pytest

from dlcore.model import NodeName, Placement
from dlcore.recording.record import (
    Decided,
    Ended,
    Given,
    Gpu,
    Header,
    Phase,
    Record,
    Source,
    Stage,
    Submitted,
)
from dlcore.recording.sums import sum_gpu_seconds
from dlcore.recording.usage import Held, list_waiting, sum_usage

NODE = NodeName("n")
ONE = Placement.of({NODE: [0]})
BOTH = Placement.of({NODE: [0, 1]})


def record(*lines):
    gpus = (Gpu(at=0.0, node="n", gpu=number) for number in (0, 1))
    return Record.of(Header(source=Source.MACHINE, until=100.0), (*gpus, *lines))


def test_time_of_gpus_is_trained_changing_idle_waited_for_or_out_of_service():
    found = record(
        Submitted(at=10.0, job="a/x"),
        Given(at=20.0, job="a/x", generation=1, placement=ONE),
        Phase(at=20.0, job="a/x", phase=Stage.ASKED, generation=1),
        Phase(at=25.0, job="a/x", phase=Stage.FIRST_STEP, generation=1),
        Ended(at=60.0, job="a/x", outcome="Completed"),
        Gpu(at=90.0, node="n", gpu=1, in_service=False, reason="ECC"),
    )
    usage = sum_usage(found)
    assert usage.jobs == {"a/x": Held(trained=35.0, changing=5.0)}
    assert usage.namespaces == {"a": Held(trained=35.0, changing=5.0)}
    # Both GPUs are free while the job waits from 10 to 20.
    assert usage.idle_while_waiting == 20.0
    assert usage.out_of_service == 10.0
    assert usage.idle == 130.0
    assert usage.total == 200.0
    assert list_waiting(found) == ((10.0, 20.0),)


def test_a_job_trains_on_until_it_saves_itself():
    found = record(
        Submitted(at=0.0, job="x"),
        Given(at=0.0, job="x", generation=1, placement=ONE),
        Decided(at=40.0, job="x", step="reshape", generation=2, old=ONE, new=BOTH),
        Given(at=40.0, job="x", generation=2, placement=BOTH),
        Phase(at=40.0, job="x", phase=Stage.ASKED, generation=2),
        Phase(at=50.0, job="x", phase=Stage.SAVING, generation=2),
        Phase(at=70.0, job="x", phase=Stage.FIRST_STEP, generation=2),
    )
    usage = sum_usage(found)
    assert usage.jobs == {"x": Held(trained=120.0, changing=40.0)}
    assert sum_gpu_seconds(found) == {"x": pytest.approx(160.0)}
    assert usage.idle == 40.0


def test_a_gpu_that_a_job_keeps_out_of_service_is_the_jobs():
    found = record(
        Given(at=0.0, job="x", generation=1, placement=ONE),
        Gpu(at=50.0, node="n", gpu=0, in_service=False, reason="ECC"),
    )
    usage = sum_usage(found)
    assert (usage.trained, usage.out_of_service, usage.total) == (100.0, 0.0, 200.0)

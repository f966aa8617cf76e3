"""A record narrowed to the rights of a user: no line of other jobs, which are anonymous blocks at most."""

from dataclasses import replace

import pytest

from dlclient.cluster.reading.gpus import find_holdings, list_gpus
from dlcore.model import NodeName, Placement
from dlcore.recording.narrowing import WITHHELD
from dlcore.recording.record import (
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
from dlcore.recording.report import By, list_parts, make_report
from dlcore.recording.sums import list_outages, sum_gpu_seconds
from dlcore.recording.usage import read_timelines, sum_usage
from dloperator.nodes.nodes import Pool
from dlportal.narrowing import PARTLY, THEIRS, narrow_jobs, narrow_nodes, narrow_record
from dlportal.rights import Rights
from dlweb.page_data import make_page_data
from dlweb.queue_data import make_queue

NODE = NodeName("n")
ALL = Rights(None, nodes=True)
RED = Rights(frozenset({"red"}), nodes=False)
RED_AND_NODES = Rights(frozenset({"red"}), nodes=True)


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


@pytest.mark.parametrize(("rights", "lack"), [(RED, THEIRS), (RED_AND_NODES, PARTLY)])
def test_there_is_no_word_of_other_jobs(rights, lack):
    narrowed = narrow_record(RECORD, rights)
    assert "blue" not in str(narrowed)
    assert sum_gpu_seconds(narrowed) == {"red/a": 30.0 + 40.0}
    assert narrowed.header.missing == ("phases are not known", lack)


def test_without_the_right_to_list_nodes_gpus_are_in_service_while_a_visible_job_has_them():
    narrowed = narrow_record(RECORD, RED)
    timelines = read_timelines(narrowed)
    assert {ref.number for ref in timelines.gpus} == {0, 1}
    report = make_report(narrowed, By.NAMESPACE, usage=sum_usage(narrowed, timelines))
    assert report.idle == report.idle_while_waiting == report.held_by_others == 0.0
    assert report.out_of_service == 2 * 40.0


def shown(record):
    """Return when each GPU is held by other jobs, and when it is out of service."""
    outages = list_outages(narrow_record(record, RED_AND_NODES))
    return {
        ref.number: [(each.begin, each.end, each.is_held) for each in found]
        for ref, found in outages.items()
    }


def test_with_the_right_to_list_nodes_gpus_of_other_jobs_are_blocks():
    # GPU 2 is out of service from 90 on, but until the end another job has it.
    assert shown(RECORD) == {0: [], 1: [(10.0, 40.0, True)], 2: [(10.0, 100.0, True)]}
    report = make_report(narrow_record(RECORD, RED_AND_NODES), By.NAMESPACE)
    assert report.held_by_others == 30.0 + 90.0
    assert report.held.total == 70.0
    assert report.out_of_service == 0.0
    assert report.total == 3 * 100.0
    assert ("", "held by other jobs", 120.0) in [(*each.values(),) for each in list_parts(report)]


def test_a_gpu_that_another_job_gave_up_is_out_of_service_without_the_reason():
    ended = Record.of(
        RECORD.header, [*RECORD.lines, Ended(at=95.0, job="blue/b", outcome="Failed")]
    )
    assert shown(ended)[2] == [(10.0, 95.0, True), (95.0, 100.0, False)]
    reasons = [
        each.reason
        for found in list_outages(narrow_record(ended, RED_AND_NODES)).values()
        for each in found
    ]
    assert reasons == ["", "", WITHHELD]


def test_neither_the_number_of_other_jobs_nor_their_changes_can_be_counted():
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
        assert narrow_record(record, RED_AND_NODES) == narrow_record(RECORD, RED_AND_NODES)


def job_with(namespace, name, gpus=(), **status):
    allocation = {"gpuType": "T4", "nodes": [{"name": NODE, "gpuIds": list(gpus)}]}
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {},
        "status": {"phase": "Running", **({"allocation": allocation} if gpus else {}), **status},
    }


def node_of(*, cordoned):
    labels = {"dljob.io/pool": "", "dljob.io/gpu-count": "3", "dljob.io/gpu-type": "T4"}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": NODE, "labels": labels},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {"conditions": ready},
    }


JOBS = [
    job_with("red", "a", [0], phase="Adjusting", cause={"job": "blue/c"}),
    job_with("blue", "b", [1]),
    job_with("blue", "c", phase="Pending", queue={"ahead": 0}),
    job_with("red", "d", phase="Pending", queue={"ahead": 1}),
]


def nodes_of(jobs, *, cordoned, out):
    return list_gpus(
        [node_of(cordoned=cordoned)],
        find_holdings(jobs, ""),
        pool=Pool(),
        told={NODE: {"out": {"0": "blue/b was here", **out}, "uuids": {"0": "GPU-x"}}},
        sees_all_jobs=True,
    )


@pytest.mark.parametrize("cordoned", [False, True])
@pytest.mark.parametrize("out", [{}, {"1": "blue/b does not release it"}])
def test_a_gpu_of_another_job_is_held_whatever_that_job_is_and_the_gpu(cordoned, out):
    [node] = nodes_of(JOBS, cordoned=cordoned, out=out)
    [narrowed] = narrow_nodes([node], RED_AND_NODES)
    mine, held, free = narrowed["gpus"]
    assert mine["job"] == "red/a"
    assert held == {"index": 1, "state": "held"}
    without = {"state": "unavailable", "reason": WITHHELD}
    assert free == {"index": 2, **(without if cordoned else {"state": "free"})}
    assert "blue" not in str(narrowed)
    [held] = narrow_nodes([node], RED)
    assert [gpu["index"] for gpu in held["gpus"]] == [0]
    assert narrow_nodes([node], ALL) == [node]


def test_other_jobs_on_the_same_gpus_look_the_same():
    decided = {"allocation": {"decidedAt": "2026-01-01T00:00:00Z", "gpuType": "T4"}}
    where = [{"name": NODE, "gpuIds": [1]}]
    others = [
        job_with("green", "x", phase="Queued", **decided | {"leftover": where}),
        job_with("blue", "y", [1], phase="Starting"),
    ]
    assert narrow_nodes(nodes_of([JOBS[0], *others], cordoned=False, out={}), RED_AND_NODES) == (
        narrow_nodes(nodes_of(JOBS, cordoned=False, out={}), RED_AND_NODES)
    )


def test_the_queue_has_visible_jobs_alone():
    [waiting] = make_queue(narrow_jobs(JOBS, RED))
    assert waiting["job"] == "red/d"
    [waiting] = make_queue(narrow_jobs(JOBS, Rights(frozenset({"blue"}), nodes=False)))
    assert (waiting["job"], waiting["makesRoom"]) == ("blue/c", [])


def test_without_the_right_to_list_nodes_sums_are_those_of_a_record_without_other_jobs():
    without = Record.of(
        RECORD.header,
        [line for line in RECORD.lines if isinstance(line, Gpu) or line.job == "red/a"],
    )
    shown, alone = (make_page_data(narrow_record(each, RED)) for each in (RECORD, without))
    assert shown.document()["sums"] == alone.document()["sums"]
    assert shown.document()["waiting"] == alone.document()["waiting"]


@pytest.mark.parametrize("rights", [RED, RED_AND_NODES])
def test_the_page_lists_visible_jobs_alone(rights):
    shown = make_page_data(narrow_record(RECORD, rights))
    assert [job["name"] for job in shown.document()["jobs"]] == ["red/a"]
    assert "blue" not in shown.sums.csv


def test_the_record_does_not_begin_with_a_hidden_job_that_waits():
    earlier: list[Line] = [
        Gpu(at=3.0, node=NODE, gpu=1),
        Submitted(at=3.0, job="blue/first"),
        Submitted(at=5.0, job="red/a"),
    ]
    record = Record.of(replace(RECORD.header, missing=()), earlier)
    assert narrow_record(record, RED_AND_NODES).begin == 5.0
    nothing = narrow_record(record, Rights(frozenset(), nodes=True))
    page = make_page_data(nothing).document()
    assert (page["length"], len(page["nodes"][0]["lanes"])) == (0.0, 1)

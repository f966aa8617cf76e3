"""A record narrowed to the rights of a user: no line and no GPU time of other jobs, and no GPU that looks idle."""

from dataclasses import replace

import pytest

from dlclient.cluster.reading.gpus import HIDDEN, UNKNOWN, find_holdings, list_gpus
from dlcore.model import NodeName, Placement
from dlcore.recording.record import (
    Decided,
    Ended,
    Given,
    Gpu,
    Header,
    Line,
    Record,
    Source,
    Submitted,
)
from dlcore.recording.report import By, make_report
from dlcore.recording.sums import sum_gpu_seconds
from dlcore.recording.usage import read_timelines, sum_usage
from dloperator.nodes.nodes import Pool
from dlportal.narrowing import PARTLY, narrow_jobs, narrow_nodes, narrow_record
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


@pytest.mark.parametrize("rights", [RED, RED_AND_NODES])
def test_there_is_no_word_of_other_jobs(rights):
    narrowed = narrow_record(RECORD, rights)
    assert "blue" not in str(narrowed)
    assert sum_gpu_seconds(narrowed) == {"red/a": 30.0 + 40.0}
    assert narrowed.header.missing == ("phases are not known", PARTLY)


def test_gpus_are_in_service_while_a_visible_job_has_them():
    narrowed = narrow_record(RECORD, RED_AND_NODES)
    timelines = read_timelines(narrowed)
    assert {ref.number for ref in timelines.gpus} == {0, 1, 2}
    report = make_report(narrowed, By.NAMESPACE, usage=sum_usage(narrowed, timelines))
    assert report.idle == report.idle_while_waiting == 0.0
    assert report.out_of_service == 3 * 100.0 - 70.0


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


@pytest.mark.parametrize("cordoned", [False, True])
@pytest.mark.parametrize("out", [{}, {"1": "blue/b does not release it"}])
def test_a_free_gpu_looks_as_one_that_a_hidden_job_has(cordoned, out):
    [node] = list_gpus(
        [node_of(cordoned=cordoned)],
        find_holdings(JOBS, ""),
        pool=Pool(),
        told={NODE: {"out": {"0": "blue/b was here", **out}, "uuids": {"0": "GPU-x"}}},
        sees_all_jobs=True,
    )
    [narrowed] = narrow_nodes([node], RED_AND_NODES)
    mine, *others = narrowed["gpus"]
    assert [{**gpu, "index": 0} for gpu in others] == [
        {"index": 0, "state": UNKNOWN, "reason": HIDDEN}
    ] * 2
    assert mine["job"] == "red/a"
    assert "blue" not in str(narrowed)
    [held] = narrow_nodes([node], RED)
    assert [gpu["index"] for gpu in held["gpus"]] == [0]
    assert narrow_nodes([node], ALL) == [node]


def test_the_queue_has_visible_jobs_alone():
    [waiting] = make_queue(narrow_jobs(JOBS, RED))
    assert waiting["job"] == "red/d"
    [waiting] = make_queue(narrow_jobs(JOBS, Rights(frozenset({"blue"}), nodes=False)))
    assert (waiting["job"], waiting["makesRoom"]) == ("blue/c", [])


@pytest.mark.parametrize("rights", [RED, RED_AND_NODES])
def test_sums_and_counts_are_those_of_a_record_without_other_jobs(rights):
    without = Record.of(
        RECORD.header,
        [line for line in RECORD.lines if isinstance(line, Gpu) or line.job == "red/a"],
    )
    shown, alone = (make_page_data(narrow_record(each, rights)) for each in (RECORD, without))
    assert shown.document()["sums"] == alone.document()["sums"]
    assert shown.document()["waiting"] == alone.document()["waiting"]
    assert [job["name"] for job in shown.document()["jobs"]] == ["red/a"]
    assert "blue" not in shown.sums.csv


def test_the_record_does_not_begin_with_a_hidden_job():
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

"""A record narrowed to the rights of a user: no line of other jobs, which are anonymous blocks at most."""

from dataclasses import replace

import pytest

from dljob.client.cluster.reading.gpus import find_holdings, list_gpus
from dljob.core.recording.narrowing import WITHHELD
from dljob.core.recording.record import (
    Gpu,
    Line,
    Record,
    Submitted,
)
from dljob.core.recording.report import By, make_report
from dljob.core.recording.usage import read_timelines, sum_usage
from dljob.operator.nodes.nodes import Pool
from dljob_web.page_data import make_page_data
from dljob_web.portal.narrowing import PARTLY, THEIRS, narrow_jobs, narrow_nodes, narrow_record
from dljob_web.portal.rights import Rights
from dljob_web.queue_data import make_queue
from tests.builders import sum_gpu_seconds
from tests.core.test_record_narrowed import NODE, RECORD

ALL = Rights(None, nodes=True)
RED = Rights(frozenset({"red"}), nodes=False)
RED_AND_NODES = Rights(frozenset({"red"}), nodes=True)


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
        known={NODE: {"out": {"0": "blue/b was here", **out}, "uuids": {"0": "GPU-x"}}},
        sees_all_jobs=True,
    )


@pytest.mark.parametrize("cordoned", [False, True])
@pytest.mark.parametrize("out", [{}, {"1": "blue/b does not release it"}])
def test_a_gpu_of_another_job_is_held_also_where_it_is_out_of_service(cordoned, out):
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

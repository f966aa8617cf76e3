"""The history in a job's status: recent decisions with their costs."""

from dataclasses import replace
from typing import Any

from dljob.control.situation.status import Condition, ConditionType, Status
from dljob.control.situation.status_schema import KEPT_HISTORY
from dljob.core.model import Cause, CauseCode, JobId, NodeName, Phase, Placement
from dljob.operator.jobs.entries import status_document
from dljob.operator.jobs.history import MOST_SLICES
from tests.builders import make_placement


def written(status, before=None):
    return status_document(status, epoch=1, generation=1, before=before)


def waiting(code, message="waits", since=5.0):
    condition = Condition(
        ConditionType.SCHEDULED, status=False, reason="X", message="", since=since
    )
    return Status(
        phase=Phase.QUEUED,
        cause=Cause(code, JobId("ns/other")),
        message=message,
        conditions=(condition,),
    )


def kinds(document):
    return [entry["kind"] for entry in document.get("history", ())]


def test_start_has_its_gpus_and_cause():
    one = Status().decided(
        make_placement(n1=(0, 1)), now=10.0, cause=Cause(CauseCode.IDLE_GPUS, None)
    )
    assert written(one)["history"] == [
        {
            "at": "1970-01-01T00:00:10.000Z",
            "kind": "start",
            "generation": 1,
            "cause": CauseCode.IDLE_GPUS.value,
            "gpusBefore": 0,
            "gpus": 2,
            "nodes": [{"name": "n1", "gpuIds": [0, 1]}],
        }
    ]


def test_each_change_has_its_kind():
    status = Status()
    document: dict[str, Any] = {}
    for now, placement in enumerate(
        (
            make_placement(n1=(0,)),
            make_placement(n1=(0,)),
            make_placement(n1=(0, 1)),
            make_placement(n2=(0,)),
            None,
        ),
        1,
    ):
        status = status.decided(placement, now=float(now))
        document = written(status, document)
    assert kinds(document) == ["start", "restart", "reshape", "move", "stop"]
    assert [entry["gpusBefore"] for entry in document["history"]] == [0, 1, 1, 2, 1]
    move = document["history"][3]
    assert move["nodesBefore"] == [{"name": "n1", "gpuIds": [0, 1]}]
    assert move["nodes"] == [{"name": "n2", "gpuIds": [0]}]


def test_all_costs_of_a_change_are_added():
    status = Status().decided(make_placement(n1=(0,)), now=1.0)
    document = written(status)
    for again in (0.0, 20.0):
        status = replace(status, reshape_seconds=1.25, lost_seconds=again)
        document = written(status, document)
    assert document["history"][-1]["costSeconds"] == 21.25
    # A cost that is known with the next decision belongs to the one before.
    last = written(replace(status, lost_seconds=21.0).decided(None, now=2.0), document)
    assert [entry.get("costSeconds") for entry in last["history"]] == [22.25, None]


def test_change_is_live_or_restarted():
    status = Status().decided(make_placement(n1=(0,)), now=1.0)
    document = written(status)
    for at, (paused, live) in enumerate(((5.0, 0), (5.04, 1)), 2):
        status = status.decided(make_placement(n1=range(at)), now=float(at))
        document = written(status, document)
        status = replace(status, reshape_seconds=paused, live_changes=live)
        document = written(status, document)
    history = document["history"]
    assert [each.get("how") for each in history] == [None, "restarted", "live"]
    assert [each.get("costSeconds") for each in history] == [None, 5.0, 0.04]


def test_changed_reason_of_a_wait_replaces_the_entry():
    document = written(waiting(CauseCode.NO_ROOM, "first"))
    document = written(waiting(CauseCode.TOO_LARGE, "then", since=9.0), document)
    again = written(waiting(CauseCode.TOO_LARGE, "then", since=9.0), document)
    assert again == {**document, "revision": document["revision"] + 1}
    [entry] = document["history"]
    assert (entry["at"], entry["message"]) == ("1970-01-01T00:00:05.000Z", "then")


def test_end_is_recorded_once():
    over = Status(phase=Phase.FAILED, finished_at=7.0, message="rank 0 exited with status 7")
    document = written(over)
    assert kinds(document) == ["failed"]
    assert kinds(written(over, document)) == ["failed"]


def test_only_the_latest_entries_are_kept_and_none_is_large():
    status = Status()
    document: dict[str, Any] = {}
    for now in range(1, 3 * KEPT_HISTORY):
        many = {NodeName(f"n{n}"): (0,) for n in range(1 + now % (MOST_SLICES + 4))}
        status = status.decided(Placement.of(many), now=float(now))
        document = written(status, document)
    entries = document["history"]
    assert len(entries) == KEPT_HISTORY
    assert entries[-1]["generation"] == 3 * KEPT_HISTORY - 1
    assert all(len(entry.get("nodes", ())) <= MOST_SLICES for entry in entries)

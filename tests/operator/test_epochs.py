"""Values that another program writes into a job's status end neither the operator nor a training."""

from typing import Any

import pytest

from dljob.control.situation.ports import MOST_JUMP
from dljob.operator.jobs.epochs import NOT_CONFIRMED, NOT_OURS
from tests.operator.stages import LEADS, Stage
from tests.servers.api import Json
from tests.servers.processes import Server

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


ONE = {"gpus": {"options": [1]}}
LONG = 10**6
HIGHEST = 2**53 - 1
"""The highest epoch that the definition allows."""


NODES = {"gpu-a": 2}


def claim(stage: Stage, name: str, epoch: int, **status: Any) -> None:
    """Write an epoch into a job, as any program may that can write statuses."""
    claimed = {"epoch": epoch, "message": "mine", **status}
    stage.api.merge(f"{stage.path(name)}/status", {"status": claimed})


def wait_for_epoch(stage: Stage, name: str, epoch: int) -> None:
    """Wait until a leader has written this epoch over the foreign message."""
    stage.wait(lambda: stage.status(name)["epoch"] == epoch)


def is_unharmed(operator: Server) -> bool:
    return operator.is_running and operator.log.read_text().count(LEADS) == 1


def test_unconfirmed_epochs_end_no_operator(stage: Stage):
    operator = stage.start_operator()
    for name in ("first", "second"):
        stage.submit(name, iterations=LONG, **ONE)
    for name in ("first", "second"):
        stage.wait_for_phase(name, "Running")
    pids = stage.kubelets.pids()

    # With a leader: one step higher, like the next leader, and as high as possible.
    for epoch in (2, HIGHEST):
        claim(stage, "first", epoch)
        wait_for_epoch(stage, "first", 1)
    stage.wait(lambda: [reason for reason, _ in stage.events("first") if reason == NOT_CONFIRMED])
    assert stage.status("first").get("message") != "mine"
    assert is_unharmed(operator), operator.last_words()

    # Without a leader: the next one begins above the plausible epoch and ignores the other one.
    operator.stop()
    claim(stage, "first", HIGHEST)
    claim(stage, "second", MOST_JUMP)
    successor = stage.start_operator()
    for name in ("first", "second"):
        wait_for_epoch(stage, name, MOST_JUMP + 1)
        stage.wait_for_phase(name, "Running")
    assert stage.kubelets.pids() == pids, "trainings go on"

    # A foreign decision may have been commanded, so the same operator reads everything again.
    decided = stage.status("first")["allocation"]["generation"] + 5
    claim(stage, "first", HIGHEST, allocation={"generation": decided})
    wait_for_epoch(stage, "first", MOST_JUMP + 2)
    stage.wait_for_phase("first", "Running")
    assert is_unharmed(successor), successor.last_words()


def test_foreign_status_writes_restart_no_training(stage: Stage):
    operator = stage.start_operator(settings={"pace.periodSeconds": 2})
    stage.submit("first", iterations=LONG, **ONE)
    status = stage.wait_for_phase("first", "Running")
    [pod] = stage.pods_of("first")
    trainings = stage.kubelets.trainings(pod["metadata"]["name"])
    epoch, allocation = status["epoch"], status["allocation"]
    forgeries: list[Json] = [
        {"allocation": {"generation": allocation["generation"] + 5}},
        {"allocation": {"generation": HIGHEST}, "podsBooked": status["podsBooked"] + 1},
        {"epoch": 0, "phase": "Failed", "allocation": None},
        {"phase": "Completed", "pods": None},
    ]
    for forged in forgeries:
        claim(stage, "first", **{"epoch": epoch, **forged})
        stage.wait(lambda: stage.status("first").get("message") != "mine")
        status = stage.wait_for_phase("first", "Running")
        assert (status["epoch"], status["allocation"]) == (epoch, allocation)
    told = [reason for reason, _ in stage.events("first") if reason == NOT_OURS]
    assert len(told) == 1
    before = status["progress"]["iteration"]
    stage.wait(lambda: stage.status("first")["progress"]["iteration"] > before)
    assert (status.get("restarts", 0), status.get("failures", 0)) == (0, 0)
    assert stage.kubelets.trainings(pod["metadata"]["name"]) == trainings
    assert is_unharmed(operator), operator.last_words()

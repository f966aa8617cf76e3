"""
Queues of a real Kueue that stop, go and come back while jobs run, and a Kueue that restarts while it takes GPUs back.

Nothing that runs is lost, a job that waits says why, and all goes on when the queue or Kueue is back.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dljob.client.cluster.reading.wording import sentence
from tests.operator.live_members import make_job
from tests.operator.queues import (
    CLASS_LABEL,
    QUEUE_LABEL,
    A,
    B,
    add_priority_class,
    admitted,
    gpus,
    is_true,
    iteration,
    kueue_of_teams,
    make_cluster_queue,
    make_local_queue,
    stage_of_teams,
    start_operator,
    stop_queue,
    submit,
    submit_other,
    workloads,
)
from tests.operator.stages import Stage
from tests.servers.api import Refused
from tests.servers.queueing import KUEUE_API, Kueue

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


@pytest.fixture(scope="module")
def kueue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    # The operator uses the gate only if it is told to.
    folder, gates = tmp_path_factory.mktemp("kueue"), ("PriorityBoost=true",)
    with kueue_of_teams(folder, gates=gates) as kueue:
        yield kueue


@pytest.fixture
def stage(kueue: Kueue, tmp_path: Path) -> Iterator[Stage]:
    with stage_of_teams(kueue, tmp_path) as stage:
        yield stage


def start_with_a_job(stage: Stage) -> None:
    """Let a job of team a train on two GPUs."""
    start_operator(stage)
    submit(stage, "old", A, gpus={"options": [1, 2]})
    stage.wait(lambda: gpus(stage, "old") == 2 and iteration(stage, "old") > 50)


def wait_for_refusal(stage: Stage, queue: str) -> None:
    """Submit another job of team a, and wait until it says which queue lets it wait; the first one trains on meanwhile."""
    before = iteration(stage, "old")
    submit(stage, "new", A, gpus={"options": [1]})
    # Kueue has several words for it: inactive, stopped, terminating or missing.
    why = f"waits: Kueue has admitted none of 1 GPU in queue team-a yet: {queue} team-a "
    stage.wait(lambda: sentence(stage.job("new"), time.time()).startswith(why))
    stage.wait(lambda: iteration(stage, "old") > before + 20)
    assert (gpus(stage, "old"), stage.counts("old")) == (2, (0, 0))
    assert admitted(stage) == {"old-0-1", "old-1-2"}


def test_held_queue_admits_no_more_and_leaves_the_rest(stage: Stage):
    start_with_a_job(stage)
    stop_queue(stage, A, "Hold")
    wait_for_refusal(stage, "ClusterQueue")
    stop_queue(stage, A, "None")
    stage.wait(lambda: gpus(stage, "new") == 1)
    assert gpus(stage, "old") == 2


def test_deleted_cluster_queue_ends_with_its_last_job(stage: Stage):
    start_with_a_job(stage)
    path = f"{KUEUE_API}/clusterqueues/{A}"
    stage.api.delete(path)
    wait_for_refusal(stage, "ClusterQueue")
    stage.api.delete(stage.path("old"))
    stage.wait(lambda: is_gone(stage, path))
    make_cluster_queue(stage.api, A)
    stage.wait(lambda: gpus(stage, "new") == 1)


def test_job_goes_on_without_its_local_queue(stage: Stage):
    start_with_a_job(stage)
    path = f"{KUEUE_API}/namespaces/{stage.namespace}/localqueues/{A}"
    stage.api.delete(path)
    stage.wait(lambda: is_gone(stage, path))
    wait_for_refusal(stage, "LocalQueue")
    make_local_queue(stage.api, A, stage.namespace)
    stage.wait(lambda: gpus(stage, "new") == 1)
    assert gpus(stage, "old") == 2


@pytest.mark.parametrize("first", ["operator", "Kueue"])
def test_eviction_outlives_both_controllers(kueue: Kueue, stage: Stage, first: str):
    operator = start_operator(stage)
    submit(stage, "wide", A)
    stage.wait(lambda: gpus(stage, "wide") == 4 and iteration(stage, "wide") > 50)
    operator.kill()
    stage.let_lease_end()
    submit_other(stage, B, 2)
    stage.wait(lambda: is_true(workloads(stage)["wide-2-4"], "Evicted"))
    kueue.server.kill()
    if first == "operator":
        start_operator(stage)
        # Its own quota is gone, whether or not Kueue is there to learn that it is free.
        stage.wait(lambda: gpus(stage, "wide") == 2)
        kueue.server.start()
    else:
        kueue.server.start()
        assert "other" not in admitted(stage)
        start_operator(stage)
    stage.wait(lambda: "other" in admitted(stage) and gpus(stage, "wide") == 2)
    assert stage.counts("wide") == (0, 0)
    stage.api.delete(f"{KUEUE_API}/namespaces/{stage.namespace}/workloads/other")
    stage.wait(lambda: gpus(stage, "wide") == 4)


def test_job_of_a_high_class_takes_the_least_of_others(stage: Stage):
    start_operator(stage)
    for name in ("one", "two"):
        submit(stage, name, A, gpus={"options": [2]})
    stage.wait(lambda: gpus(stage, "one") == 2 and gpus(stage, "two") == 2)
    submit(stage, "urgent", A, gpus={"options": [2]}, labels={CLASS_LABEL: "high"})
    said = 'queue team-a yet: workloadpriorityclasses.kueue.x-k8s.io "high" not found'
    stage.wait(lambda: said in sentence(stage.job("urgent"), time.time()))
    add_priority_class(stage.api, "high", 1000)
    stage.wait(lambda: gpus(stage, "urgent") == 2)
    # Kueue takes the later one, or any if both have their quota since the same second.
    assert sorted(gpus(stage, name) for name in ("one", "two")) == [0, 2]
    assert stage.counts("one") == stage.counts("two") == (0, 0)
    shown = workloads(stage)["urgent-0-2"]["spec"]
    assert (shown["priority"], shown["priorityClassRef"]["name"]) == (1000, "high")


def test_kueue_spares_the_job_that_would_lose_its_work(stage: Stage):
    start_operator(stage, **{"kueue.mostBoost": 100})
    submit(stage, "saves", A, gpus={"options": [2]})
    stage.wait(lambda: gpus(stage, "saves") == 2)
    submit(stage, "loses", A, gpus={"options": [2]}, checkpoint={})
    stage.wait(lambda: boost_of(stage, "loses-0-2") >= 4)
    assert boost_of(stage, "saves-0-2") == 0
    add_priority_class(stage.api, "urgent", 1000)
    submit(stage, "urgent", A, gpus={"options": [2]}, labels={CLASS_LABEL: "urgent"})
    stage.wait(lambda: gpus(stage, "urgent") == 2)
    # Without the boost the latest one goes.
    assert (gpus(stage, "saves"), gpus(stage, "loses")) == (0, 2)


def boost_of(stage: Stage, workload: str) -> int:
    found = workloads(stage).get(workload, {})
    annotations = found.get("metadata", {}).get("annotations", {})
    return int(annotations.get("kueue.x-k8s.io/priority-boost", "0"))


def test_job_without_a_checkpoint_shrinks_live(stage: Stage):
    start_operator(stage)
    job = make_job("lives", stage.folder / "lives", options=(1, 2, 4))
    job["metadata"]["labels"] = {QUEUE_LABEL: A}
    job["spec"]["gpus"]["requested"] = 1
    stage.api.post(stage.path(), job)
    # Before the trial it has one layer, and steps only after it.
    stage.wait(lambda: gpus(stage, "lives") == 4)
    assert admitted(stage) == {"lives-0-1", "lives-1-2", "lives-2-4"}
    submit(stage, "new", B, gpus={"options": [2]})
    stage.wait(lambda: gpus(stage, "new") == 2 and gpus(stage, "lives") == 2)
    status = stage.status("lives")
    assert (status["live"]["changes"], stage.counts("lives")) == (status["reshapes"], (0, 0))


def is_gone(stage: Stage, path: str) -> bool:
    try:
        stage.api.get(path)
    except Refused as refused:
        return refused.code == 404
    return False

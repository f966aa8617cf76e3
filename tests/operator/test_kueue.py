"""
Jobs in the queues of a real Kueue: borrowed GPUs come back by shrinking, and no layer stays behind.

Two teams have a queue each in one cohort. Real trainings run below real SideCars.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from dljob.client.cluster.reading.wording import sentence
from dljob.kube import names
from tests.chaos.testimony import read_all
from tests.chaos.worlds import job_document
from tests.operator.queues import (
    QUEUE_LABEL,
    A,
    B,
    admitted,
    gpus,
    is_true,
    iteration,
    kueue_of_teams,
    lost,
    quota_of,
    stage_of_teams,
    start_operator,
    stop_queue,
    submit,
    submit_other,
    workloads,
)
from tests.operator.stages import Stage
from tests.operator.test_live_changes import steps_of, trains_on
from tests.operator.test_live_changes import submit as submit_live
from tests.servers.api import Json
from tests.servers.queueing import KUEUE_API, Kueue

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

TAKEN = "Kueue takes layer 2-4 back for team-b, which is owed 2, and leaves 2 GPUs in queue team-a"
READY_SECONDS = 90
"""Kueue evicts a Workload if no program reports for this long that its pods are ready."""


@pytest.fixture(scope="module")
def kueue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    settings = {"waitForPodsReady": {"timeout": f"{READY_SECONDS}s"}}
    with kueue_of_teams(tmp_path_factory.mktemp("kueue"), settings=settings) as kueue:
        yield kueue


@pytest.fixture
def stage(kueue: Kueue, tmp_path: Path) -> Iterator[Stage]:
    with stage_of_teams(kueue, tmp_path) as stage:
        yield stage


def submit_witness(
    stage: Stage, name: str, team: str, *, iterations: int, options: Sequence[int]
) -> None:
    """Submit a training that keeps a journal, and stands still from its checkpoint to its end."""
    document = job_document(
        name,
        stage.folder,
        iterations=iterations,
        ends_when_saved=False,
        is_forgotten=False,
        options=options,
    )
    document["metadata"]["labels"] = {QUEUE_LABEL: team}
    document["spec"]["template"]["spec"]["containers"][0]["image"] = "training"
    stage.api.post(stage.path(), document)


def test_borrowed_gpus_come_back_by_shrinking(stage: Stage):
    start_operator(stage)
    witness = stage.folder / "witness"
    witness.mkdir()
    submit_witness(stage, "wide", A, iterations=10**6, options=[1, 2, 4])
    stage.wait(lambda: gpus(stage, "wide") == 4)
    assert admitted(stage) == {"wide-0-1", "wide-1-2", "wide-2-4"}
    stage.wait(lambda: iteration(stage, "wide") > 50)

    submit_witness(stage, "new", B, iterations=200, options=[2])
    stage.wait(lambda: gpus(stage, "new") == 2 and gpus(stage, "wide") == 2)
    assert admitted(stage) == {"wide-0-1", "wide-1-2", "new-0-2"}
    taken = workloads(stage)["wide-2-4"]
    assert not any(is_true(taken, kind) for kind in ("QuotaReserved", "PodsReady")), taken
    assert stage.counts("wide") == (0, 0)
    said = [message for _, message in stage.events("wide")]
    assert any(TAKEN in s for s in said), said

    stage.wait_for_phase("new", "Completed")
    stage.wait(lambda: gpus(stage, "wide") == 4)
    assert set(workloads(stage)) == {"wide-0-1", "wide-1-2", "wide-2-4"}
    stage.wait(lambda: is_true(workloads(stage)["wide-2-4"], "PodsReady"))
    back = workloads(stage)["wide-2-4"]["status"]["conditions"]
    assert back[0]["type"] == "QuotaReserved", "KueueViz shows the first one as the status"
    [queued] = [each["message"] for each in back if each["type"] == "Requeued"]
    assert "preemptor path: /org/team-b" in queued
    told = "Kueue admits 4 of 4 GPUs in queue team-a (flavor a100, 2 borrowed)"
    stage.wait(lambda: stage.condition("wide", "QuotaReserved")["message"] == told)

    lives = [life for life in read_all(witness) if life.job == "wide"]
    # It may have begun on fewer, before Kueue had admitted all layers.
    assert [len(life.gpus) for life in lives][-3:] == [4, 2, 4]
    assert all(after.resumed_at == before.reached for before, after in pairwise(lives)), lives
    assert (lost(stage, "wide"), stage.counts("wide")) == (0, (0, 0))
    stage.api.delete(stage.path("wide"))
    stage.wait(lambda: workloads(stage) == {})


def test_live_job_gives_borrowed_gpus_back_without_a_restart(stage: Stage):
    start_operator(stage)
    changes: dict[str, Json] = {
        "metadata": {"labels": {QUEUE_LABEL: A}},
        # It never saves: after a restart its journal would begin again.
        "spec": {"checkpoint": {"signal": "SIGTERM", "confirm": "exit", "trusted": True}},
    }
    submit_live(stage, "lives", changes)
    assert admitted(stage) == {"lives-0-2", "lives-2-4"}

    submit(stage, "new", B, iterations=400, gpus={"options": [2]})
    stage.wait(lambda: gpus(stage, "new") == 2 and trains_on(stage, "lives", 2))
    assert admitted(stage) == {"lives-0-2", "new-0-2"}
    stage.wait_for_phase("new", "Completed")
    stage.wait(lambda: trains_on(stage, "lives", 4))
    status, steps = stage.status("lives"), steps_of(stage, "lives")
    assert [step for step, _ in steps] == [*range(1, len(steps) + 1)], "none is lost or repeated"
    assert [ranks for ranks, _ in groupby(steps, lambda step: step[1])] == [4, 2, 4]
    assert (status["live"]["changes"], stage.counts("lives")) == (2, (0, 0)), status


def test_layers_are_as_readable_in_kueue_as_in_dljob(kueue: Kueue, stage: Stage):
    start_operator(stage)
    submit(stage, "wide", A)
    stage.wait(lambda: gpus(stage, "wide") == 4)
    kubectl = kueue.plane.kubectl.in_namespace(stage.namespace)
    labels = f"{names.JOB_LABEL},{names.LAYER_LABEL}"
    rows = [line.split() for line in kubectl("get", "workloads", "-L", labels).splitlines()]
    assert [(*row[:4], *row[-2:]) for row in rows] == [
        ("NAME", "QUEUE", "RESERVED", "IN", "JOB", "LAYER"),
        *((f"wide-{layer}", A, A, "True", "wide", layer) for layer in ("0-1", "1-2", "2-4")),
    ]
    [owner] = workloads(stage)["wide-2-4"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("DLJob", "wide")
    told = "Kueue admits 4 of 4 GPUs in queue team-a (flavor a100, 2 borrowed)"
    stage.wait(lambda: told in sentence(stage.job("wide"), time.time()))


def test_stopped_queue_suspends_its_jobs_with_their_checkpoints(stage: Stage):
    start_operator(stage)
    submit(stage, "net", A)
    stage.wait(lambda: gpus(stage, "net") == 4 and iteration(stage, "net") > 50)
    stop_queue(stage, A, "HoldAndDrain")
    stage.wait(lambda: not any(is_true(each, "QuotaReserved") for each in layers(stage, "net")))
    status = stage.status("net")
    assert (status["phase"], status.get("allocation", {}).get("gpus", 0)) == ("Queued", 0)
    assert stage.condition("net", "Scheduled")["reason"] == "QueueQuota"
    assert set(workloads(stage)) == {"net-0-1"}, "the steps are given back"
    saved = iteration(stage, "net")
    stop_queue(stage, A, "None")
    stage.wait(lambda: gpus(stage, "net") == 4)
    assert iteration(stage, "net") >= saved
    assert lost(stage, "net") <= 5


def test_eviction_while_the_operator_is_away_is_made_up_for(stage: Stage):
    operator = start_operator(stage)
    submit(stage, "wide", A)
    stage.wait(lambda: gpus(stage, "wide") == 4 and iteration(stage, "wide") > 50)
    operator.kill()
    stage.let_lease_end()
    # A Workload of another kind takes the quota that team b is owed.
    submit_other(stage, B, 2)
    stage.wait(lambda: is_true(workloads(stage)["wide-2-4"], "Evicted"))
    before = iteration(stage, "wide")
    assert "other" not in admitted(stage), "no one has proven that the GPUs are released"
    start_operator(stage)
    stage.wait(lambda: "other" in admitted(stage))
    stage.wait(lambda: gpus(stage, "wide") == 2 and iteration(stage, "wide") > before)
    assert stage.counts("wide") == (0, 0)


def test_kueue_may_be_away_and_come_back(kueue: Kueue, stage: Stage):
    start_operator(stage)
    submit(stage, "old", A)
    stage.wait(lambda: gpus(stage, "old") == 4)
    kueue.server.kill()
    stage.api.delete(stage.path("old"))
    stage.wait(lambda: stage.is_gone("old"))
    kueue.server.start()
    submit(stage, "new", B, gpus={"options": [1]})
    stage.wait(lambda: gpus(stage, "new") == 1)
    assert set(workloads(stage)) == {"new-0-1"}


def test_waiting_job_says_which_queue_it_waits_for(stage: Stage):
    start_operator(stage)
    submit(stage, "first", B, gpus={"options": [2]})
    submit(stage, "second", A, gpus={"options": [2]})
    stage.wait(lambda: gpus(stage, "first") == 2 and gpus(stage, "second") == 2)
    submit(stage, "third", B, gpus={"options": [1]})
    stage.wait(lambda: stage.condition("third", "Scheduled").get("reason") == "QueueQuota")
    told = (
        "waits: Kueue has admitted none of 1 GPU in queue team-b yet: couldn't assign flavors to pod set gpus:"
        " insufficient unused quota for nvidia.com/gpu in flavor a100"
    )
    stage.wait(lambda: sentence(stage.job("third"), time.time()).startswith(told))


def test_quota_that_is_not_used_is_given_back(stage: Stage):
    # Kueue believes in more GPUs than there are.
    quota = {"spec": {"resourceGroups": [quota_of(8)]}}
    stage.api.merge(f"{KUEUE_API}/clusterqueues/{A}", quota)
    start_operator(stage, **{"kueue.idleSeconds": 5})
    submit(stage, "one", A, gpus={"options": [2]})
    submit(stage, "other", A)
    stage.wait(lambda: gpus(stage, "one") == 2 and gpus(stage, "other") == 2)
    stage.wait(lambda: admitted(stage) == {"one-0-2", "other-0-1", "other-1-2"})
    # When the other GPUs are free, it asks again.
    stage.api.delete(stage.path("one"))
    stage.wait(lambda: gpus(stage, "other") == 4)


def test_job_that_starts_nowhere_gives_its_quota_back(stage: Stage):
    start_operator(stage, **{"kueue.idleSeconds": 5})
    submit(stage, "wide", A)
    stage.wait(lambda: gpus(stage, "wide") == 4)
    # The flavor names no type of GPUs, so Kueue does not know that no node has this one.
    submit(stage, "new", B, gpus={"options": [2], "types": ["h100"]})
    stage.wait(lambda: "new-0-2" in admitted(stage))
    stage.wait(lambda: gpus(stage, "wide") == 4 and not layers(stage, "new"))
    told = stage.condition("new", "QuotaReserved")["message"]
    assert told.startswith("queue team-b has the quota back, on which the job did not start: "), (
        told
    )
    assert "h100" in told


def test_job_that_kueue_refuses_keeps_no_other_from_growing(stage: Stage):
    start_operator(stage)
    stop_queue(stage, B, "Hold")
    # The policy would rather start it on the GPUs that are left than let another grow.
    submit(stage, "held", B, gpus={"options": [3]}, iterations=100)
    stage.wait(lambda: "team-b" in stage.condition("held", "QuotaReserved").get("message", ""))
    submit(stage, "wide", A)
    stage.wait(lambda: gpus(stage, "wide") == 4)
    assert gpus(stage, "held") == 0


def test_label_of_a_running_operator_without_the_setting_has_no_effect(stage: Stage):
    stage.start_operator()
    submit(stage, "net", A)
    stage.wait(lambda: gpus(stage, "net") == 4)
    assert workloads(stage) == {}


def layers(stage: Stage, job: str) -> list[Json]:
    found = workloads(stage).values()
    return [
        each for each in found if each["metadata"].get("labels", {}).get(names.JOB_LABEL) == job
    ]

"""Jobs from ``kubectl apply`` to their end: a real control plane, real SideCars and trainings."""

import pytest

from tests.operator.stages import Stage, staged

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


@pytest.fixture
def stage(control_plane, namespace, tmp_path):
    with staged(control_plane, namespace, tmp_path, {"gpu-a": 4}) as stage:
        yield stage


def test_a_job_trains_to_its_end_and_stays_to_be_looked_at(stage: Stage):
    stage.start_operator()
    stage.submit("first")
    status = stage.wait_for_phase("first", "Completed")
    assert (status["exitCode"], status["shown"]["progress"]) == (0, "100%")

    def is_let_go() -> bool:
        (pod,) = stage.pods()
        return pod["status"]["phase"] == "Succeeded" and "finalizers" not in pod["metadata"]

    stage.wait(is_let_go)


def test_running_jobs_give_up_gpus_to_one_that_comes_and_get_them_back(stage: Stage):
    stage.start_operator()
    stage.submit("old", iterations=4000)
    stage.wait(lambda: stage.status("old").get("allocation", {}).get("gpus") == 4)
    pids = stage.kubelets.pids()
    stage.submit("new")
    stage.wait_for_phase("new", "Completed")
    stage.wait_for_phase("old", "Completed")
    old = stage.status("old")
    assert old["reshapes"] >= 2
    assert set(pids) == {"old-1"}, "its pod was never made anew"
    told = [message for _, message in stage.events("old")]
    assert any("from 4 to" in message and "new" in message for message in told), told


def test_a_deleted_job_is_gone_when_its_training_has_ended(stage: Stage):
    stage.start_operator()
    stage.submit("unwanted", iterations=10**6)
    stage.wait_for_phase("unwanted", "Running")
    stage.api.delete(stage.path("unwanted"))
    stage.wait(lambda: stage.is_gone("unwanted"))
    assert stage.kubelets.pids() == {}
    stage.wait(lambda: stage.pods() == [])

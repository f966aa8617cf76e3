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
    assert status["progress"]["iteration"] == 400
    (pod,) = stage.pods()
    assert pod["status"]["phase"] == "Succeeded"
    assert "finalizers" not in pod["metadata"]

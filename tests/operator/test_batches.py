"""An elastic batch on Kubernetes: what ``ones`` decides is told to processes in pods."""

import pytest

from tests.operator.stages import staged

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


def test_a_job_that_grows_is_told_its_larger_batch(control_plane, namespace, tmp_path):
    with staged(control_plane, namespace, tmp_path, {"gpu-a": 2}) as stage:
        stage.start_operator(settings={"policy": "ones"})
        own = stage.make_job("own", iterations=1)["spec"]["training"]["batchSize"]
        stage.submit(
            "grows",
            iterations=10**6,
            gpus={"options": [1, 2], "requested": 1},
            training={"epochs": 10**5, "iterationsPerEpoch": 20, "batchSize": own},
            batch={"elastic": True, "max": 2 * own},
        )

        def told() -> set[str]:
            (pod,) = (each["metadata"]["name"] for each in stage.pods_of("grows"))
            try:
                return stage.kubelets.told(pod, "DLJOB_BATCH_SIZE")
            except OSError:
                return set()  # A process has ended while it was looked at.

        stage.wait_for_phase("grows", "Running")
        stage.wait(lambda: str(own) in told())
        stage.wait(lambda: str(2 * own) in told())
        assert stage.status("grows")["allocation"]["batchSize"] == 2 * own

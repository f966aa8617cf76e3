"""
An elastic batch on Kubernetes: processes in pods receive the batch size that ``ones`` decides.
"""

import pytest

from tests.operator.stages import staged

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


def test_a_job_that_grows_is_told_its_larger_batch(control_plane, namespace, tmp_path):
    with staged(control_plane, namespace, tmp_path, {"gpu-a": 1}) as stage:
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
            return stage.kubelets.told(pod, "DLJOB_BATCH_SIZE")

        stage.wait_for_phase("grows", "Running")
        stage.wait(lambda: str(own) in told())
        # Not sooner, because it grows within a second where it can.
        more = {"metadata": {"labels": {"dljob.io/gpu-count": "2"}}}
        stage.api.merge("/api/v1/nodes/gpu-a", more)
        stage.wait(lambda: str(2 * own) in told())
        assert stage.status("grows")["allocation"]["batchSize"] == 2 * own

"""``kubectl scale`` and a HorizontalPodAutoscaler bound the number of GPUs by the scale subresource."""

from functools import partial

import pytest

from tests.operator.manifests import make_manifest, path_of
from tests.operator.stages import Stage
from tests.servers.api import Refused
from tests.servers.external_metrics import served_metric
from tests.servers.kubectl import Kubectl, KubectlFailed

pytestmark = pytest.mark.cluster

AUTOSCALERS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"


@pytest.mark.story
@pytest.mark.processes
def test_running_job_follows_kubectl_and_an_autoscaler(stage: Stage):
    kubectl = stage.plane.kubectl.in_namespace(stage.namespace)
    stage.start_operator()
    stage.submit("net", iterations=10**6, gpus={"options": [1, 2, 4], "max": 4})

    def trains_on(gpus: int) -> bool:
        status = stage.status("net")
        return (status.get("phase"), status.get("allocation", {}).get("gpus")) == ("Running", gpus)

    stage.wait(lambda: trains_on(4))
    kubectl("scale", "dljob/net", "--replicas=3")
    stage.wait(lambda: trains_on(2))
    scale = stage.api.get(f"{stage.path('net')}/scale")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 2)
    found = kubectl("get", "pods", "-o", "name", "-l", scale["status"]["selector"])
    assert found.split() == [f"pod/{pod['metadata']['name']}" for pod in stage.pods_of("net")]

    # The autoscaler of the real controller-manager.
    target = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "name": "net"}
    external = {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": "1"}}
    spec = {
        "scaleTargetRef": target,
        "minReplicas": 1,
        "maxReplicas": 4,
        "metrics": [{"type": "External", "external": external}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    }
    with served_metric(stage.plane, stage.namespace, stage.folder) as metric:
        autoscaler = {"metadata": {"name": "net"}, "spec": spec}
        stage.api.post(AUTOSCALERS.format(stage.namespace), autoscaler)
        for value, bound, gpus in ((1, 1, 1), (9, 4, 4), (3, 3, 2)):
            metric.value = value
            stage.wait(partial(trains_on, gpus))
            asked = {"options": [1, 2, 4], "max": bound, **DEFAULTS}
            assert stage.job("net")["spec"]["gpus"] == asked


DEFAULTS = {"ids": "index", "mixed": False}


def test_impossible_bound_is_refused_with_the_remedy(cluster, kubectl: Kubectl, namespace: str):
    with cluster.api() as api:
        api.post(path_of(namespace), make_manifest("net", gpus={"options": [2, 4], "max": 4}))
        api.post(path_of(namespace), make_manifest("range", gpus={"min": 2, "max": 4}))
        api.post(path_of(namespace), make_manifest("unbounded", gpus={"options": [1, 2]}))
    for name, gpus, message in (
        ("net", 0, "max is 0, and no job can run on that; give at least 1; to take all GPUs"),
        ("net", 1, "max is less than each number in options; give at least the smallest of them"),
        ("range", 1, "min is more than max; give a min that is at most max"),
    ):
        with pytest.raises(KubectlFailed) as failed:
            kubectl("scale", f"dljob/{name}", f"--replicas={gpus}")
        assert message in str(failed.value), name


def test_first_scaling_gives_options_a_bound(cluster, kubectl: Kubectl, namespace: str):
    with cluster.api() as api:
        job = path_of(namespace, "net")
        api.post(path_of(namespace), make_manifest("net", gpus={"options": [1, 2]}))
        # An autoscaler shows this in its condition AbleToScale.
        with pytest.raises(Refused, match=r'field "\.spec\.gpus\.max" does not exist'):
            api.get(f"{job}/scale")
        kubectl("scale", "dljob/net", "--replicas=1")
        assert api.get(job)["spec"]["gpus"] == {"options": [1, 2], "max": 1, **DEFAULTS}

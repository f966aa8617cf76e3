"""
Where pods have room, and what a namespace may have: with the real kube-scheduler, and others' pods.

One operator plays all stories; each leaves the two nodes, of four GPUs and 64 CPUs, as it found them.
No other test has nodes of these names, on which what it left would count.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.operator.priorities import grant
from tests.operator.stages import Stage, staged
from tests.servers.controlplane import ControlPlane
from tests.servers.namespaces import make_namespace, remove_namespace

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

Json = dict[str, Any]
ENDLESS = 10**6
HIGHEST = 10
MOST = 6
"""GPUs that the jobs of the namespace may have together."""


@pytest.fixture(scope="module")
def stage(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("placement")
    with control_plane.api() as api:
        namespace = make_namespace(api)
    with staged(control_plane, namespace, folder, {"room-a": 4, "room-b": 4}) as stage:
        stage.start_operator(
            settings={
                "limits.maxGpus": f"{namespace}={MOST}",
                "limits.maxPriority": f"*={HIGHEST}",
                "rules.unscheduledSeconds": "1",
            }
        )
        yield stage
    with control_plane.api() as api:
        remove_namespace(api, namespace)


@pytest.fixture(autouse=True)
def _leaves_nothing(stage: Stage) -> Iterator[None]:
    yield
    for job in stage.api.get(stage.path())["items"]:
        stage.api.delete(stage.path(job["metadata"]["name"]))
    for pod in stage.pods():
        if "dljob.io/job" not in pod["metadata"].get("labels", {}):
            stage.api.delete(pod_path(stage, pod["metadata"]["name"]), gracePeriodSeconds=0)
    stage.wait(lambda: not stage.api.get(stage.path())["items"] and not stage.pods())


def pod_path(stage: Stage, name: str = "") -> str:
    return f"/api/v1/namespaces/{stage.namespace}/pods" + (f"/{name}" if name else "")


def use(stage: Stage, node: str, cpu: str, *, labels: Json | None = None) -> None:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    metadata = {"name": f"others-{node}", "labels": labels or {}}
    stage.api.post(
        pod_path(stage), {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    )


def submit(stage: Stage, name: str, *, cpu: str = "", pod: Json | None = None, **spec: Any) -> None:
    """Submit a job whose pod asks for this amount of CPU, with more in the spec of its pod."""
    document = stage.make_job(name, iterations=ENDLESS)
    document["spec"] |= spec
    template = document["spec"]["template"]["spec"]
    if cpu:
        template["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    template |= pod or {}
    stage.api.post(stage.path(), document)


def node_of(stage: Stage, name: str) -> str:
    status = stage.wait_for_phase(name, "Running")
    (node,) = status["allocation"]["nodes"]
    return str(node["name"])


def wait_for_reason(stage: Stage, name: str, reason: str) -> str:
    """Wait until a job's status names this reason for its waiting, and return the sentence."""

    def told() -> str:
        found = stage.status(name).get("conditions", ())
        return next(
            (
                each["message"]
                for each in found
                if (each["type"], each["status"], each["reason"]) == ("Scheduled", "False", reason)
            ),
            "",
        )

    sentence: str = stage.wait(told)
    return sentence


def test_two_jobs_that_come_together_do_not_overfill_a_node(stage: Stage) -> None:
    use(stage, "room-a", "30")
    for number in range(3):
        submit(stage, f"job-{number}", cpu="30", gpus={"options": [1]})
    nodes = sorted(node_of(stage, f"job-{number}") for number in range(3))
    assert nodes == ["room-a", "room-b", "room-b"]
    unscheduled = [
        text for n in range(3) for reason, text in stage.events(f"job-{n}") if "nschedul" in reason
    ]
    assert unscheduled == []


def test_where_kube_scheduler_refuses_a_pod_it_is_tried_elsewhere(stage: Stage) -> None:
    use(stage, "room-a", "1", labels={"app": "loud"})
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {"app": "loud"}},
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    }
    # A job that fills a node up gets that node first, so that the node is tried before the other.
    submit(stage, "quiet", gpus={"options": [1]}, pod={"affinity": apart})
    assert node_of(stage, "quiet") == "room-b"
    stage.wait(lambda: any(reason == "Unschedulable" for reason, _ in stage.events("quiet")))
    use(stage, "room-b", "1", labels={"app": "loud"})
    submit(stage, "lonely", gpus={"options": [1]}, pod={"affinity": apart})
    told = wait_for_reason(stage, "lonely", "PodFitsNowhere")
    assert "that kube-scheduler refused recently" in told
    assert "anti-affinity" in told


def test_the_jobs_of_a_namespace_never_have_more_than_it_may(stage: Stage) -> None:
    def held() -> int:
        jobs = stage.api.get(stage.path())["items"]
        gpus = sum(job.get("status", {}).get("allocation", {}).get("gpus", 0) for job in jobs)
        assert gpus <= MOST
        return int(gpus)

    def are_running(*names: str) -> bool:
        return held() <= MOST and all(stage.phase(name) == "Running" for name in names)

    submit(stage, "first", gpus={"options": [1, 2, 4]})
    stage.wait(lambda: held() == 4)
    for name in ("second", "third"):
        submit(stage, name, gpus={"options": [1, 2, 4]})
    stage.wait(lambda: are_running("first", "second", "third"))
    stage.wait(lambda: held() == MOST)
    submit(stage, "wide", gpus={"options": [4]})
    submit(stage, "proud", gpus={"options": [1]}, priority=HIGHEST + 1)
    told = wait_for_reason(stage, "wide", "NamespaceLimit")
    assert f"may have {MOST} GPUs together, and have {MOST}" in told
    told = wait_for_reason(stage, "proud", "PriorityNotAllowed")
    assert f"its priority is {HIGHEST + 1}" in told
    assert f"may have at most {HIGHEST}" in told
    # An administrator's grant holds at once.
    grant(stage, HIGHEST + 1)
    stage.wait(lambda: are_running("first", "second", "third", "proud"))
    grant(stage, None)

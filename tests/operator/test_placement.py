"""
Pods get nodes with room, and namespaces keep their limits, with the real kube-scheduler and other pods.

One operator plays all stories; each leaves the two nodes, of four GPUs and 64 CPUs, as they were.
Other tests use other node names, so that leftovers do not count there.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.operator.priorities import grant
from tests.operator.stages import Stage, lasting_stage
from tests.servers.api import Json
from tests.servers.controlplane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

ENDLESS = 10**6
HIGHEST = 10
MOST = 6
"""GPUs for all jobs of the namespace together."""


@pytest.fixture(scope="module")
def stage(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with lasting_stage(control_plane, tmp_path_factory, {"room-a": 4, "room-b": 4}) as stage:
        settings = {
            "limits.maxGpus": f"{stage.namespace}={MOST}",
            "limits.maxPriority": f"*={HIGHEST}",
            "rules.unscheduledSeconds": "1",
        }
        stage.start_operator(settings=settings)
        yield stage


@pytest.fixture(autouse=True)
def _leaves_nothing(stage: Stage) -> Iterator[None]:
    yield
    for job in stage.api.get(stage.path())["items"]:
        stage.api.delete(stage.path(job["metadata"]["name"]))
    for pod in stage.pods():
        if "dljob.io/job" not in pod["metadata"].get("labels", {}):
            stage.api.delete(stage.pod_path(pod["metadata"]["name"]), gracePeriodSeconds=0)
    stage.wait(lambda: not stage.api.get(stage.path())["items"] and not stage.pods())


def use(stage: Stage, node: str, cpu: str, *, labels: Json | None = None) -> None:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    metadata = {"name": f"others-{node}", "labels": labels or {}}
    stage.api.post(
        stage.pod_path(), {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    )


def submit(stage: Stage, name: str, *, cpu: str = "", pod: Json | None = None, **spec: Any) -> None:
    """Submit a job whose pod requests CPU, with more in its spec."""
    document = stage.make_job(name, iterations=ENDLESS)
    document["spec"] |= spec
    template = document["spec"]["template"]["spec"]
    if cpu:
        template["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    template |= pod or {}
    stage.api.post(stage.path(), document)


def node_of(stage: Stage, name: str) -> str:
    (node,) = stage.wait_for_phase(name, "Running")["allocation"]["nodes"]
    return str(node["name"])


def wait_for_reason(stage: Stage, name: str, reason: str) -> str:
    """Wait until a job's status names this reason for its wait; return the message."""

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


def test_simultaneous_jobs_do_not_overfill_a_node(stage: Stage) -> None:
    use(stage, "room-a", "30")
    for number in range(3):
        submit(stage, f"job-{number}", cpu="30", gpus={"options": [1]})
    nodes = sorted(node_of(stage, f"job-{number}") for number in range(3))
    assert nodes == ["room-a", "room-b", "room-b"]
    unscheduled = [
        text for n in range(3) for reason, text in stage.events(f"job-{n}") if "nschedul" in reason
    ]
    assert unscheduled == []


def test_pod_refused_by_kube_scheduler_moves(stage: Stage) -> None:
    use(stage, "room-a", "1", labels={"app": "loud"})
    selector = {"matchLabels": {"app": "loud"}}
    term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    # A job that fills a node gets it first, so that this node is tried before the other.
    submit(stage, "quiet", gpus={"options": [1]}, pod={"affinity": apart})
    assert node_of(stage, "quiet") == "room-b"
    stage.wait(lambda: any(reason == "Unschedulable" for reason, _ in stage.events("quiet")))
    use(stage, "room-b", "1", labels={"app": "loud"})
    submit(stage, "lonely", gpus={"options": [1]}, pod={"affinity": apart})
    told = wait_for_reason(stage, "lonely", "PodFitsNowhere")
    assert "that kube-scheduler refused recently" in told
    assert "anti-affinity" in told


def test_namespace_never_exceeds_its_limits(stage: Stage) -> None:
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
    # A grant of the administrator counts at once.
    grant(stage, HIGHEST + 1)
    stage.wait(lambda: are_running("first", "second", "third", "proud"))
    grant(stage, None)

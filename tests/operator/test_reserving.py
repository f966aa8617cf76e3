"""Nodes with their device plugin: taken one by one, and returned, with the real kube-scheduler."""

import pytest

from dljob.operator.nodes.placeholders import held_by, is_placeholder, node_of
from tests.operator.stages import TAINT, Stage, staged
from tests.operator.test_gpus import said
from tests.servers.api import Json, Refused

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

A, B = "gpu-a", "gpu-b"
RESERVE = {"pool.mode": "reserve"}


@pytest.fixture
def stage(control_plane, namespace, tmp_path):
    with staged(control_plane, namespace, tmp_path, {A: 4, B: 4}, taints=()) as stage:
        for node in (A, B):
            offer(stage, node, 4)
        yield stage
        for pod in stage.pods():
            # The next test's node of this name would count a pod that stays bound.
            if "ownerReferences" not in pod["metadata"] or is_placeholder(pod):
                delete_if_there(stage, pod["metadata"]["name"])


def delete_if_there(stage: Stage, name: str) -> None:
    """Delete a pod that the operator may have deleted before."""
    try:
        stage.api.delete(stage.pod_path(name), gracePeriodSeconds=0)
    except Refused as refused:
        if refused.code != 404:
            raise


def offer(stage: Stage, node: str, gpus: int) -> None:
    has = {"nvidia.com/gpu": str(gpus)}
    status = {"capacity": has, "allocatable": has}
    stage.api.merge(f"/api/v1/nodes/{node}/status", {"status": status})


def submit_foreign(stage: Stage, name: str, node: str, gpus: int) -> None:
    """Submit a pod of another owner that requests GPUs of a node."""
    amounts = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "c", "image": "c", "resources": {"limits": amounts}}
    spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node}}
    stage.api.post(stage.pod_path(), {"metadata": {"name": name}, "spec": spec})


def is_bound(stage: Stage, name: str) -> bool:
    return bool(stage.api.get(stage.pod_path(name))["spec"].get("nodeName"))


def is_refused(stage: Stage, name: str) -> bool:
    status = stage.api.get(stage.pod_path(name))["status"]
    messages = [each.get("message", "") for each in status.get("conditions", ())]
    return any("Insufficient nvidia.com/gpu" in message for message in messages)


def held(stage: Stage) -> dict[str, int]:
    """The GPUs of each node that running placeholders hold."""
    gpus: dict[str, int] = {}
    for pod in stage.pods():
        is_leaving = "deletionTimestamp" in pod["metadata"]
        if is_placeholder(pod) and pod["status"]["phase"] == "Running" and not is_leaving:
            gpus[node_of(pod)] = gpus.get(node_of(pod), 0) + held_by(pod)
    return gpus


def nodes_of(stage: Stage, job: str) -> list[str]:
    allocation = stage.status(job).get("allocation") or {}
    return [node["name"] for node in allocation.get("nodes", ())]


def trainers_on(stage: Stage, node: str) -> list[str]:
    """The living SideCars on a node, even if the API server says that their pods ended."""
    there = {p["metadata"]["name"] for p in stage.pods() if p["spec"].get("nodeName") == node}
    return sorted(there & stage.kubelets.pids().keys())


def only(count: int) -> Json:
    return {"options": [count]}


def test_node_is_reserved_and_returned(stage):
    submit_foreign(stage, "theirs", B, 1)
    stage.wait(lambda: is_bound(stage, "theirs"))
    operator = stage.start_operator(settings=RESERVE)

    # Nodes are taken one by one; GPUs of other pods are waited for, with a reason.
    stage.submit("first", iterations=10**6, gpus=only(4))
    stage.wait_for_phase("first", "Running")
    assert nodes_of(stage, "first") == [A]
    assert held(stage) == {A: 4}
    stage.submit("second", iterations=10**6, gpus=only(4))
    stage.wait(lambda: "other pods hold some" in stage.status("second").get("message", ""))
    told = "4 are out of service (gpu-b:"
    stage.wait(lambda: told in stage.status("second").get("message", ""))
    stage.wait(lambda: "node gpu-b gets no jobs" in said(operator))
    stage.api.delete(stage.pod_path("theirs"), gracePeriodSeconds=0)
    stage.wait_for_phase("second", "Running")
    assert (nodes_of(stage, "second"), held(stage)) == ([B], {A: 4, B: 4})

    # Now Kubernetes itself refuses other pods.
    submit_foreign(stage, "later", B, 1)
    stage.wait(lambda: is_refused(stage, "later"))

    # The node is returned after its job has left.
    stage.api.merge(f"/api/v1/nodes/{B}", {"metadata": {"labels": {"dljob.io/pool": None}}})
    stage.wait(lambda: is_bound(stage, "later"))
    assert trainers_on(stage, B) == []
    assert held(stage) == {A: 4}
    assert nodes_of(stage, "first") == [A], "it was not disturbed"

    # More GPUs, such as a recovered one, are held as well, and the job trains on.
    offer(stage, A, 8)
    stage.wait(lambda: held(stage) == {A: 8})
    assert nodes_of(stage, "first") == [A]
    assert stage.phase("first") == "Running"
    stage.api.delete(stage.path("first"))

    # Another mode removes the placeholders, and waits until no pod is offered the GPUs.
    operator.stop()
    operator = stage.start_operator(settings={"pool.mode": "dedicated"})
    stage.wait(lambda: held(stage) == {})
    stage.wait(lambda: "it lacks the taint dljob.io/pool" in said(operator))
    stage.api.merge(f"/api/v1/nodes/{A}", {"spec": {"taints": [TAINT]}})
    stage.wait(lambda: "offers nvidia.com/gpu to all pods" in said(operator))
    offer(stage, A, 0)
    stage.wait_for_phase("second", "Running")


def test_evicted_placeholder_holds_on_until_the_jobs_have_left(stage):
    stage.start_operator(settings=RESERVE)
    stage.submit("job", iterations=10**6, gpus=only(4))
    stage.wait_for_phase("job", "Running")
    (node,) = nodes_of(stage, "job")
    other = ({A, B} - {node}).pop()
    submit_foreign(stage, "thief", node, 4)
    stage.wait(lambda: is_refused(stage, "thief"))
    (name,) = [
        pod["metadata"]["name"]
        for pod in stage.pods()
        if is_placeholder(pod) and node_of(pod) == node
    ]
    stage.api.delete(stage.pod_path(name))
    # Kubernetes gives the GPUs away only after our last process there has ended.

    def has_moved() -> bool:
        if is_bound(stage, "thief"):
            assert trainers_on(stage, node) == []
        return nodes_of(stage, "job") == [other] and stage.phase("job") == "Running"

    stage.wait(has_moved)
    stage.wait(lambda: is_bound(stage, "thief") or held(stage).get(node) == 4)

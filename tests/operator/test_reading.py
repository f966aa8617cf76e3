"""The meaning of nodes and pods: above all, which facts prove that a pod has ended."""

import pytest

from dljob.control.situation.ports import PodKey, PodPhase
from dljob.core.model import JobId, NodeName
from dljob.operator.nodes.nodes import CORDONS, Pool, read_node
from dljob.operator.pods.pod_states import read_pod
from dljob.operator.proofs import OUT_OF_SERVICE, seeing_containers

KEY = PodKey(JobId("lab/job"), NodeName("n1"))
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def node(*, ready="True", labels=None, annotations=None, spec=None):
    return {
        "metadata": {
            "name": "n1",
            "labels": {"dljob.io/pool": "", "nvidia.com/gpu.count": "4", **(labels or {})},
            "annotations": annotations or {},
        },
        "spec": spec or {},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def pod(phase="Running", state=None, *, bound=True, deleted=False, last=None, **status):
    containers = []
    if state is not None:
        containers = [{"name": "trainer", "state": state, "lastState": last or {}}]
    return {
        "metadata": {"name": "job-1"} | ({"deletionTimestamp": "2026"} if deleted else {}),
        "spec": {"nodeName": "n1"} if bound else {},
        "status": {"phase": phase, "containerStatuses": containers, **status},
    }


def ended(code):
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}


def unknown():
    return {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}


COLLECTED = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]


@pytest.mark.parametrize(
    ("document", "proof"),
    [
        (pod("Succeeded", ended(0)), True),
        (pod("Failed", ended(1)), True),
        (pod("Running", ended(0)), True),
        (pod("Pending", bound=False, deleted=True), True),
        (pod("Failed", reason="OutOfcpu"), True),
        (pod("Running", RUNNING), False),
        (pod("Running", RUNNING, deleted=True), False),
        (pod("Running", ended(1)), False),
        (pod("Running", {"waiting": {"reason": "CrashLoopBackOff"}}), False),
        (pod("Pending", bound=False), False),
        (pod("Failed", RUNNING), False),
        (pod("Failed", conditions=COLLECTED), False),
        (pod("Failed", {"waiting": {}}, conditions=COLLECTED), False),
        (pod("Failed", reason="NodeLost"), False),
        (pod("Failed", unknown(), deleted=True, conditions=COLLECTED), True),
        (pod("Running", unknown()), False),
    ],
)
def test_only_the_kubelets_word_proves_an_end(document, proof):
    assert (read_pod(KEY, document, node=node(), uid="uid").phase is PodPhase.ENDED) is proof


def beside(kind="containers", **container):
    """A pod whose trainer has ended well while another container runs."""
    document = pod("Running", ended(0))
    statuses = "containerStatuses" if kind == "containers" else "initContainerStatuses"
    document["status"].setdefault(statuses, []).append({"name": "beside", "state": RUNNING})
    document["spec"][kind] = [{"name": "beside", **container}]
    return document


@pytest.mark.parametrize(
    ("document", "proof"),
    [
        (beside(), True),
        (beside(securityContext={"privileged": False}), True),
        (beside(securityContext={"privileged": True}), False),
        (beside("initContainers", securityContext={"privileged": True}), False),
        (pod("Failed", ended(1), initContainerStatuses=[{"name": "x", "state": RUNNING}]), False),
    ],
)
def test_a_pod_has_ended_when_every_container_that_could_see_a_gpu_has(document, proof):
    assert (read_pod(KEY, document, node=node(), uid="uid").phase is PodPhase.ENDED) is proof


def test_a_container_with_the_devices_of_its_host_could_see_gpus():
    spec = {
        "volumes": [
            {"name": "devices", "hostPath": {"path": "/dev/"}},
            {"name": "data", "hostPath": {"path": "/data"}},
        ],
        "containers": [
            {"name": "trainer"},
            {"name": "all", "volumeMounts": [{"name": "devices", "mountPath": "/x"}]},
            {"name": "none", "volumeMounts": [{"name": "data", "mountPath": "/x"}]},
        ],
    }
    assert seeing_containers(spec) == {"trainer", "all"}


def test_a_machine_that_is_said_to_be_gone_runs_nothing():
    out = node(ready="Unknown", spec={"taints": [{"key": OUT_OF_SERVICE}]})
    for gone in (None, out):
        assert read_pod(KEY, pod("Running", RUNNING), node=gone, uid="uid").phase is PodPhase.ENDED


def test_a_node_that_is_not_heard_of_is_lost_and_its_pods_with_it():
    lost = node(ready="Unknown")
    assert read_node(lost, Pool()) is None
    found = read_pod(KEY, pod("Running", RUNNING, podIP="10.0.0.1"), node=lost, uid="uid")
    assert (found.phase, found.reason) == (PodPhase.LOST, "NodeLost")


def test_what_is_on_a_node_that_is_not_ready_goes_on():
    starting = node(ready="False")
    assert read_pod(
        KEY, pod("Running", RUNNING, podIP="10.0.0.1"), node=starting, uid="uid"
    ).phase is (PodPhase.UP)
    assert read_pod(KEY, pod("Failed", ended(1)), node=starting, uid="uid").phase is PodPhase.ENDED


def test_who_runs_is_dialled_by_the_name_of_its_job():
    found = read_pod(KEY, pod("Running", RUNNING, podIP="10.0.0.1"), node=node(), uid="ABC-1")
    assert found.phase is PodPhase.UP
    assert found.address is not None
    assert (found.address.host, found.address.name) == ("10.0.0.1", "abc-1.job.dljob")


def test_nodes_are_read_by_their_labels_and_ours_go_first():
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100", "dljob.io/gpu-type": "A100"}
    found = read_node(node(labels=labels), Pool())
    assert found is not None
    assert (found.usable, found.gpu_type) == ((0, 1, 2, 3), "A100")
    corrected = read_node(node(labels={"dljob.io/gpu-count": "2"}), Pool())
    assert corrected is not None
    assert corrected.usable == (0, 1)


@pytest.mark.parametrize(
    ("pool", "is_in"), [(Pool(), True), (Pool(value="a"), False), (Pool(label="other"), False)]
)
def test_the_pool_is_chosen_by_a_label(pool, is_in):
    assert (read_node(node(), pool) is not None) is is_in


@pytest.mark.parametrize(
    ("given", "usable", "why"),
    [
        ({"annotations": {CORDONS: '{"1": "ECC errors"}'}}, (0, 2, 3), "ECC errors"),
        ({"annotations": {CORDONS: '{"1": ""}'}}, (0, 2, 3), "cordoned"),
        ({"annotations": {CORDONS: "[1]"}}, (), "cannot be read"),
        ({"annotations": {CORDONS: "{one}"}}, (), "cannot be read"),
        ({"labels": {"nvidia.com/mig-1g.5gb.count": "7"}}, (), "MIG"),
        ({"labels": {"nvidia.com/gpu.product": "A100-MIG-1g.5gb"}}, (), "MIG"),
        ({"labels": {"nvidia.com/gpu.sharing-strategy": "mps"}}, (), "shares GPUs"),
        ({"spec": {"unschedulable": True}}, (), ""),
        ({"ready": "False"}, (), "its node is not ready"),
    ],
)
def test_what_is_left_out_is_left_out_with_its_reason(given, usable, why):
    found = read_node(node(**given), Pool())
    assert found is not None
    assert found.usable == usable
    assert why in " ".join(gpu.unavailable_because for gpu in found.gpus)

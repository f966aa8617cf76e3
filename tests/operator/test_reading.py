"""The meaning of nodes and pods, above all what proves that a pod has ended."""

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
def test_only_the_kubelet_proves_an_end(document, proof):
    assert (read_pod(KEY, document, node=node(), uid="uid").phase is PodPhase.ENDED) is proof


def beside(kind="containers", **container):
    """A pod whose trainer has ended well while another container still runs."""
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
def test_pod_has_ended_when_all_gpu_containers_have(document, proof):
    assert (read_pod(KEY, document, node=node(), uid="uid").phase is PodPhase.ENDED) is proof


def test_container_with_host_devices_could_see_gpus():
    paths = {"devices": "/dev/", "data": "/data"}
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()]
    others = [
        {"name": name, "volumeMounts": [{"name": volume, "mountPath": "/x"}]}
        for name, volume in (("all", "devices"), ("none", "data"))
    ]
    spec = {"volumes": volumes, "containers": [{"name": "trainer"}, *others]}
    assert seeing_containers(spec) == {"trainer", "all"}


def test_machine_declared_gone_runs_nothing():
    out = node(ready="Unknown", spec={"taints": [{"key": OUT_OF_SERVICE}]})
    for gone in (None, out):
        assert read_pod(KEY, pod("Running", RUNNING), node=gone, uid="uid").phase is PodPhase.ENDED


def test_silent_node_and_its_pods_are_lost():
    lost = node(ready="Unknown")
    assert read_node(lost, Pool()) is None
    found = read_pod(KEY, pod("Running", RUNNING, podIP="10.0.0.1"), node=lost, uid="uid")
    assert (found.phase, found.reason) == (PodPhase.LOST, "NodeLost")


def test_pods_on_an_unready_node_go_on():
    starting = node(ready="False")
    assert read_pod(
        KEY, pod("Running", RUNNING, podIP="10.0.0.1"), node=starting, uid="uid"
    ).phase is (PodPhase.UP)
    assert read_pod(KEY, pod("Failed", ended(1)), node=starting, uid="uid").phase is PodPhase.ENDED


def test_running_pod_is_dialled_by_the_name_of_its_job():
    found = read_pod(KEY, pod("Running", RUNNING, podIP="10.0.0.1"), node=node(), uid="ABC-1")
    assert found.phase is PodPhase.UP
    assert found.address is not None
    assert (found.address.host, found.address.name) == ("10.0.0.1", "abc-1.job.dljob")


def test_own_labels_of_a_node_win():
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
def test_label_chooses_the_pool(pool, is_in):
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
def test_unavailable_gpus_have_a_reason(given, usable, why):
    found = read_node(node(**given), Pool())
    assert found is not None
    assert found.usable == usable
    assert why in " ".join(gpu.unavailable_because for gpu in found.gpus)

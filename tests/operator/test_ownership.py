"""The operator uses a node only if no other program can reach its GPUs, and names the one that can."""

import copy
from typing import Any

import pytest

from dljob.kube.constraints.reaching import Reaching
from dljob.operator.nodes.ownership import OwnershipRules, why_not_dedicated, why_not_reserved
from tests.operator.stages import TAINT, Stage, staged
from tests.operator.test_gpus import said, why_out
from tests.servers.api import Json
from tests.servers.nodes import make_node

RULES = OwnershipRules("dljob.io/pool", "nvidia")
NAME = ("team", "theirs")


def node(**status: Json) -> Json:
    document = make_node("n1", taints=[TAINT])
    for part, amounts in status.items():
        document["status"][part] = {**document["status"][part], **amounts}
    return document


def pod(container: Json | None = None, *, owner: str = "", **spec: Any) -> Any:
    metadata: Json = {"name": NAME[1], "namespace": NAME[0], "annotations": {}}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "controller": True}]
    container = {"name": "c", "image": "c", **(container or {})}
    return {"metadata": metadata, "spec": {"nodeName": "n1", "containers": [container], **spec}}


def variable(value: str) -> Json:
    return {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]}


def asks(resource: str, amount: str = "1") -> Json:
    return {"resources": {"limits": {resource: amount}}}


def with_annotation(mark: str) -> Any:
    document = pod()
    document["metadata"]["annotations"] = {mark: "nvidia.com/gpu=all"}
    return document


def why(document: Any, *, by: str = "dedicated") -> str:
    reaching = Reaching()
    reaching.show_pod(NAME, document)
    find = why_not_dedicated if by == "dedicated" else why_not_reserved
    return find(node(), reaching, rules=RULES)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (pod(asks("nvidia.com/gpu")), "requests nvidia.com/gpu"),
        (pod(asks("nvidia.com/mig-1g.10gb")), "requests nvidia.com/mig-1g.10gb"),
        (pod(asks("nvidia.com/gpu", "0")), ""),
        (pod(asks("nvidia.com/hostdev")), ""),
        (pod(asks("nvidia.com/rdma_shared_device_a")), ""),
        (pod(variable("all")), "the variable NVIDIA_VISIBLE_DEVICES"),
        (pod(variable("void")), ""),
        (pod(initContainers=[{"name": "i", **variable("0")}]), "NVIDIA_VISIBLE_DEVICES"),
        (pod(runtimeClassName="nvidia-cdi"), "the runtime class nvidia-cdi"),
        (pod(runtimeClassName="gvisor"), ""),
        (with_annotation("cdi.k8s.io/gpus"), "the annotation cdi.k8s.io/gpus"),
        # Monitors on each node see all GPUs by design; only GPUs of a device plugin count.
        (pod(variable("all"), owner="DaemonSet", runtimeClassName="nvidia"), ""),
        (pod(asks("nvidia.com/gpu"), owner="DaemonSet"), "requests nvidia.com/gpu"),
        ({**pod(asks("nvidia.com/gpu")), "status": {"phase": "Succeeded"}}, ""),
    ],
)
def test_foreign_pod_that_reaches_gpus_takes_the_node(document, said):
    found = why(document)
    assert (f"pod team/theirs {said}" in found or said in found) if said else found == "", found


def test_counted_gpus_are_no_reason_in_reserve_mode():
    assert why(pod(asks("nvidia.com/gpu")), by="reserve") == ""
    assert "runtime class" in why(pod(runtimeClassName="nvidia"), by="reserve")


def test_claim_counts_once_it_has_gpus():
    theirs = pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}])
    theirs["status"] = {
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "theirs-gpu-x"}]
    }
    results = [{"driver": "gpu.nvidia.com", "device": "gpu-0", "pool": "n1", "request": "r"}]
    claim: Any = {"status": {"allocation": {"devices": {"results": results}}}}
    reaching = Reaching()
    assert reaching.show_pod(NAME, theirs)
    assert why_not_dedicated(node(), reaching, rules=RULES) == ""
    assert reaching.show_claim(("team", "theirs-gpu-x"), claim)
    assert not reaching.show_claim(("team", "theirs-gpu-x"), copy.deepcopy(claim))
    assert "by the ResourceClaim theirs-gpu-x" in why_not_dedicated(node(), reaching, rules=RULES)
    results[0]["driver"] = "dranet.networking.k8s.io"
    assert reaching.show_claim(("team", "theirs-gpu-x"), claim)
    assert why_not_dedicated(node(), reaching, rules=RULES) == ""


def test_untainted_or_offered_node_is_not_ours():
    nothing = Reaching()
    bare = node()
    bare["spec"]["taints"] = [{**TAINT, "effect": "PreferNoSchedule"}]
    assert "kubectl taint node n1 dljob.io/pool=:NoSchedule" in (
        why_not_dedicated(bare, nothing, rules=RULES)
    )
    assert why_not_dedicated(bare, nothing, rules=OwnershipRules("", "nvidia")) == ""
    offering = node(allocatable={"nvidia.com/gpu.shared": "4"})
    assert "offers nvidia.com/gpu.shared" in why_not_dedicated(offering, nothing, rules=RULES)
    # After a plugin has left, its resource remains with amount 0.
    left = node(capacity={"nvidia.com/gpu": "4"}, allocatable={"nvidia.com/gpu": "0"})
    assert why_not_dedicated(left, nothing, rules=RULES) == ""

    driven = Reaching()
    for name, driver, where in (("a", "gpu.nvidia.com", "n2"), ("b", "net.example.com", "n1")):
        driven.show_slice(("", name), {"spec": {"driver": driver, "nodeName": where}})
    assert why_not_dedicated(node(), driven, rules=RULES) == ""
    driven.show_slice(("", "c"), {"spec": {"driver": "gpu.nvidia.com", "nodeName": "n1"}})
    for find in (why_not_dedicated, why_not_reserved):
        assert "the DRA driver gpu.nvidia.com offers" in find(node(), driven, rules=RULES)
    assert driven.keep_slices([("", "a"), ("", "b")])
    assert why_not_dedicated(node(), driven, rules=RULES) == ""
    driven.show_slice(("", "d"), {"spec": {"driver": "gpu.amd.com", "allNodes": True}})
    assert "gpu.amd.com" in why_not_dedicated(node(), driven, rules=RULES)


def test_claims_of_our_pods_need_a_driver():
    rules = RULES._replace(by_driver=True)
    reaching = Reaching()
    for find in (why_not_dedicated, why_not_reserved):
        assert "no DRA driver offers GPUs there" in find(node(), reaching, rules=rules)
    reaching.show_slice(("", "a"), {"spec": {"driver": "gpu.nvidia.com", "nodeName": "n1"}})
    for find in (why_not_dedicated, why_not_reserved):
        assert find(node(), reaching, rules=rules) == ""
    reaching.show_pod(NAME, pod(asks("nvidia.com/gpu")))
    assert "requests nvidia.com/gpu" in why_not_dedicated(node(), reaching, rules=rules)


A, B = "gpu-a", "gpu-b"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture
def stage(control_plane, namespace, tmp_path):
    with staged(control_plane, namespace, tmp_path, {A: 4}, taints=()) as stage:
        yield stage


def patch_node(stage: Stage, change: Json, sub: str = "") -> None:
    stage.api.merge(f"/api/v1/nodes/{A}{sub}", change)


def offer(stage: Stage, gpus: int) -> None:
    amounts = {"nvidia.com/gpu": str(gpus)}
    patch_node(stage, {"status": {"capacity": amounts, "allocatable": amounts}}, "/status")


def submit_foreign(stage: Stage, name: str, **spec: Any) -> None:
    """Submit a pod of another owner that tolerates all taints."""
    container = {"name": "c", "image": "c", **spec.pop("container", {})}
    body = {"containers": [container], "tolerations": [{"operator": "Exists"}], **spec}
    path = stage.pod_path()
    stage.api.post(path, {"metadata": {"name": name}, "spec": body})
    stage.wait(lambda: stage.api.get(f"{path}/{name}")["spec"].get("nodeName"))


def remove_foreign(stage: Stage, name: str) -> None:
    path = stage.pod_path(name)
    stage.api.delete(path, gracePeriodSeconds=0)


@pytest.mark.cluster
@pytest.mark.processes
def test_label_on_a_used_node_gives_no_second_master(stage):
    # A plugin gives GPUs to another pod, and an administrator labels the node for DLJob.
    offer(stage, 4)
    submit_foreign(stage, "theirs", container=asks("nvidia.com/gpu", "2"))
    operator = stage.start_operator()
    stage.submit("job", iterations=10**6, gpus={"options": [4]})

    def waits_because(words: str) -> bool:
        return stage.phase("job") == "Queued" and words in why_out(stage, A, "0")

    stage.wait(lambda: waits_because("it lacks the taint dljob.io/pool"))
    told = "4 are out of service (gpu-a: it lacks the taint"
    stage.wait(lambda: told in stage.status("job").get("message", ""))
    patch_node(stage, {"spec": {"taints": [TAINT]}})
    stage.wait(lambda: waits_because("its device plugin offers nvidia.com/gpu"))
    offer(stage, 0)
    stage.wait(lambda: waits_because(f"pod {stage.namespace}/theirs requests nvidia.com/gpu"))
    stage.wait(lambda: "node gpu-a gets no jobs: pod" in said(operator))
    remove_foreign(stage, "theirs")
    stage.wait_for_phase("job", "Running")

    # A later pod that tolerates everything and sees the GPUs takes them: the job leaves.
    submit_foreign(stage, "late", container=variable("all"))
    stage.wait(lambda: "late asks to see its GPUs" in said(operator))
    stage.wait(lambda: stage.phase("job") != "Running" and not stage.kubelets.pids())
    remove_foreign(stage, "late")
    stage.wait_for_phase("job", "Running")

    # A driver that only offers the GPUs stops no training, but no new job comes.
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": A,
        "pool": {"name": A, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    }
    stage.api.post(SLICES, {"metadata": {"name": f"{stage.namespace}-a"}, "spec": spec})
    try:
        stage.wait(lambda: "the DRA driver gpu.nvidia.com offers" in said(operator))
        assert stage.phase("job") == "Running"
        stage.api.delete(stage.path("job"))
        stage.submit("next", iterations=10**6, gpus={"options": [1]})
        stage.wait(
            lambda: "the DRA driver gpu.nvidia.com" in stage.status("next").get("message", "")
        )
    finally:
        stage.api.delete(f"{SLICES}/{stage.namespace}-a")
    stage.wait_for_phase("next", "Running")


@pytest.mark.cluster
@pytest.mark.processes
def test_returning_node_frees_nothing_before_the_proof(control_plane, namespace, tmp_path):
    with staged(control_plane, namespace, tmp_path, {A: 4, B: 4}) as stage:
        # By this policy the next job takes no GPUs of this one.
        stage.start_operator(settings={"policy": "fifo"})
        stage.submit("job", iterations=10**6, gpus={"options": [4]})
        stage.wait_for_phase("job", "Running")
        (here,) = (each["name"] for each in stage.status("job")["allocation"]["nodes"])
        (there,) = {A, B} - {here}
        (former,) = stage.kubelets.pids()
        node = stage.api.get(f"/api/v1/nodes/{here}")
        # Its kubelet is silent, and its Node is deleted, although the job still trains there.
        stage.kubelets.silent.add(here)
        stage.api.delete(f"/api/v1/nodes/{here}", gracePeriodSeconds=0)
        stage.wait(lambda: there in str(stage.status("job").get("allocation")))
        stage.wait_for_phase("job", "Running")
        assert former in stage.kubelets.pids(), "its first pod goes on"
        # It registers again after the same boot: a GPU there would have two masters.
        stage.submit("next", iterations=10**6, gpus={"options": [4]})
        kept = {name: node["metadata"][name] for name in ("name", "labels")}
        stage.api.post(
            "/api/v1/nodes", {"metadata": kept, "spec": node["spec"], "status": node["status"]}
        )
        stage.wait(lambda: f"{former}, which no job accounts for" in why_out(stage, here, "0"))
        stage.wait_for_phase("next", "Queued")
        # The kubelet returns, and reports the end of the deleted pod.
        stage.kubelets.silent.remove(here)
        stage.wait_for_phase("next", "Running")
        assert former not in stage.kubelets.pids()

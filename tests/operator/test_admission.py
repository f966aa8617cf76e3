"""The admission policies decide who may make pods that could use the pool's GPUs, on a real API server."""

import json
from functools import partial
from typing import Any

import pytest

from dljob.kube import names
from tests.operator.manifests import make_manifest
from tests.operator.stages import wait_until
from tests.servers.api import Api, Json, Refused
from tests.servers.kubectl import Kubectl
from tests.servers.namespaces import make_namespace, remove_namespace
from tests.servers.nodes import add_nodes, make_node

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


HOME = "dljob-system"
OURS = {"key": "dljob.io/pool", "operator": "Exists"}
ANY = {"operator": "Exists"}
REMEDY = "submit a DLJob instead"


@pytest.fixture
def kubectl(installed):
    """Kubectl of a user with all rights except those that the admission policies restrict."""
    with installed.api() as api:
        namespace = make_namespace(api)
        yield installed.kubectl.in_namespace(namespace)
        # A pod that stays would be bound to the nodes of later tests.
        remove_namespace(api, namespace)


def pod(*, env: Json | None = None, annotations: Json | None = None, **spec: Any) -> Json:
    container: Json = {"name": "c", "image": "c"}
    if env is not None:
        container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    metadata = {"name": "it", "annotations": annotations or {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], **spec},
    }


def refusal(kubectl: Kubectl, document: Json) -> str:
    """The reason for which this document is refused; empty if it is accepted."""
    said = kubectl.try_to("create", "--dry-run=server", "-f", "-", stdin=json.dumps(document))
    return said.err if said.code else ""


ALL_GPUS = {"NVIDIA_VISIBLE_DEVICES": "all"}
INIT = {"name": "i", "image": "i", "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}
CDI = {"cdi.k8s.io/mine": "nvidia.com/gpu=all"}


PODS = [
    (pod(), ""),
    (pod(tolerations=[OURS]), "only DLJob may tolerate the taint dljob.io/pool"),
    (pod(tolerations=[{"key": "dljob.io/pool", "value": "x"}]), "only DLJob may tolerate"),
    (pod(tolerations=[{"key": "another", "operator": "Exists"}]), ""),
    (pod(tolerations=[ANY]), ""),
    (pod(env=ALL_GPUS), ""),
    (pod(env=ALL_GPUS, tolerations=[ANY]), "must not set NVIDIA_VISIBLE_DEVICES"),
    (pod(env=ALL_GPUS, nodeName="gpu-a"), "must not set NVIDIA_VISIBLE_DEVICES"),
    (pod(env={"NVIDIA_DRIVER_CAPABILITIES": "all"}, tolerations=[ANY]), "must not set NVIDIA"),
    (pod(initContainers=[INIT], tolerations=[ANY]), "must not set NVIDIA_VISIBLE_DEVICES"),
    (pod(env={"NVIDIA": "all"}, tolerations=[ANY]), ""),
    (pod(runtimeClassName="nvidia"), ""),
    (pod(runtimeClassName="nvidia", tolerations=[ANY]), "must not have the runtime class"),
    (pod(runtimeClassName="other", tolerations=[ANY]), ""),
    (pod(annotations=CDI), ""),
    (pod(annotations=CDI, tolerations=[ANY]), "must not ask for devices by an annotation"),
]


@pytest.mark.story
def test_pods_that_could_use_gpus_are_refused_with_a_remedy(kubectl, classes):
    for document, why in PODS:
        said = refusal(kubectl, document)
        assert why in said, document
        assert bool(said) is bool(why), said
        assert not why or REMEDY in said


@pytest.fixture(scope="module")
def classes(installed):
    for name in ("nvidia", "other"):
        document = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": name},
            "handler": name,
        }
        # They may exist: tests of other modules may run between those of this one.
        installed.kubectl("apply", "-f", "-", stdin=json.dumps(document))


def test_labels_of_kueue_cause_a_warning(kubectl):
    label = {"kueue.x-k8s.io/queue-name": "team-a"}

    def warning(*, job: Json, template: Json, **spec: Any) -> str:
        document = make_manifest("it")
        document["metadata"]["labels"] = job
        document["spec"] |= spec
        document["spec"]["template"]["metadata"] = {"labels": template}
        said = kubectl.try_to("create", "--dry-run=server", "-f", "-", stdin=json.dumps(document))
        assert said.code == 0, "it is no refusal"
        return str(said.err)

    wait_until(lambda: "no quota of Kueue holds for it" in warning(job=label, template={}))
    assert "lets Kueue hold back each pod" in warning(job={}, template=label)
    assert warning(job={"team": "a"}, template={"team": "a"}) == ""
    assert warning(job=label, template={}, managedBy="kueue.x-k8s.io/multikueue") == ""


def test_api_server_sets_the_finalizer_of_new_jobs(kubectl):
    document = make_manifest("it")

    def finalizers(own: list[str]) -> list[str]:
        # The server learns of the policy a moment later, and then of the definition.
        document["metadata"]["finalizers"] = own
        command = ("create", "--dry-run=server", "-o", "json", "-f", "-")
        said = kubectl.try_to(*command, stdin=json.dumps(document))
        return [] if said.code else json.loads(said.out)["metadata"].get("finalizers", [])

    wait_until(lambda: finalizers([]) == [names.FINALIZER])
    for own in (["mine/before"], ["mine/before", names.FINALIZER]):
        assert finalizers(own) == ["mine/before", names.FINALIZER]
    document["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    assert finalizers(["mine/before"]) == ["mine/before"]


def test_expressions_of_the_policies_are_well_typed(installed):
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def statuses() -> dict[str, Json]:
        with installed.api() as api:
            items = api.get(policies, labelSelector="app.kubernetes.io/name=dljob")["items"]
        found = {each["metadata"]["name"]: each.get("status", {}) for each in items}
        return found if all(each.get("observedGeneration") for each in found.values()) else {}

    found = wait_until(statuses)
    assert len(found) >= 7
    assert {
        name: each["typeChecking"] for name, each in found.items() if each["typeChecking"]
    } == {}


def may_create_pods(kubectl: Kubectl) -> bool:
    """Whether the account has the right as such, by its roles."""
    return kubectl.try_to("auth", "can-i", "create", "pods", "-n", "default").code == 0


def test_only_the_account_of_the_operator_passes(installed, classes):
    document = pod(
        env=ALL_GPUS, annotations=CDI, runtimeClassName="nvidia", tolerations=[OURS, ANY]
    )
    owner = {"name": "it", "uid": "u", "controller": True}
    document["metadata"] |= {
        "namespace": "default",
        "labels": {names.JOB_LABEL: "it"},
        "ownerReferences": [{"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", **owner}],
    }
    installed.kubectl("create", "serviceaccount", "outsider", "-n", HOME)
    installed.kubectl(
        "create", "clusterrolebinding", "outsider", "--clusterrole=admin",
        f"--serviceaccount={HOME}:outsider",
    )  # fmt: skip
    for account, is_let in (("dljob-operator", True), ("outsider", False)):
        kubectl = installed.kubectl_as(installed.kubeconfig_for_service_account(HOME, account))
        # The API server may need a moment to see the new grant.
        wait_until(partial(may_create_pods, kubectl))
        said = refusal(kubectl, document)
        assert ("only DLJob may tolerate" in said) is not is_let, said
        assert is_let is (said == "")


def test_toleration_cannot_be_added_later(kubectl):
    kubectl("create", "-f", "-", stdin=json.dumps(pod(env=ALL_GPUS)))
    tolerations = json.loads(kubectl("get", "pod/it", "-o", "json"))["spec"]["tolerations"]

    def add(toleration: Json) -> str:
        patch = json.dumps({"spec": {"tolerations": [*tolerations, toleration]}})
        refused: str = kubectl.try_to("patch", "pod/it", "--type=merge", "-p", patch).err
        return refused

    assert "only DLJob may tolerate" in add(OURS)
    assert "must not set NVIDIA_VISIBLE_DEVICES" in add(ANY)
    kubectl("label", "pod/it", "any=thing")
    assert add({"key": "another", "operator": "Exists"}) == ""


def workload(kind: str, **spec: Any) -> Json:
    template = {"metadata": {"labels": {"app": "it"}}, "spec": pod(**spec)["spec"]}
    selector = {"matchLabels": {"app": "it"}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "it"},
        "spec": {"selector": selector, "template": template},
    }


@pytest.fixture
def pool_node(installed):
    with installed.api() as api:
        taint = {"key": "dljob.io/pool", "effect": "NoSchedule"}
        add_nodes(api, [make_node("gpu-a", labels={"dljob.io/pool": ""}, taints=[taint])])
        yield
        api.delete("/api/v1/nodes/gpu-a", gracePeriodSeconds=0)


def events(kubectl: Kubectl) -> str:
    return kubectl("get", "events", "-o", "jsonpath={.items[*].message}")


def test_daemonsets_may_use_the_pool_without_gpus(kubectl, pool_node):
    kubectl("create", "-f", "-", stdin=json.dumps(workload("DaemonSet", tolerations=[OURS])))
    wait_until(lambda: "it-" in kubectl("get", "pods", "-o", "name"), lambda: events(kubectl))
    greedy = workload("DaemonSet", env=ALL_GPUS, tolerations=[OURS])
    greedy["metadata"]["name"] = "greedy"
    kubectl("create", "-f", "-", stdin=json.dumps(greedy))
    wait_until(lambda: "must not set NVIDIA_VISIBLE_DEVICES" in events(kubectl))


def test_pods_of_controllers_are_refused_like_those_of_users(kubectl):
    kubectl("create", "-f", "-", stdin=json.dumps(workload("Deployment", tolerations=[OURS])))
    wait_until(lambda: "only DLJob may tolerate the taint dljob.io/pool" in events(kubectl))
    assert kubectl("get", "pods", "-o", "name") == ""


def test_administrator_can_allow_a_namespace(kubectl, installed):
    document = pod(env=ALL_GPUS, tolerations=[OURS])
    assert "only DLJob may tolerate" in refusal(kubectl, document)
    installed.kubectl("create", "namespace", "trusted")
    installed.kubectl("label", "namespace", "trusted", "dljob.io/pool-access=allowed")
    wait_until(lambda: refusal(installed.kubectl.in_namespace("trusted"), document) == "")
    assert refusal(installed.kubectl.in_namespace("kube-system"), document) == ""


def secret(name: str, *, kind: str = "kubernetes.io/tls", owner: str = "DLJob") -> Json:
    reference = {"apiVersion": "v1", "kind": owner, "name": "it", "uid": "u"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "ownerReferences": [reference] if owner else []},
        "type": kind,
        "stringData": {"tls.crt": "", "tls.key": ""},
    }


@pytest.fixture(scope="module")
def operator(installed):
    """Kubectl of the operator, once the policies restrict it."""
    operator = installed.kubectl_as(
        installed.kubeconfig_for_service_account(HOME, "dljob-operator")
    )
    wait_until(lambda: "Forbidden" in refusal(operator, secret("any")))
    return operator


SECRETS = [
    (secret("job-dljob-tls"), ""),
    (secret("job"), "writes certificates only"),
    (secret("dljob-ca", owner=""), "writes certificates only"),
    (secret("job-dljob-tls", kind="Opaque"), "writes certificates only"),
    (secret("job-dljob-tls", owner=""), "belong to jobs"),
    (secret("job-dljob-tls", owner="Pod"), "belong to jobs"),
]


def test_operator_writes_only_certificates_of_jobs(operator):
    for document, why in SECRETS:
        said = refusal(operator, document)
        assert why in said
        assert bool(said) is bool(why), said
    authority = secret("dljob-ca", owner="")
    authority["metadata"]["namespace"] = HOME
    assert refusal(operator, authority) == "", "it writes its authority at home"


def test_empty_patch_shows_the_operator_no_secret(installed, kubectl, operator):
    kubeconfig = installed.kubeconfig_for_service_account(HOME, "dljob-operator")
    theirs = {
        "opaque-dljob-tls": (
            secret("opaque-dljob-tls", kind="Opaque", owner=""),
            "certificates only",
        ),
        # Of the right kind and name; the patch itself would make it belong to a job.
        "theirs-dljob-tls": (secret("theirs-dljob-tls", owner=""), "belong to jobs"),
    }
    owners = secret("theirs-dljob-tls")["metadata"]["ownerReferences"]
    for name, (document, why) in theirs.items():
        kubectl.try_to("create", "-f", "-", stdin=json.dumps(document))
        namespace = kubectl("get", "secret", name, "-o", "jsonpath={.metadata.namespace}")
        path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
        for change in ({}, {"metadata": {"ownerReferences": owners}}):
            with Api(kubeconfig) as api, pytest.raises(Refused, match=why):
                api.merge(path, change)

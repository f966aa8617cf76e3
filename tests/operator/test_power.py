"""
The rights of the operator's own account: each rule is tested on a real API server.

RBAC grants verbs on whole kinds, since the names of jobs' pods are unknown; the admission policies
choose the objects. Each rule is also tested with a request that it allows: an expression that
refuses everything would pass the other tests.
"""

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from dljob.kube import names
from dljob.operator.nodes import placeholders
from dljob.operator.podspecs import podsettings
from tests.operator.manifests import make_manifest, path_of
from tests.operator.stages import wait_until
from tests.servers.api import Api, Json, Refused
from tests.servers.namespaces import make_namespace, remove_namespace
from tests.servers.nodes import add_nodes, make_node

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

Change = Callable[[Json], object]

HOME = "dljob-system"
ADMIN_PATH = "/api/v1/namespaces/{}/pods/{}"


class Ground:
    """A namespace with a job, its pod, another pod and a node, and clients of both accounts."""

    def __init__(self, admin: Api, operator: Api, namespace: str) -> None:
        self.admin, self.operator, self.namespace = admin, operator, namespace
        self.metadata = self.make_job("it")["metadata"]
        self.foreign = admin.post(self.pods(), pod("foreign"))

    def make_job(self, name: str, **spec: Any) -> Json:
        """Submit a job; the policies know DLJobs a moment later than the API server."""

        def made() -> Json | None:
            try:
                return self.admin.post(path_of(self.namespace), make_manifest(name, **spec))
            except Refused as refused:
                if "Kind=DLJob not found" not in str(refused):
                    raise
                return None

        job: Json = wait_until(made)
        return job

    def pods(self, name: str = "") -> str:
        base = f"/api/v1/namespaces/{self.namespace}/pods"
        return f"{base}/{name}" if name else base

    def pod_of_job(self, name: str, **metadata: Any) -> Json:
        document = pod(name)
        document["metadata"] |= {
            "labels": {names.JOB_LABEL: "it", names.ROLE_LABEL: "trainer"},
            "finalizers": [names.PROOF_FINALIZER],
            "ownerReferences": [names.owner_reference(self.metadata)],
            **metadata,
        }
        return document

    def why_not(self, act: Callable[[Api], object]) -> str:
        """The reason why the operator may not do this; empty if it may."""
        try:
            act(self.operator)
        except Refused as refused:
            return str(refused)
        return ""


def pod(name: str) -> Json:
    container = {"name": "trainer", "image": "c"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"mine": "x"}},
        "spec": {"containers": [container]},
    }


@pytest.fixture(scope="module")
def ground(installed):
    kubeconfig = installed.kubeconfig_for_service_account(HOME, "dljob-operator")
    with installed.api() as admin, Api(kubeconfig) as operator:
        add_nodes(admin, [make_node("power-a", labels={"dljob.io/pool": ""})])
        ground = Ground(admin, operator, make_namespace(admin))
        # Each policy comes into force a moment after it was installed.
        dry = {"dryRun": "All"}
        wait_until(
            lambda: "controls" in ground.why_not(lambda a: a.post(ground.pods(), pod("p"), **dry))
        )
        wait_until(
            lambda: ground.why_not(lambda a: a.delete(path_of(ground.namespace, "it"), **dry))
        )
        yield ground
        admin.delete("/api/v1/nodes/power-a", gracePeriodSeconds=0)
        remove_namespace(admin, ground.namespace)


# --- pods


def without_owner(document: Json) -> None:
    del document["metadata"]["ownerReferences"]


def owned(**changes: Any) -> Change:
    return lambda document: document["metadata"]["ownerReferences"][0].update(changes)


def labelled(name: str) -> Change:
    return lambda document: document["metadata"]["labels"].update({names.JOB_LABEL: name})


def twice_owned(document: Json) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"}
    document["metadata"]["ownerReferences"].append(owner)


UNCONTROLLED: list[Change] = [
    without_owner,
    owned(kind="ReplicaSet", apiVersion="apps/v1"),
    owned(apiVersion="dljob.io.evil/v1alpha1"),
    owned(controller=False),
    labelled("another"),
    twice_owned,
]


@pytest.mark.story
def test_operator_makes_only_pods_that_a_job_controls(ground):
    document = ground.pod_of_job("made")
    assert not ground.why_not(lambda api: api.post(ground.pods(), document, dryRun="All"))
    for change in UNCONTROLLED:
        changed = ground.pod_of_job("made")
        change(changed)
        why = ground.why_not(lambda api, p=changed: api.post(ground.pods(), p, dryRun="All"))
        assert "only pods that a DLJob controls" in why, why


def test_operator_makes_no_pod_in_privileged_places(ground):
    document = ground.pod_of_job("made")
    path = ADMIN_PATH.format("kube-system", "").rstrip("/")
    why = ground.why_not(lambda api: api.post(path, document, dryRun="All"))
    assert "makes no pods in kube-system" in why
    document["spec"] |= {
        "serviceAccountName": "dljob-operator",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    document["spec"]["containers"][0]["securityContext"] = podsettings.RESTRICTED
    path = ADMIN_PATH.format(HOME, "").rstrip("/")
    why = ground.why_not(lambda api: api.post(path, document, dryRun="All"))
    assert "must not run as the account of the operator" in why


@pytest.fixture
def placeholder(ground):
    node = ground.admin.get("/api/v1/nodes/power-a")
    settings = placeholders.PlaceholderSettings()
    step = placeholders.Make("power-a", 4)
    return placeholders.make_placeholder(node["metadata"], step, namespace=HOME, settings=settings)


def put(**fields: Any) -> Change:
    return lambda document: document["spec"].update(fields)


def put_into_container(**fields: Any) -> Change:
    return lambda document: document["spec"]["containers"][0].update(fields)


PLACEHOLDERS: list[tuple[Change, str]] = [
    (lambda _: None, ""),
    (owned(kind="DaemonSet", apiVersion="apps/v1"), "only pods that a DLJob controls"),
    (owned(name="power-b"), "only pods that a DLJob controls"),
    (put(volumes=[{"name": "v", "secret": {"secretName": "any"}}]), "without volumes"),
    (put(hostNetwork=True), "PodSecurity"),
    (put(automountServiceAccountToken=True), "without volumes"),
    (put_into_container(command=["sh"]), "without volumes"),
    (put_into_container(env=[{"name": "a", "value": "b"}]), "without volumes"),
    (put_into_container(securityContext={"privileged": True}), "PodSecurity"),
]


def test_operator_makes_only_harmless_placeholders_at_home(ground, placeholder):
    path = ADMIN_PATH.format(HOME, "").rstrip("/")
    for change, why in PLACEHOLDERS:
        changed = copy.deepcopy(placeholder)
        change(changed)
        said = ground.why_not(lambda api, p=changed: api.post(path, p, dryRun="All"))
        assert why in said
        assert bool(said) is bool(why), said
    placeholder["metadata"]["namespace"] = ground.namespace
    why = ground.why_not(lambda api: api.post(ground.pods(), placeholder, dryRun="All"))
    assert "only pods that a DLJob controls" in why


@pytest.fixture
def ours(ground):
    pod = ground.pod_of_job("ours")
    pod["metadata"]["annotations"] = {"kept": "x"}
    made = ground.operator.post(ground.pods(), pod)
    yield made
    ground.admin.merge(ground.pods("ours"), {"metadata": {"finalizers": None}})
    ground.admin.delete(ground.pods("ours"), gracePeriodSeconds=0)


def changes_of_pod(ours: Json) -> list[Json]:
    containers = copy.deepcopy(ours["spec"]["containers"])
    containers[0]["image"] = "another"
    return [
        {"metadata": {"finalizers": [names.PROOF_FINALIZER, "another/one"]}},
        {"metadata": {"labels": {"mine": "y"}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b", names.LOSS: "7"}}},
        {"metadata": {"annotations": {"kept": None}}},
        {"metadata": {"annotations": {"kept": "changed"}}},
        {"metadata": {"ownerReferences": None}},
        {"spec": {"activeDeadlineSeconds": 1}},
        {"spec": {"containers": containers}},
        {"spec": {"tolerations": [*ours["spec"]["tolerations"], {"operator": "Exists"}]}},
    ]


def test_operator_changes_only_its_finalizer_and_annotation(ground, ours):
    def why_not(change: Json) -> str:
        return str(ground.why_not(lambda api: api.merge(ground.pods("ours"), change, dryRun="All")))

    assert why_not({"metadata": {"finalizers": []}}) == ""
    assert why_not({"metadata": {"annotations": {names.LOSS: "7"}}}) == ""
    for change in changes_of_pod(ours):
        assert "changes nothing" in why_not(change), change


def test_operator_neither_changes_nor_deletes_other_pods(ground, ours):
    claim = {
        "metadata": {
            "labels": ours["metadata"]["labels"],
            "ownerReferences": ours["metadata"]["ownerReferences"],
        }
    }
    changes: list[Json] = [{"metadata": {"finalizers": []}}, claim]
    for change in changes:
        why = ground.why_not(lambda api, c=change: api.merge(ground.pods("foreign"), c))
        assert "only pods that a DLJob controls" in why
    why = ground.why_not(lambda api: api.delete(ground.pods("foreign")))
    assert "only pods that a DLJob controls" in why
    assert not ground.why_not(lambda api: api.delete(ground.pods("ours"), dryRun="All"))


# --- jobs


def test_operator_writes_only_status_and_finalizer_of_jobs(ground):
    path = path_of(ground.namespace, "it")

    def why_not(path: str, change: Json) -> str:
        return str(ground.why_not(lambda api: api.merge(path, change, dryRun="All")))

    assert why_not(path, {"metadata": {"finalizers": [names.FINALIZER]}}) == ""
    assert why_not(f"{path}/status", {"status": {"phase": "Queued"}}) == ""
    for change in (
        {"metadata": {"finalizers": ["another/one"]}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"spec": {"priority": 7}},
    ):
        assert "its own finalizer, and nothing else" in why_not(path, change), change


def test_operator_deletes_only_ended_jobs_with_a_ttl(ground):
    for name, seconds, phase, may_go in (
        ("runs", 0, "Running", False),
        ("stays", None, "Completed", False),
        ("goes", 0, "Completed", True),
    ):
        path = path_of(ground.namespace, name)
        ground.make_job(name, ttlSecondsAfterFinished=seconds)
        ground.operator.merge(f"{path}/status", {"status": {"phase": phase}})
        why = ground.why_not(lambda api, p=path: api.delete(p, dryRun="All"))
        assert (why == "") is may_go, why
        assert may_go or "deletes only jobs that have ended" in why


# --- Events, Leases, and RBAC's own refusals


def event(ground: Ground, component: str) -> Json:
    about = {"kind": "DLJob", "name": "it", "namespace": ground.namespace}
    return {
        "metadata": {"name": f"it.{component}", "namespace": ground.namespace},
        "involvedObject": about,
        "reportingComponent": component,
        "source": {"component": component},
        "reason": "R",
        "message": "m",
        "type": "Normal",
    }


def test_operator_writes_only_its_own_events(ground):
    path = f"/api/v1/namespaces/{ground.namespace}/events"
    ground.operator.post(path, event(ground, "dljob-operator"))
    why = ground.why_not(lambda api: api.post(path, event(ground, "kubelet")))
    assert "Events of its own" in why
    ground.admin.post(path, event(ground, "kubelet"))
    change = {"message": "all is well", "reportingComponent": "dljob-operator"}
    why = ground.why_not(lambda api: api.merge(f"{path}/it.kubelet", change))
    assert "Events of its own" in why
    assert not ground.why_not(lambda api: api.merge(f"{path}/it.dljob-operator", {"count": 2}))


def test_operator_has_one_lease(ground):
    path = f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases"
    lease = {"metadata": {"name": "another"}, "spec": {"holderIdentity": "me"}}
    why = ground.why_not(lambda api: api.post(path, lease, dryRun="All"))
    assert "has one Lease" in why
    own = copy.deepcopy(lease)
    own["metadata"]["name"] = "dljob-operator"
    assert not ground.why_not(lambda api: api.post(path, own, dryRun="All"))


def test_operator_has_no_rights_on_nodes_secrets_and_accounts(ground):
    secret = {"metadata": {"name": "theirs"}, "stringData": {"a": "b"}}
    secrets = f"/api/v1/namespaces/{ground.namespace}/secrets"
    ground.admin.post(secrets, secret)
    node = "/api/v1/nodes/power-a"
    binding = {"metadata": {"name": "foreign"}, "target": {"kind": "Node", "name": "power-a"}}
    token = f"/api/v1/namespaces/{HOME}/serviceaccounts/dljob-operator/token"
    acts: list[Callable[[Api], object]] = [
        lambda api: api.merge(node, {"metadata": {"annotations": {"a": "b"}}}),
        lambda api: api.merge(node, {"spec": {"unschedulable": True}}),
        lambda api: api.merge(f"{node}/status", {"status": {}}),
        lambda api: api.delete(node),
        lambda api: api.get(f"{secrets}/theirs"),
        lambda api: api.get(secrets),
        lambda api: api.delete(f"{secrets}/theirs"),
        lambda api: api.post(f"{ground.pods('foreign')}/binding", binding),
        lambda api: api.post(
            f"{ground.pods('foreign')}/eviction", {"metadata": {"name": "foreign"}}
        ),
        lambda api: api.get(f"{ground.pods('foreign')}/log"),
        lambda api: api.post(f"{ground.pods('foreign')}/exec?command=sh&stdout=1", {}),
        lambda api: api.post(token, {"spec": {}}),
        lambda api: api.post("/apis/apps/v1/namespaces/default/deployments", {}),
        lambda api: api.post(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {"metadata": {"name": "x"}, "roleRef": {"kind": "ClusterRole", "name": "admin"}},
        ),
    ]
    for act in acts:
        why = ground.why_not(act)
        assert re.search("forbidden: User .* cannot ", why), why


# --- cordons of GPUs


@pytest.fixture
def warden(installed, ground):
    """Kubectl of an account with dljob-gpus-edit only."""
    kubectl = installed.kubectl
    if kubectl.try_to("get", "serviceaccount", "warden", "-n", "default").code:
        kubectl("create", "serviceaccount", "warden", "-n", "default")
        kubectl(
            "create", "clusterrolebinding", "warden", "--clusterrole=dljob-gpus-edit",
            "--serviceaccount=default:warden",
        )  # fmt: skip
    return installed.kubectl_as(installed.kubeconfig_for_service_account("default", "warden"))


CORDON = {"metadata": {"annotations": {"dljob.io/cordoned-gpus": '{"0": "hot"}'}}}
PARDON = {"metadata": {"annotations": {"dljob.io/pardoned-gpus": '{"0": "now"}'}}}
OTHER_CHANGES: list[Json] = [
    {"metadata": {"annotations": {"another": "x"}}},
    {"metadata": {"annotations": {"kept": None}}},
    {"metadata": {"annotations": {"kept": "changed"}}},
    {"metadata": {"labels": {"dljob.io/pool": None}}},
    {"spec": {"unschedulable": True}},
    {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
]


def test_gpu_editor_changes_only_its_annotations(installed, warden):
    installed.kubectl("annotate", "node", "power-a", "kept=x", "--overwrite")
    wait_until(lambda: not warden.try_to("get", "node", "power-a").code)
    patch = ("patch", "node", "power-a", "--type=merge", "--dry-run=server", "-p")
    for change in (CORDON, PARDON, *OTHER_CHANGES):
        said = warden.try_to(*patch, json.dumps(change))
        is_let = change in (CORDON, PARDON)
        assert (said.code == 0) is is_let, said.err
        assert is_let or "is for dljob gpu cordon" in said.err
        told = installed.kubectl.try_to(*patch, json.dumps(change))
        assert told.code == 0, "an administrator may change all"

"""
The operator leaves a job to the controller in ``managedBy``: the contract of MultiKueue's generic adapter (KEP-2349).

A service account with the rights that Kueue documents plays the adapter. One control plane stands for
both clusters: ``net`` is the job in the manager's cluster, ``net-remote`` its copy in the worker's.
"""

import copy
import re

import pytest

from tests.operator.manifests import make_manifest, path_of
from tests.operator.refusing import refusal
from tests.operator.stages import Stage
from tests.servers.api import Json, Refused

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
ORIGIN = {"kueue.x-k8s.io/multikueue-origin": "multikueue"}
VERBS = ["get", "list", "watch", "patch", "update"]
MANAGER_RULES = [
    {"apiGroups": ["dljob.io"], "resources": ["dljobs", "dljobs/status"], "verbs": VERBS}
]
"""https://kueue.sigs.k8s.io/docs/tasks/run/multikueue/external-frameworks/"""


def merge_patch(old: Json, new: Json) -> Json:
    """The patch from one document to the other, as of client.MergeFrom."""
    gone: Json = dict.fromkeys(old.keys() - new.keys())
    for name, each in new.items():
        is_deep = isinstance(each, dict) and isinstance(old.get(name), dict)
        gone[name] = merge_patch(old[name], each) if is_deep else each
    return gone


@pytest.fixture
def adapter(stage: Stage):
    """Kueue's connection to the manager's cluster."""
    home, rbac = f"/api/v1/namespaces/{stage.namespace}", "/apis/rbac.authorization.k8s.io/v1"
    roles = f"{rbac}/namespaces/{stage.namespace}"
    metadata = {"name": "kueue"}
    stage.api.post(f"{home}/serviceaccounts", {"metadata": metadata})
    stage.api.post(f"{roles}/roles", {"metadata": metadata, "rules": MANAGER_RULES})
    group, account = "rbac.authorization.k8s.io", {"kind": "ServiceAccount", "name": "kueue"}
    role = {"apiGroup": group, "kind": "Role", "name": "kueue"}
    subjects = [account | {"namespace": stage.namespace}]
    binding = {"metadata": metadata, "roleRef": role, "subjects": subjects}
    stage.api.post(f"{roles}/rolebindings", binding)
    kubeconfig = stage.plane.kubeconfig_for_service_account(stage.namespace, "kueue")
    with stage.plane.api(kubeconfig) as api:
        yield api


@pytest.mark.story
def test_multikueue_runs_a_job_elsewhere_and_copies_its_status(stage: Stage, adapter):
    stage.start_operator()
    stage.submit("net", iterations=400, managedBy=MULTIKUEUE)
    stage.submit("ours", iterations=50, managedBy="dljob.io/operator")
    stage.wait_for_phase("ours", "Completed")
    job = stage.job("net")
    assert "status" not in job
    assert "finalizers" not in job["metadata"]

    # The adapter makes the remote job: without managedBy, with its own labels.
    remote = copy.deepcopy(job)
    remote["metadata"] = {"name": "net-remote", "labels": ORIGIN}
    del remote["spec"]["managedBy"]
    stage.api.post(stage.path(), remote)
    stage.wait_for_phase("net-remote", "Running")
    copied: Json = {}
    for phase in ("Running", "Completed"):
        copied = stage.wait_for_phase("net-remote", phase)
        # A merge patch of the subresource copies the whole status.
        patch = merge_patch({"status": stage.status("net")}, {"status": copied})
        adapter.merge(f"{stage.path('net')}/status", patch)
        assert stage.status("net") == copied
    kubectl = stage.plane.kubectl.in_namespace(stage.namespace)
    kubectl("wait", "dljob/net", "--for=condition=Complete", "--timeout=10s")

    # The operator leaves it alone, although the copied status names nodes and an epoch.
    stage.submit("later", iterations=50)
    stage.wait_for_phase("later", "Completed")
    assert stage.status("net") == copied
    assert (stage.events("net"), stage.pods_of("net")) == ([], [])
    stage.api.delete(stage.path("net"))
    assert stage.is_gone("net"), "no finalizer keeps it"


def test_manager_is_fixed_and_its_name_checked(cluster, namespace):
    with cluster.api() as api:
        api.post(path_of(namespace), make_manifest("net", managedBy=MULTIKUEUE))
        api.post(path_of(namespace), make_manifest("ours"))
        for name, manager in (("net", "acme.io/other"), ("net", None), ("ours", MULTIKUEUE)):
            with pytest.raises(Refused, match="managedBy cannot change") as refused:
                api.merge(path_of(namespace, name), {"spec": {"managedBy": manager}})
            assert "delete the job and create it again" in str(refused.value)
        for wrong in ("kueue", "Kueue/x", "/x", "kueue.x-k8s.io/"):
            (line,) = refusal(api, namespace, make_manifest("wrong", managedBy=wrong))
            assert re.match(r"spec\.managedBy: .*write a domain, '/' and a name", line), line

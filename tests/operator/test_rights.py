"""
The operator has all rights that it uses, and no other.

It runs as its own account while jobs come, change, fail and go. The API server's audit log shows its
requests, which must match the rights of the install in both directions.
"""

import pytest
import yaml

from dljob.kube import names
from dljob.kube.names import owner_reference, secret_name
from tests.operator.kubelets import ROOT
from tests.operator.rights import HOME, POLICY, Right, iter_rights, used
from tests.operator.stages import Stage, staged
from tests.servers.controlplane import ControlPlane, Wishes
from tests.servers.namespaces import make_namespace

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

INSTALL = ROOT / "manifests" / "install"


def granted() -> set[Right]:
    rights: set[Right] = set()
    for document in yaml.safe_load_all((INSTALL / "rbac.yaml").read_text()):
        if (
            document["kind"] in ("Role", "ClusterRole")
            and document["metadata"]["name"] == "dljob-operator"
        ):
            rights.update(iter_rights(document["rules"]))
    return rights


IMPLIED = {
    # An account that sets a blocking owner needs the right to change its finalizers; the admission
    # plugin that checks this is on in some distributions only.
    Right("update", "dljobs/finalizers"),
    # Requested only after a concurrent write of another program.
    Right("get", "dljobs"),
    # A repeated Event is counted on the first one.
    Right("patch", "events"),
    # Server-side apply creates an object that does not exist; the audit log shows no such verb.
    Right("create", "configmaps", "dljob-effective-settings"),
    Right("create", "configmaps", "dljob-learned"),
    # More objects exist only if one does not hold all GPUs.
    *(
        Right(verb, "configmaps", name)
        for verb in ("create", "get", "patch")
        for name in names.GPUS_PARTS
    ),
    # Requested only if a pod of the name exists.
    Right("get", "pods"),
}


def make_secret(stage: Stage, job: str, owner: str) -> None:
    """Leave a Secret that an earlier job of this name may have had; its owner keeps it."""
    reference = owner_reference(stage.job(owner)["metadata"])
    document = {
        "metadata": {"name": secret_name(job), "ownerReferences": [reference]},
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": "", "tls.key": ""},
    }
    stage.api.post(f"/api/v1/namespaces/{stage.namespace}/secrets", document)


@pytest.fixture
def plane(tmp_path):
    with ControlPlane(tmp_path / "plane", Wishes(audit_policy=POLICY)) as plane:
        yield plane


def test_operator_uses_exactly_its_rights(plane, tmp_path):
    plane.kubectl("apply", "--server-side", "-k", INSTALL)
    kubeconfig = plane.kubeconfig_for_service_account(HOME, "dljob-operator")
    with plane.api() as api:
        namespace = make_namespace(api)
        with staged(plane, namespace, tmp_path, {"gpu-a": 4}) as stage:
            stage.kubeconfig = kubeconfig
            first = stage.start_operator(settings={"namespace": HOME, "watched": ""})
            stage.submit("old", iterations=2000)
            stage.wait_for_phase("old", "Running")
            make_secret(stage, "new", "old")
            stage.submit("new")
            stage.submit("unwanted", iterations=10**6)
            # The operator deletes the pods of a running job; the garbage collector may delete others first.
            stage.wait_for_phase("unwanted", "Running")
            stage.api.delete(stage.path("unwanted"))
            stage.wait_for_phase("old", "Completed")
            stage.submit("brief", ttlSecondsAfterFinished=0)
            stage.wait(lambda: stage.is_gone("brief") and stage.is_gone("unwanted"))
            first.stop()
            stage.start_operator(settings={"namespace": HOME, "watched": ""})
            stage.operators[-1].stop()
    asked = used(plane.audit_log)
    rights = granted()
    by_name = {right for right in rights if right.name}
    general = {right._replace(name="") for right in rights - by_name}
    excess = {
        right for right in asked if right not in by_name and right._replace(name="") not in general
    }
    assert excess == set()
    needed = asked | {right._replace(name="") for right in asked} | IMPLIED
    assert rights - needed == set(), "granted, but not used"
    assert not any(right.resource == "secrets" and right.verb == "list" for right in asked)
    secrets = {right.name for right in asked if right.resource == "secrets" and right.verb == "get"}
    assert secrets == {"dljob-ca"}

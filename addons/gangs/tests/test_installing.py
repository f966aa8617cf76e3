"""The installed gang scheduler is accepted and has exactly the rights that it uses."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from addons.gangs.tests.troupes import Troupe, playing, plugged
from dljob_gangs.waking import CONDITION
from tests.operator.kubelets import ROOT
from tests.operator.stages import wait_until
from tests.servers.audits import read_events
from tests.servers.controlplane import ControlPlane, Wishes
from tests.servers.namespaces import make_namespace

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

HOME, NAME = "dljob-system", "dljob-scheduler"
ACCOUNT = f"system:serviceaccount:{HOME}:{NAME}"
INSTALL = ROOT / "manifests" / "scheduler"
POLICY = {
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}],
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory):
    """A control plane with an audit log and the installed gang scheduler."""
    folder = tmp_path_factory.mktemp("installed")
    with ControlPlane(folder, Wishes(audit_policy=POLICY)) as plane:
        plane.kubectl("apply", "-k", INSTALL)
        yield plane


@contextmanager
def without_the_rest(plane: ControlPlane) -> Iterator[None]:
    """Remove the account's rights as a scheduler, and its own pod."""
    try:
        for role in ("kube-scheduler", "volume-scheduler"):
            plane.kubectl("delete", "clusterrolebinding", f"{NAME}-as-{role}")
        plane.kubectl("scale", "-n", HOME, f"deployment/{NAME}", "--replicas=0")
        # No kubelet would report the end of a pod on the test's node.
        plane.kubectl("rollout", "status", "-n", HOME, f"deployment/{NAME}", "--timeout=240s")
        wait_until(lambda: not plane.kubectl("get", "pods", "-n", HOME, "-o", "name"))
        yield
    finally:
        plane.kubectl("apply", "-k", INSTALL)


def granted(plane: ControlPlane) -> set[tuple[str, str]]:
    with plane.api() as api:
        role = api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/dljob-gangs")
    return {
        pair
        for each in role["rules"]
        for pair in itertools.product(each["verbs"], each["resources"])
    }


def used(log: Path) -> set[tuple[str, str]]:
    """The rights that the audit log shows; all requests must have been allowed."""
    found = set()
    for event in read_events(log):
        reference: dict[str, Any] = event.get("objectRef") or {}
        if "resource" not in reference:
            continue  # Every account may discover the kinds of objects.
        what = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        decision = event["annotations"]["authorization.k8s.io/decision"]
        assert decision == "allow", (event["verb"], what)
        found.add((event["verb"], what))
    return found


def play_everything(troupe: Troupe) -> None:
    """Play every situation in which the extender writes."""
    troupe.add_nodes({"x": {"cpu": "4"}})
    wake_one(troupe)
    runs = troupe.create_gang("runs", {"worker": 2})
    troupe.wait_bound(runs)
    older = troupe.create_gang("older", {"worker": 3})
    troupe.wait_told("GangWaiting", "its 3 pods do not all fit", older[0])
    troupe.delete(older[2])
    troupe.wait_told("GangIncomplete", "1 of role worker", older[0])
    troupe.create(troupe.make_member("older", "worker", 2, roles={"worker": 3}))
    troupe.wait(lambda: any(each["count"] > 1 for each in troupe.events("GangWaiting")))
    younger = troupe.create_gang("younger", {"worker": 2})
    # It was refused when all of them existed.
    troupe.wait_told("FailedScheduling", "gang younger waits: an older one, gang older, goes first")
    for name in older:
        troupe.delete(name)
    troupe.wait(lambda: set(younger) <= set(troupe.bound()))


def wake_one(troupe: Troupe) -> None:
    """Keep room for a pod that kube-scheduler does not ask about, because its volume is missing."""
    ready, lacking = (troupe.make_member("half", "worker", n, roles={"worker": 2}) for n in (0, 1))
    claim = {"persistentVolumeClaim": {"claimName": "nowhere"}}
    lacking["spec"]["volumes"] = [{"name": "data", **claim}]
    names = [troupe.create(each) for each in (lacking, ready)]

    def is_woken() -> bool:
        conditions = troupe.pods()[names[0]]["status"].get("conditions", ())
        return any(each["type"] == CONDITION for each in conditions)

    troupe.wait(is_woken)
    for name in names:
        troupe.delete(name)


def test_extender_uses_exactly_its_rights(plane: ControlPlane, tmp_path: Path):
    with without_the_rest(plane), plane.api() as api:
        account = plane.kubeconfig_for_service_account(HOME, NAME)
        namespace = make_namespace(api)
        with plugged(plane, tmp_path, account) as plugin, playing(plugin, namespace) as troupe:
            play_everything(troupe)
    # A watch is logged when it ends, which the API server must notice.
    wait_until(
        lambda: granted(plane) <= used(plane.audit_log),
        lambda: f"no request has used {granted(plane) - used(plane.audit_log)}",
    )
    assert used(plane.audit_log) == granted(plane)


def test_pod_complies_with_the_restricted_standard(plane: ControlPlane):
    with plane.api() as api:
        path = f"/api/v1/namespaces/{HOME}/pods"

        def found() -> list[dict[str, Any]]:
            items: list[dict[str, Any]] = api.get(path)["items"]
            return items

        (pod,) = wait_until(found, lambda: plane.kubectl("describe", "-n", HOME, "replicasets"))
        spec = pod["spec"]
        assert [each["name"] for each in spec["initContainers"]] == ["gangs"]
        mounted = next(each for each in spec["volumes"] if each["name"] == "config")
        name = mounted["configMap"]["name"]
        config = api.get(f"/api/v1/namespaces/{HOME}/configmaps/{name}")
        assert "schedulerName: dljob-scheduler" in config["data"]["scheduler-config.yaml"]

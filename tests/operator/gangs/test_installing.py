"""The gang scheduler as it is installed: what is applied is accepted, and grants what is used, no more."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.operator.gangs.troupes import Troupe, playing, plugged
from tests.operator.kubelets import ROOT
from tests.operator.stages import wait_until
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
    """A control plane of its own, with an audit log, on which the gang scheduler is installed."""
    folder = tmp_path_factory.mktemp("installed")
    with ControlPlane(folder, Wishes(audit_policy=POLICY)) as plane:
        plane.kubectl("apply", "-k", INSTALL)
        yield plane


def granted(plane: ControlPlane) -> set[tuple[str, str]]:
    """Read what the extender's own role grants."""
    with plane.api() as api:
        role = api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/dljob-gangs")
    return {
        pair
        for each in role["rules"]
        for pair in itertools.product(each["verbs"], each["resources"])
    }


def used(log: Path) -> set[tuple[str, str]]:
    """Read from the audit log what the account has asked for, all of which must have been allowed."""
    found = set()
    for event in map(json.loads, log.read_text().splitlines()):
        reference: dict[str, Any] = event.get("objectRef") or {}
        if "resource" not in reference:
            continue  # Which kinds of objects there are, anybody may ask.
        what = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        decision = event["annotations"]["authorization.k8s.io/decision"]
        assert decision == "allow", (event["verb"], what)
        found.add((event["verb"], what))
    return found


def play_everything(troupe: Troupe) -> None:
    """Let happen whatever the extender has to write something about."""
    troupe.add_nodes({"x": {"cpu": "4"}})
    runs = troupe.create_gang("runs", {"worker": 2})
    troupe.wait_bound(runs)
    older = troupe.create_gang("older", {"worker": 3})
    troupe.wait_told("GangWaiting", "its 3 pods do not all fit", older[0])
    troupe.delete(older[2])
    troupe.wait_told("GangIncomplete", "1 of role worker", older[0])
    troupe.create(troupe.make_member("older", "worker", 2, roles={"worker": 3}))
    troupe.wait(lambda: any(each["count"] > 1 for each in troupe.events("GangWaiting")))
    younger = troupe.create_gang("younger", {"worker": 2})
    troupe.wait_told("FailedScheduling", "gang older, goes first", younger[0])
    for name in older:
        troupe.delete(name)
    troupe.wait(lambda: set(younger) <= set(troupe.bound()))


def test_the_extender_uses_all_of_its_role_and_nothing_besides(plane: ControlPlane, tmp_path: Path):
    # What its pod may do as a scheduler is not to hide what it lacks as an extender.
    for role in ("kube-scheduler", "volume-scheduler"):
        plane.kubectl("delete", "clusterrolebinding", f"{NAME}-as-{role}")
    # Its own pod is not to take room while gangs are counted.
    plane.kubectl("scale", "-n", HOME, f"deployment/{NAME}", "--replicas=0")
    account = plane.kubeconfig_for_service_account(HOME, NAME)
    with plane.api() as api:
        namespace = make_namespace(api)
    with plugged(plane, tmp_path, account) as plugin, playing(plugin, namespace) as troupe:
        play_everything(troupe)
    # A watch is logged when it ends, which the API server has to notice.
    wait_until(
        lambda: granted(plane) <= used(plane.audit_log),
        lambda: f"nobody has used {granted(plane) - used(plane.audit_log)}",
    )
    assert used(plane.audit_log) == granted(plane)
    plane.kubectl("apply", "-k", INSTALL)


@pytest.mark.parametrize(
    ("verb", "what", "may"),
    [
        ("create", "pods/binding", "yes"),
        ("list", "persistentvolumeclaims", "yes"),
        ("create", "subjectaccessreviews.authorization.k8s.io", "yes"),
        ("get", "secrets", "no"),
        ("create", "pods", "no"),
        ("update", "nodes", "no"),
    ],
)
def test_its_account_may_do_what_a_scheduler_may(
    plane: ControlPlane, verb: str, what: str, may: str
):
    resource, _, part = what.partition("/")
    question = ["auth", "can-i", verb, resource, f"--subresource={part}", f"--as={ACCOUNT}", "-A"]
    # What was just granted has to come round first.
    wait_until(lambda: plane.kubectl.try_to(*question).out.strip() == may)


def test_its_pod_is_accepted_where_only_restricted_pods_are(plane: ControlPlane):
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

"""The meaning of pods and nodes for gangs, and exact amounts."""

import json
from typing import Any

import pytest

from dljob.core.placement.amounts import read_amount, requests_of
from dljob.kube.constraints.reading import read_traits
from dljob.kube.names import Name
from dljob_gangs.book import Book
from dljob_gangs.members import Member, Stage, Wrong, tenant_of
from dljob_gangs.reading import read_member

MINE = "dljob-scheduler"


def pod(
    name: str = "p", *, version: int = 1, phase: str = "Pending", **spec: Any
) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"dljob.io/gang": "g", "dljob.io/gang-role": "worker"},
            "annotations": {"dljob.io/gang-roles": json.dumps({"worker": 2})},
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {"schedulerName": MINE, "containers": [container], **spec},
        "status": {"phase": phase, "podIP": "10.0.0.1"},
    }


def node(name: str = "n", *, version: int = 1, **spec: Any) -> Any:
    return {
        "metadata": {"name": name, "resourceVersion": str(version), "labels": {"a": "b"}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "2"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [
        ("1", 1000),
        (8, 8000),
        (0.5, 500),
        ("500m", 500),
        ("1.5", 1500),
        ("100n", 1),
        ("1500u", 2),
        ("1k", 1_000_000),
        ("4Gi", 4 * 1024**3 * 1000),
        ("1e3", 1_000_000),
        ("1E3", 1_000_000),
        ("1E", 10**18 * 1000),
        ("4Ei", 4 * 1024**6 * 1000),
    ],
)
def test_amounts_are_read_exactly(text: str | float, thousandths: int):
    assert read_amount(text) == thousandths


def asks(**amounts: str) -> dict[str, Any]:
    return {"resources": {"requests": amounts}}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [asks(cpu="1"), asks(cpu="2")]}, 3000),
        ({"containers": [asks(cpu="1")], "initContainers": [asks(cpu="5"), asks(cpu="2")]}, 5000),
        # A sidecar container (restartPolicy Always) counts with containers and later init containers.
        (
            {
                "containers": [asks(cpu="1")],
                "initContainers": [{**asks(cpu="2"), "restartPolicy": "Always"}, asks(cpu="4")],
            },
            6000,
        ),
        (
            {
                "containers": [asks(cpu="3")],
                "initContainers": [asks(cpu="4"), {**asks(cpu="2"), "restartPolicy": "Always"}],
            },
            5000,
        ),
        ({"containers": [asks(cpu="1")], "overhead": {"cpu": "250m"}}, 1250),
        ({"containers": [asks(cpu="1")], "resources": {"requests": {"cpu": "7"}}}, 7000),
    ],
)
def test_requests_are_those_of_kube_scheduler(spec: dict[str, Any], cpu: int):
    assert requests_of(spec) == {"cpu": cpu, "pods": 1000}


def test_member_has_its_needs():
    term = {"matchExpressions": [{"key": "z", "operator": "In", "values": ["1"]}]}
    required = {"nodeSelectorTerms": [term]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    member = read_member(
        pod(affinity=affinity, priority=7, tolerations=[{"operator": "Exists"}]), MINE
    )
    assert isinstance(member, Member)
    assert (member.role, member.roles, member.priority) == ("worker", (("worker", 2),), 7)
    assert member.stage is Stage.PENDING
    assert dict(member.wants.amounts)["cpu"] == 500


def test_stage_of_a_member_follows_its_pod():
    going = pod()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:09Z"
    for document, stage in (
        (pod(nodeName="n", phase="Running"), Stage.BOUND),
        (pod(nodeName="n", phase="Succeeded"), Stage.SUCCEEDED),
        # The scheduler's name does not matter once the pod is bound.
        (pod(nodeName="n", schedulerName="default-scheduler"), Stage.BOUND),
        (pod(phase="Failed"), None),
        (pod(schedulingGates=[{"name": "x"}]), None),
        (going, None),
    ):
        assert getattr(read_member(document, MINE), "stage", None) is stage, document


@pytest.mark.parametrize(
    "roles", ["[]", "{}", '{"worker": true}', '{"worker": 1.5}', '{"worker": 99999}']
)
def test_invalid_roles_are_refused(roles: str):
    document = pod()
    document["metadata"]["annotations"]["dljob.io/gang-roles"] = roles
    wrong = read_member(document, MINE)
    assert isinstance(wrong, Wrong)
    assert "dljob.io/gang-roles" in wrong.message


def test_cordoned_or_unready_node_repels():
    assert read_traits(node()).taints == ()
    cordoned = read_traits(node(unschedulable=True))
    assert [taint.key for taint in cordoned.taints] == ["node.kubernetes.io/unschedulable"]
    silent = node()
    silent["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    assert [taint.key for taint in read_traits(silent).taints] == ["node.kubernetes.io/not-ready"]


def test_book_sums_up_pods_and_nodes():
    changes: list[int] = []
    book = Book(MINE, changed=lambda: changes.append(1))
    book.nodes.show(node())
    book.pods.show(pod("one", nodeName="n", version=2))
    book.pods.show(pod("two", version=3))
    plain = pod("plain", nodeName="n", version=4)
    del plain["metadata"]["labels"]
    book.pods.show(plain)
    world = book.world()
    assert world is book.world()
    assert world.free["n"]["cpu"] == 3000
    assert world.free["n"]["pods"] == 8000
    (members,) = world.gangs.values()
    assert [each.name.name for each in members] == ["one", "two"]
    assert world.tenants["n"] == {tenant_of(members[0].gang)}
    count = len(changes)
    # Heartbeats and pod statuses are no news.
    book.nodes.show(node(version=5))
    book.pods.show(pod("two", version=6))
    assert len(changes) == count
    book.pods.show(pod("one", nodeName="n", phase="Succeeded", version=7))
    book.pods.show_end(plain)
    assert book.world().free["n"]["cpu"] == 4000
    assert book.world().tenants["n"] == frozenset()
    book.nodes.show_end(node(version=8))
    assert not book.world().machines


def test_unreadable_documents_are_skipped_alone():
    book = Book(MINE)
    book.nodes.show(node())
    broken = node("broken", version=2)
    broken["status"]["allocatable"]["cpu"] = "many"
    book.nodes.show(broken)
    wrong = pod("wrong", version=3)
    del wrong["metadata"]["annotations"]
    book.pods.show(wrong)
    assert set(book.world().machines) == {"n"}
    assert set(book.wrong) == {Name("ns", "wrong")}
    book.pods.show_end(wrong)
    assert not book.wrong

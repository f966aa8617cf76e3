"""Free room on nodes and needs of pods, from documents."""

import asyncio
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dljob.control.situation.ports import Entry
from dljob.control.situation.status import Booking, Status
from dljob.core.model import JobId, Node, NodeName, Placement
from dljob.kube.client import ApiServer
from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.nodes.other_pods import OtherPods
from dljob.operator.nodes.requests import read_asks
from dljob.operator.nodes.room import REFUSED_S, UNBOUND, Room
from tests.builders import make_job
from tests.operator.leaders import Calls
from tests.servers.nodes import make_node

JOB = Name("team", "job")
ID = JobId("team/job")
N1, N2 = NodeName("n1"), NodeName("n2")
REFUSAL = {
    "status": {
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
        ]
    }
}
HERE = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}


def make_pod(name, *, node="", cpu="1", job="", claims=(), **rest):
    container = {"name": "trainer", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    volumes = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
    return {
        "metadata": {
            "namespace": "team",
            "name": name,
            "resourceVersion": "1",
            "labels": {"dljob.io/job": job} if job else {},
        },
        "spec": {"containers": [container], "nodeName": node, "volumes": volumes, **rest},
    }


class World:
    """Mirrors that a test fills, and two nodes with 64 CPUs each."""

    def __init__(self, **pod):
        self.mirrors = Mirrors()
        self.version = 1
        self.now = 0.0
        self.documents = {name: make_node(name, labels={"disk": "ssd"}) for name in (N1, N2)}
        self.asks = read_asks(make_pod("asks", **{"cpu": "4", **pod}), N1)
        self.room = Room(self.mirrors, lambda _: self.asks, clock=lambda: self.now)
        self.entry = Entry(replace(make_job(), id=ID), 1, Status(submitted_at=0.0))

    def show(self, pod):
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.mirrors.pods.show(pod)

    def others(self, name, node, cpu):
        pod = make_pod(name, node=node, cpu=cpu) if node else None
        self.mirrors.others.show_pod(Name("else", name), pod)

    def settle(self, changed=(JOB,)):
        there: Any = [(document, Node.of(name, 4)) for name, document in self.documents.items()]
        return self.room.settle({ID: self.entry}, changed, nodes=there)

    def free(self):
        return [node.free["cpu"] // 1000 for node in self.settle()]

    def decide(self, *nodes, booked=()):
        placement = Placement.of(dict.fromkeys(nodes, (0,))) if nodes else None
        pods = tuple(Booking(node, 1) for node in booked)
        self.entry = replace(
            self.entry, status=replace(self.entry.status, placement=placement, pods=pods)
        )

    def allowed(self, changed=(JOB,)):
        self.settle(changed)
        return self.room.needs[ID].nodes

    @property
    def needs(self):
        self.settle()
        return self.room.needs[ID]


def test_other_pods_take_room_until_they_end():
    world = World()
    world.others("a", "n1", "10")
    world.others("b", "n2", "20")
    assert world.free() == [54, 44]
    world.others("a", "", "")
    assert world.free() == [64, 44]


def test_pod_counts_once_from_its_decision_to_its_end():
    world = World()
    world.decide(N1)
    assert world.free() == [60, 64]
    world.decide(N1, booked=(N1,))
    assert world.free() == [60, 64]
    world.show(make_pod("job-1", job="job", cpu="4"))
    assert world.free() == [60, 64]
    world.show(make_pod("job-1", job="job", cpu="4", node="n1"))
    assert world.free() == [60, 64]
    world.decide(booked=(N1,))
    assert world.free() == [60, 64]
    world.show(make_pod("job-1", job="job", cpu="4", node="n1") | {"status": {"phase": "Failed"}})
    assert world.free() == [64, 64]


@pytest.mark.parametrize(
    ("pod", "nodes"),
    [
        ({"nodeSelector": {"kubernetes.io/hostname": "n2"}}, {"n2"}),
        ({"nodeSelector": {"disk": "tape"}}, set()),
        ({"nodeSelector": {"disk": "ssd"}}, None),
    ],
)
def test_selectors_limit_the_nodes(pod, nodes):
    assert World(**pod).allowed() == nodes


def test_taint_repels_pods_without_a_toleration():
    taint = {"key": "team", "value": "red", "effect": "NoSchedule"}
    world = World()
    world.documents[N1] = make_node(N1, taints=[taint])
    assert world.allowed() == {"n2"}
    assert world.needs.refusals == (
        ("with the taint team=red:NoSchedule, which it does not tolerate", 1),
    )
    tolerant = World(tolerations=[{"key": "team", "operator": "Exists"}])
    tolerant.documents[N1] = make_node(N1, taints=[taint])
    assert tolerant.allowed() is None


def test_bound_volume_limits_the_nodes():
    world = World(claims=["data"])
    there = world.mirrors.others
    assert world.allowed() == set()
    there.show_claim(Name("team", "data"), {"spec": {}})
    assert world.allowed() is None
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [HERE]}]}}
    there.show_volume(Name("", "pv"), {"spec": {"nodeAffinity": affinity}})
    there.show_claim(Name("team", "data"), {"spec": {"volumeName": "pv"}})
    assert world.allowed() == {"n2"}
    there.show_volume(Name("", "pv"), {"spec": {}})
    assert world.allowed() is None


def test_node_refused_by_kube_scheduler_is_avoided_for_a_while():
    world = World()
    world.decide(N1, booked=(N1,))
    world.show(make_pod("job-1", job="job") | REFUSAL)
    world.settle()
    assert world.allowed() == {"n2"}
    assert world.needs.refusals == (("that kube-scheduler refused recently (no)", 1),)
    world.decide()
    world.now = REFUSED_S + 1
    assert world.allowed() is None


def test_refusal_for_an_unbound_volume_ends_with_its_binding():
    world = World(claims=["data"])
    there = world.mirrors.others
    claim: Any = {"spec": {"volumeName": "pv"}, "status": {"phase": "Pending"}}
    there.show_claim(Name("team", "data"), claim)
    world.decide(N1, booked=(N1,))
    said = f"0/2 nodes are available: pod has {UNBOUND}. not found"
    condition = {**REFUSAL["status"]["conditions"][0], "message": said}
    world.show(
        make_pod("job-1", job="job", claims=["data"]) | {"status": {"conditions": [condition]}}
    )
    world.settle()
    assert world.allowed() == {"n2"}
    there.show_claim(Name("team", "data"), claim | {"status": {"phase": "Bound"}})
    assert world.allowed(changed=()) is None
    # The pod still shows kube-scheduler's old refusal.
    assert world.allowed() is None
    assert world.allowed(changed=()) is None


def test_unready_node_is_not_avoided_for_a_refusal():
    world = World()
    node = make_node(N1)
    node["metadata"]["resourceVersion"] = "1"
    node["status"]["conditions"][0]["status"] = "False"
    world.mirrors.nodes.show(node)
    world.decide(N1, booked=(N1,))
    world.show(make_pod("job-1", job="job") | REFUSAL)
    world.settle()
    assert world.allowed() is None
    ready = make_node(N1)
    ready["metadata"]["resourceVersion"] = "2"
    world.mirrors.nodes.show(ready)
    # The job itself has no news.
    world.settle(changed=())
    assert world.allowed(changed=()) == {"n2"}


def test_node_that_accepts_the_pod_is_not_avoided():
    world = World()
    world.decide(N1, booked=(N1,))
    world.show(make_pod("job-1", job="job") | REFUSAL)
    world.settle()
    world.show(make_pod("job-1", job="job", node="n1"))
    assert world.allowed() is None


def test_host_port_is_for_one_pod():
    ports = [{"containerPort": 80, "hostPort": 8080}]
    world = World(containers=[{"name": "trainer", "image": "x", "ports": ports}])
    world.others("a", "n1", "1")
    taken = make_pod("b", node="n2", containers=[{"name": "x", "image": "x", "ports": ports}])
    taken["spec"]["nodeName"] = "n2"
    world.mirrors.others.show_pod(Name("else", "b"), taken)
    needs = world.needs
    assert [needs.fits(node.free) for node in world.settle()] == [True, False]


class Metadata(dict[str, Any]):
    """A pod's metadata; weak references count the remembered pods."""


class PagedServer(ApiServer):
    """Serves pages of other owners' pods, and counts those that are still referenced."""

    def __init__(self, pages: int, size: int) -> None:
        self.pages_there = pages
        self.size = size
        self.alive: weakref.WeakValueDictionary[int, Metadata] = weakref.WeakValueDictionary()
        self.made = 0
        self.most_alive = 0

    async def _ask(self, method: str, path: str, **rest: Any) -> Any:
        self.most_alive = max(self.most_alive, len(self.alive))
        query: Mapping[str, str] = rest["query"]
        number = int(query.get("continue", "0"))
        pods = [self._make(f"{number}-{each}") for each in range(self.size)]
        more = {"continue": str(number + 1)} if number + 1 < self.pages_there else {}
        return {"items": pods, "metadata": {"resourceVersion": "7", **more}}

    def _make(self, name: str) -> Any:
        pod = make_pod(name, node="n1")
        self.made += 1
        self.alive[self.made] = pod["metadata"] = Metadata(pod["metadata"])
        return pod


def test_other_pods_are_not_kept_whole():
    mirrors = Mirrors()
    server = PagedServer(pages=20, size=50)
    other_pods = OtherPods(server, mirrors)
    woken = Calls()
    mirrors.listen(woken)
    pods = other_pods._followed[0]
    asyncio.run(other_pods._list(pods))
    assert mirrors.others.pods.on("n1")["cpu"] == 1_000_000
    assert server.most_alive <= 2 * server.size
    assert other_pods._versions[pods].version == "7"
    woken.clear()
    asyncio.run(other_pods._list(pods))
    assert not woken
    server.pages_there = 3
    asyncio.run(other_pods._list(pods))
    assert (woken, mirrors.others.pods.on("n1")["cpu"]) == (["news, burst=True"], 150_000)

"""What is free on nodes and what pods need of them, from documents; without a cluster."""

from dataclasses import replace
from typing import Any

import pytest

from dlcontrol.platforms import Entry
from dlcontrol.records import Booking, Status
from dlcore.model import JobId, Node, NodeName, Placement
from dloperator.asking import read_asks
from dloperator.lodging import REFUSED_S, Lodging
from dloperator.mirror import Mirrors, Name
from dloperator.neighbours import Neighbours
from tests.builders import make_job
from tests.servers.nodes import make_node

JOB = Name("team", "job")
ID = JobId("team/job")
N1, N2 = NodeName("n1"), NodeName("n2")


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
    """Mirrors that a test fills, and the account of two nodes with 64 CPUs each."""

    def __init__(self, **pod):
        self.mirrors = Mirrors()
        self.version = 1
        self.now = 0.0
        self.documents = {name: make_node(name, labels={"disk": "ssd"}) for name in (N1, N2)}
        self.asks = read_asks(make_pod("asks", **{"cpu": "4", **pod}), N1)
        self.lodging = Lodging(self.mirrors, lambda _: self.asks, clock=lambda: self.now)
        self.entry = Entry(replace(make_job(), id=ID), 1, Status(submitted_at=0.0))

    def show(self, pod):
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.mirrors.pods.show(pod)

    def others(self, name, node, cpu):
        pod = make_pod(name, node=node, cpu=cpu) if node else None
        self.mirrors.neighbourhood.show_pod(Name("else", name), pod)

    def settle(self):
        there = [(document, Node.of(name, 4)) for name, document in self.documents.items()]
        return self.lodging.settle({ID: self.entry}, [JOB], there)

    def free(self):
        return [node.free["cpu"] // 1000 for node in self.settle()]

    def decide(self, *nodes, booked=()):
        placement = Placement.of(dict.fromkeys(nodes, (0,))) if nodes else None
        pods = tuple(Booking(node, 1) for node in booked)
        self.entry = replace(
            self.entry, status=replace(self.entry.status, placement=placement, pods=pods)
        )

    def allowed(self):
        return self.needs.nodes

    @property
    def needs(self):
        self.settle()
        return self.lodging.needs[ID]


def test_what_others_ask_is_not_free_until_they_have_ended():
    world = World()
    world.others("a", "n1", "10")
    world.others("b", "n2", "20")
    assert world.free() == [54, 44]
    world.others("a", "", "")
    assert world.free() == [64, 44]


def test_a_pod_counts_from_when_it_is_decided_until_it_is_gone_and_once_only():
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


def test_nodes_are_the_same_values_until_something_changes():
    world = World()
    first, second = world.settle(), world.settle()
    assert [a.free is b.free for a, b in zip(first, second, strict=True)] == [True, True]
    needs = world.needs
    world.documents[N1] = make_node(N1, labels={"disk": "ssd"})
    assert world.needs is needs


@pytest.mark.parametrize(
    ("pod", "nodes"),
    [
        ({"nodeSelector": {"kubernetes.io/hostname": "n2"}}, {"n2"}),
        ({"nodeSelector": {"disk": "tape"}}, set()),
        ({"nodeSelector": {"disk": "ssd"}}, None),
    ],
)
def test_selectors_say_where_a_pod_may_be(pod, nodes):
    assert World(**pod).allowed() == nodes


def test_a_taint_keeps_off_whoever_does_not_tolerate_it():
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


def test_a_bound_volume_binds_its_pod_and_an_unbound_one_does_not():
    world = World(claims=["data"])
    there = world.mirrors.neighbourhood
    assert world.allowed() == set()
    there.show_claim(Name("team", "data"), {"spec": {}})
    assert world.allowed() is None
    term = {
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]
    }
    affinity = {"required": {"nodeSelectorTerms": [term]}}
    there.show_volume(Name("", "pv"), {"spec": {"nodeAffinity": affinity}})
    there.show_claim(Name("team", "data"), {"spec": {"volumeName": "pv"}})
    assert world.allowed() == {"n2"}
    there.show_volume(Name("", "pv"), {"spec": {}})
    assert world.allowed() is None


def test_a_node_that_kube_scheduler_refused_is_left_out_for_some_time():
    world = World()
    world.decide(N1, booked=(N1,))
    refusal = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no",
    }
    world.show(make_pod("job-1", job="job") | {"status": {"conditions": [refusal]}})
    world.settle()
    assert world.allowed() == {"n2"}
    assert world.needs.refusals == (("that kube-scheduler refused lately (no)", 1),)
    world.decide()
    world.now = REFUSED_S + 1
    assert world.allowed() is None


def test_a_port_of_a_node_is_for_one_pod():
    ports = [{"containerPort": 80, "hostPort": 8080}]
    world = World(containers=[{"name": "trainer", "image": "x", "ports": ports}])
    world.others("a", "n1", "1")
    taken = make_pod("b", node="n2", containers=[{"name": "x", "image": "x", "ports": ports}])
    taken["spec"]["nodeName"] = "n2"
    world.mirrors.neighbourhood.show_pod(Name("else", "b"), taken)
    needs = world.needs
    assert [needs.fits(node.free) for node in world.settle()] == [True, False]


def test_pods_of_jobs_that_another_operator_runs_count_as_those_of_others():
    mirrors = Mirrors()
    nobody: Any = None
    neighbours = Neighbours(nobody, mirrors, ("team",))
    ours = make_pod("ours", node="n1", job="job")
    theirs = make_pod("theirs", node="n1", job="job")
    for namespace, pod in (("team", ours), ("elsewhere", theirs)):
        pod["metadata"]["namespace"] = namespace
        neighbours._see(neighbours._followed[0], {"type": "ADDED", "object": pod})
    assert mirrors.neighbourhood.pods.on("n1")["cpu"] == 1000

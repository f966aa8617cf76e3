"""The reading of Workloads for decisions, and the writes for Kueue, with a played API server."""

import asyncio
import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Trust
from dljob.core.model import Checkpoint, JobId, Phase
from dljob.core.placement.limits import NamespaceLimits
from dljob.core.placement.needs import Needs
from dljob.kube.client import ApiServer, Rejected
from dljob.kube.names import Name
from dljob.kube.resources import Resource
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.kueue.layers import Layer
from dljob.operator.kueue.quotas import KueueSettings, Quotas, find_boost, read_demand
from dljob.operator.kueue.workloads import BOOST, QUEUE_LABEL, priority_of
from tests.control.scenes import Cast, make_scene, run, running
from tests.control.scenes import cast as cast_job
from tests.operator.manifests import make_manifest
from tests.servers.api import Json

TEAM, JOB = "team", JobId("team/net")
LOW, HIGH = Layer(0, 1), Layer(1, 2)
IDLE_S = 60.0
REFUSED = str(Rejected(403, {"message": "no such queue"}))


class Server:
    """Takes writes of Workloads and shows them to the mirrors, as an API server and its watch."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self._versions = itertools.count(100)
        self.refusal = ""
        self.asked: list[tuple[str, str]] = []

    def put(self, document: Json) -> Json:
        document = copy.deepcopy(document)
        version = str(next(self._versions))
        document["metadata"]["resourceVersion"] = version
        document["metadata"].setdefault("uid", f"uid-{version}")
        self._mirrors.workloads.show(document)
        return document

    async def create(self, _: Resource, document: Json, namespace: str) -> Json:
        assert namespace == TEAM
        self.asked.append(("create", document["metadata"]["name"]))
        if self.refusal:
            raise Rejected(403, {"message": self.refusal})
        return self.put(document)

    async def get(self, _: Resource, name: str) -> Json:
        return {"value": {"high": 1000}[name]}

    async def merge(
        self, _: Resource, name: str, *, changes: Json, namespace: str, sub: str
    ) -> Json:
        assert namespace == TEAM
        known = self._mirrors.workloads.get(Name(namespace, name))
        assert known is not None
        assert changes["metadata"]["resourceVersion"] == known["metadata"]["resourceVersion"]
        if self.refusal:
            raise Rejected(403, {"message": self.refusal})
        if not sub:
            annotations = changes["metadata"]["annotations"]
            self.asked.append(("boost", f"{name} {annotations[BOOST]}"))
            return self.put(
                {**known, "metadata": {**known["metadata"], "annotations": annotations}}
            )
        kinds = [each["type"] for each in changes["status"]["conditions"]]
        self.asked.append(("merge", f"{name} {kinds[-1]}"))
        return self.put({**known, "status": {**known["status"], **changes["status"]}})

    async def delete(self, _: Resource, name: str, namespace: str, *, uid: str) -> None:
        known = self._mirrors.workloads.get(Name(namespace, name))
        assert known is not None
        assert uid == known["metadata"]["uid"]
        self.asked.append(("delete", name))


class Desk:
    """Jobs in a queue, and the quotas of the operator."""

    def __init__(self, **labels: str) -> None:
        self.now = 1000.0
        self.mirrors = Mirrors()
        self.server = Server(self.mirrors)
        self.show_job("net", labels or {QUEUE_LABEL: "q"})
        for name, pool in (("n0", "x"), ("n1", "x"), ("n2", "y")):
            metadata = {"name": name, "resourceVersion": "2", "labels": {"pool": pool}}
            self.mirrors.nodes.show({"metadata": metadata, "spec": {}, "status": {}})
        self.show_flavor("f", pool="x")
        self.quotas = self.make_quotas()
        self.supposed = 2
        """The GPUs that the policy would give the job."""
        self.suppose: Callable[[Scene], dict[JobId, int]] = lambda _: {JOB: self.supposed}

    def show_job(self, name: str, labels: dict[str, str]) -> None:
        job = make_manifest(name)
        job["metadata"] |= {
            "namespace": TEAM,
            "uid": f"1-{name}",
            "resourceVersion": "1",
            "labels": labels,
        }
        self.mirrors.jobs.show(job)

    def show_flavor(self, name: str, version: str = "3", **labels: str) -> None:
        flavor = {"metadata": {"name": name, "resourceVersion": version}}
        self.mirrors.flavors.show({**flavor, "spec": {"nodeLabels": labels}})

    def make_quotas(self, **settings: Any) -> Quotas:
        return Quotas(
            cast(ApiServer, self.server),
            self.mirrors,
            settings=KueueSettings(enabled=True, idle_seconds=IDLE_S, **settings),
            limits=NamespaceLimits(max_priority={"*": 0}),
            clock=lambda: self.now,
        )

    def workload(self, name: str) -> Mapping[str, Any]:
        known = self.mirrors.workloads.get(Name(TEAM, name))
        assert known is not None
        return known

    def admit(self, *layers: Layer, evicted: bool = False, flavor: str = "f") -> None:
        for low, high in layers:
            known = self.workload(f"net-{low}-{high}")
            true = ["QuotaReserved", "Admitted", *(["Evicted"] if evicted else [])]
            said = {"status": "True", "reason": "Preempted", "message": "Kueue has decided"}
            conditions = [{"type": kind, **said} for kind in true]
            flavors = {"flavors": {"nvidia.com/gpu": flavor}}
            admission = {"podSetAssignments": [flavors]}
            self.server.put({**known, "status": {"conditions": conditions, "admission": admission}})

    def refuse(self, workload: str) -> None:
        known = self.workload(workload)
        waits = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "full"}
        self.server.put({**known, "status": {"conditions": [waits]}})

    def scene(self, gpus: int = 0, *others: Cast, **job: Any) -> Scene:
        """The scene after a cycle; the job has GPUs 0 and following of the first node."""
        held = tuple(range(gpus))
        usual: dict[str, Any] = {
            "checkpoint": Checkpoint(trusted=True),
            "options": (1, 2),
            "requested": 2,
        }
        there = (
            cast_job(
                JOB, {"n0": held}, n0=running(run(2, *held)), phase=Phase.RUNNING, **(usual | job)
            )
            if gpus
            else cast_job(JOB, **(usual | job))
        )
        scene = make_scene(there, *others)
        return replace(scene, ceilings=self.quotas.read(scene.entries))

    def settle(self, scene: Scene) -> list[tuple[str, str]]:
        """One look at a scene; return the writes."""
        before = len(self.server.asked)

        looks = 0

        def see() -> Scene:
            nonlocal looks
            looks += 1
            return scene

        async def look() -> None:
            self.quotas.note_change()
            looking = asyncio.create_task(self.quotas.run(see, self.suppose))
            # The second look begins when the writes of the first are done.
            while looks < 2:
                await asyncio.sleep(0.01)
            looking.cancel()

        asyncio.run(look())
        return self.server.asked[before:]


def test_layers_are_asked_for_one_after_the_other():
    desk = Desk()
    assert desk.settle(desk.scene()) == [("create", "net-0-1")]
    assert desk.settle(desk.scene()) == []
    desk.admit(LOW)
    assert desk.settle(desk.scene()) == [("create", "net-1-2")]
    assert desk.scene().ceilings[JOB].gpus == 1


def test_steps_that_the_policy_would_not_use_are_not_asked_for():
    desk = Desk()
    desk.supposed = 1
    desk.settle(desk.scene())
    desk.admit(LOW)
    assert desk.settle(desk.scene()) == []
    desk.now += 1.0
    desk.supposed = 2
    assert desk.settle(desk.scene()) == [("create", "net-1-2")]


def test_job_without_the_label_is_left_alone():
    desk = Desk(team="a")
    assert desk.scene().ceilings == {}
    assert desk.settle(desk.scene()) == []


def test_priority_is_the_one_that_is_granted():
    desk = Desk()
    desk.settle(desk.scene(priority=7))
    workload = desk.workload("net-0-1")
    assert workload["spec"]["priority"] == 0


def test_label_of_a_priority_class_is_the_base_of_all_layers():
    desk = Desk(**{QUEUE_LABEL: "q", "kueue.x-k8s.io/priority-class": "high"})
    for layer in (LOW, HIGH):
        desk.settle(desk.scene())
        desk.admit(layer)
    found = desk.mirrors.workloads.objects.values()
    assert [each["spec"]["priority"] for each in found] == [1000, priority_of(1000, HIGH, 1)]


def test_refused_request_is_repeated_with_a_pause(caplog):
    desk = Desk()
    desk.server.refusal = "no such queue"
    assert desk.settle(desk.scene()) == [("create", "net-0-1")]
    assert desk.scene().ceilings[JOB].told.endswith("yet: " + REFUSED)
    assert desk.settle(desk.scene()) == []
    desk.now += 5.0
    desk.server.refusal = ""
    assert desk.settle(desk.scene()) == [("create", "net-0-1")]
    assert [each.message for each in caplog.records if "no such queue" in each.message]


def test_next_job_of_the_name_does_not_wait_for_the_refusal_of_the_former():
    desk = Desk()
    desk.server.refusal = "no such queue"
    desk.settle(desk.scene())
    desk.server.refusal = ""
    desk.settle(replace(desk.scene(), entries={}, ceilings={}))
    assert desk.settle(desk.scene()) == [("create", "net-0-1")]


def admitted_desk() -> Desk:
    desk = Desk()
    for layer in (LOW, HIGH):
        desk.settle(desk.scene())
        desk.admit(layer)
    return desk


def test_training_is_reported_and_eviction_cleared():
    desk = admitted_desk()
    ready = [("merge", "net-0-1 PodsReady"), ("merge", "net-1-2 PodsReady")]
    assert desk.settle(desk.scene(2)) == ready
    desk.admit(HIGH, evicted=True)
    assert desk.settle(desk.scene(2)) == [], "the job has not shrunk"
    assert desk.settle(desk.scene(1)) == [("merge", "net-1-2 Requeued")]
    assert desk.settle(desk.scene(1)) == []


def test_layer_that_a_cycle_under_way_counts_on_is_kept():
    desk = Desk()
    desk.settle(desk.scene())
    desk.admit(LOW)
    before = desk.scene(1)
    desk.settle(before)
    desk.admit(HIGH)
    # A cycle reads both layers and decides to grow. Before its scene is there, Kueue takes one back.
    desk.quotas.read(before.entries)
    desk.admit(HIGH, evicted=True)
    assert [what for what in desk.settle(before) if "net-1-2" in what[1]] == []
    assert ("merge", "net-1-2 Requeued") in desk.settle(desk.scene(1))


def test_layers_of_a_finished_job_go_once():
    desk = admitted_desk()
    over = desk.scene(cancelled=True)
    assert sorted(desk.settle(over)) == [("delete", "net-0-1"), ("delete", "net-1-2")]
    assert desk.settle(over) == [], "the watch has not shown the end yet"


def test_unused_quota_is_given_back_and_asked_for_again():
    desk = admitted_desk()
    desk.supposed = 1
    desk.settle(desk.scene(1))
    desk.now += IDLE_S + 1
    assert desk.settle(desk.scene(1)) == [], "a decision may count on it"
    assert desk.settle(desk.scene(1)) == [("delete", "net-1-2")]
    desk.now += IDLE_S + 1
    desk.supposed = 2
    # The watch shows the end of the former Workload at last.
    desk.mirrors.workloads.show_end(desk.workload("net-1-2"))
    assert desk.settle(desk.scene(1)) == [("create", "net-1-2")]


@pytest.mark.parametrize("why", ["full", "on hold"])
def test_job_whose_quota_is_refused_keeps_no_other_from_growing(why):
    desk = Desk()
    rival = JobId(f"{TEAM}/rival")
    desk.show_job("rival", {QUEUE_LABEL: "q"})
    waiting = cast_job(rival, checkpoint=Checkpoint(trusted=True), options=(1, 2))

    def prefer_rival(scene: Scene) -> dict[JobId, int]:
        return {rival: 2} if scene.ceilings[rival].gpus else {JOB: scene.ceilings[JOB].gpus}

    desk.suppose = prefer_rival
    asked = desk.settle(desk.scene(0, waiting))
    assert sorted(asked) == [("create", "net-0-1"), ("create", "rival-0-1")]
    desk.admit(LOW)
    if why == "full":
        desk.refuse("rival-0-1")
    else:
        held = desk.workload("rival-0-1")
        waits = {"type": "QuotaReserved", "status": "False", "reason": "Inadmissible"}
        conditions = [{**waits, "message": "ClusterQueue b is on hold"}]
        desk.server.put({**held, "status": {"conditions": conditions}})
    desk.now += 1.0
    assert ("create", "net-1-2") in desk.settle(desk.scene(1, waiting))


@pytest.mark.parametrize("checkpoint", [Checkpoint(trusted=True), Checkpoint()])
def test_quota_on_which_a_job_does_not_start_is_given_back(checkpoint):
    desk = Desk()
    desk.suppose = lambda _: {}
    options: dict[str, Any] = {"options": (1,), "requested": 1, "checkpoint": checkpoint}

    def look() -> list[tuple[str, str]]:
        return desk.settle(desk.scene(message="waits: no node has room", **options))

    assert look() == [("create", "net-0-1")]
    desk.now += IDLE_S + 1
    assert look() == [], "it waits for Kueue"
    desk.admit(LOW)
    assert look() == []
    desk.now += IDLE_S + 1
    assert look() == [], "a decision may count on it"
    assert look() == [("delete", "net-0-1")]
    assert desk.scene(**options).ceilings[JOB].told == (
        "queue q has the quota back, on which the job did not start: no node has room"
    )
    desk.mirrors.workloads.show_end(desk.workload("net-0-1"))
    desk.now += 1.0
    assert look() == []
    desk.suppose = lambda _: {JOB: 1}
    desk.now += 1.0
    assert look() == [("create", "net-0-1")]


def test_job_that_is_set_aside_asks_for_nothing():
    desk = Desk()
    aside = desk.scene(problem="the spec cannot be read")
    assert desk.settle(aside) == []
    desk.settle(desk.scene())
    assert desk.settle(desk.scene(problem="the spec cannot be read")) == [("delete", "net-0-1")]


def test_layer_on_other_nodes_is_given_back_and_asked_for_after_a_while():
    desk = Desk()
    desk.show_flavor("g", pool="y")
    desk.settle(desk.scene())
    desk.admit(LOW)
    desk.settle(desk.scene(1))
    desk.admit(HIGH, flavor="g")
    assert ("delete", "net-1-2") in desk.settle(desk.scene(1))
    desk.mirrors.workloads.show_end(desk.workload("net-1-2"))
    told = desk.scene(1).ceilings[JOB].told
    assert told.endswith("Kueue admits layer 1-2 on other nodes than the layers below it")
    desk.now += 1.0
    assert desk.settle(desk.scene(1)) == []
    desk.now += IDLE_S
    assert desk.settle(desk.scene(1)) == [("create", "net-1-2")]
    desk.admit(HIGH)
    desk.settle(desk.scene(1))
    assert "other nodes" not in desk.scene(1).ceilings[JOB].told


def test_labels_of_a_flavor_hold_as_soon_as_they_change():
    desk = Desk()
    desk.show_flavor("g", pool="y")
    desk.settle(desk.scene())
    desk.admit(LOW)
    desk.settle(desk.scene(1))
    desk.admit(HIGH, flavor="g")
    assert desk.scene(1).ceilings[JOB].gpus == 1
    desk.show_flavor("g", "4", pool="x")
    assert desk.scene(1).ceilings[JOB].gpus == 2


def test_next_leader_counts_on_the_layers_of_the_former():
    desk = admitted_desk()
    desk.quotas = desk.make_quotas()
    assert desk.scene(1).ceilings[JOB].gpus == 2
    desk.supposed = 1
    assert ("delete", "net-1-2") not in desk.settle(desk.scene(1)), "it was not idle for long"


def test_refused_clearing_is_said():
    desk = admitted_desk()
    desk.settle(desk.scene(2))
    desk.admit(HIGH, evicted=True)
    desk.server.refusal = "no right"
    desk.settle(desk.scene(1))
    told = desk.scene(1).ceilings[JOB].told
    assert told.endswith("layer 1-2 is not cleared yet: no right"), told
    desk.server.refusal = ""
    desk.now += 5.0
    desk.settle(desk.scene(1))
    assert "cleared" not in desk.scene(1).ceilings[JOB].told


@pytest.mark.parametrize(
    ("gpus", "live", "options"),
    [
        (0, Trust.UNTRIED, (2,)),
        (4, Trust.UNTRIED, (4,)),
        (3, Trust.UNTRIED, (2,)),
        (4, Trust.FAILED, (4,)),
        (4, Trust.CONFIRMED, (1, 2, 4)),
        (0, Trust.CONFIRMED, (1, 2, 4)),
    ],
)
def test_job_without_a_checkpoint_has_steps_once_it_changes_live(gpus, live, options):
    holds = {"n0": range(gpus)} if gpus else None
    job = cast_job(JOB, holds, checkpoint=Checkpoint(), options=(1, 2, 4), requested=2, live=live)
    demand = read_demand(job.entry, queue="q")
    assert demand.options == options
    assert demand.is_whole == (live is not Trust.CONFIRMED)


def test_work_that_a_stop_loses_is_published_in_powers_of_two():
    desk = admitted_desk()
    desk.settle(desk.scene(2))
    unsaved: dict[str, Any] = {"checkpoint": Checkpoint(), "pace": 2.0, "live": Trust.CONFIRMED}

    def boosts(most: int, **status: Any) -> int:
        [entry] = (scene := desk.scene(2, **unsaved | status)).entries.values()
        return find_boost(entry, scene, most=most)

    assert boosts(100, iteration=30) == 8
    assert boosts(10, iteration=3000) == 8
    assert boosts(0, iteration=3000) == 0
    assert boosts(100, iteration=30, checkpoint=Checkpoint(trusted=True)) == 0
    assert boosts(100, iteration=30, pace=0.0) == 0
    desk.quotas = desk.make_quotas(most_boost=100)
    assert desk.settle(desk.scene(2, iteration=30, **unsaved)) == [("boost", "net-0-1 8")]
    assert desk.settle(desk.scene(2, iteration=31, **unsaved)) == []
    desk.quotas = desk.make_quotas()
    idle = desk.settle(desk.scene(2, iteration=3000, **unsaved))
    assert idle == [], "nothing is published, and the chart grants no right to"


def test_flavor_binds_the_nodes_of_a_job():
    desk = admitted_desk()
    ceilings = desk.scene().ceilings
    own = Needs((("cpu", 1),), frozenset({"n1", "n2"}), (("tainted", 1),))
    free, bound = (desk.quotas.narrow(needs, ceilings)[JOB] for needs in ({}, {JOB: own}))
    assert free.nodes == frozenset({"n0", "n1"})
    assert (bound.amounts, bound.nodes) == (own.amounts, frozenset({"n1"}))
    assert bound.refusals == (("tainted", 1), ("outside flavor f of Kueue", 1))
    again = desk.quotas.narrow({JOB: own}, ceilings)[JOB]
    assert again is bound, "an unchanged value stays the same object"
    desk.show_flavor("spot", pool="x")
    desk.admit(LOW, HIGH, flavor="spot")
    named = desk.quotas.narrow({JOB: own}, desk.scene().ceilings)[JOB]
    assert ("outside flavor spot of Kueue", 1) in named.refusals

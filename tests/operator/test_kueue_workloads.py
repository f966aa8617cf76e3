"""The Workloads that jobs have in Kueue: what they ask for, and how their status is read and changed."""

import copy
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dljob.core.model import GpuDemand, JobId
from dljob.kube.names import JOB_LABEL, LAYER_LABEL, Name
from dljob.operator.kueue.layers import Layer, Request, Wanted
from dljob.operator.kueue.lending import find_borrowed
from dljob.operator.kueue.workloads import (
    changed_status,
    find_layer,
    make_workload,
    priority_of,
    read_request,
)
from tests.operator.manifests import make_manifest
from tests.servers.api import Json

LOW, HIGH = Layer(0, 2), Layer(2, 4)
TEAM_B = Name("", "team-b")
EVICTION = (
    "Preempted to accommodate a workload (UID: 9-8, JobUID: 7-6) due to reclamation within the cohort;"
    " preemptor path: /org/team-b; preemptee path: /org/team-a"
)


def make(layer: Layer = LOW, *, types: tuple[str, ...] = (), **pod: Any) -> dict[str, Any]:
    job = copy.deepcopy(make_manifest("net"))
    job["metadata"] |= {"namespace": "team-a", "uid": "1-2"}
    job["spec"]["template"]["spec"] |= pod
    demand = GpuDemand(options=(2, 4), requested=4, types=types)
    labels = {"pool": "x"} if layer.low else {}
    return make_workload(job, layer, queue="q", priority=3, demand=demand, node_labels=labels)


OWNER = {"metadata": {"name": "net", "uid": "1-2"}}


def admitted(**conditions: tuple[str, str, str]) -> dict[str, Any]:
    """A Workload of Kueue 0.17 with quota; the conditions are status, reason and message by type."""
    usual = {
        "QuotaReserved": ("True", "QuotaReserved", "Quota reserved in ClusterQueue team-a"),
        "Admitted": ("True", "Admitted", "The workload is admitted"),
    }
    said = [
        {"type": kind, "status": status, "reason": reason, "message": message}
        for kind, (status, reason, message) in {**usual, **conditions}.items()
    ]
    flavors = {"nvidia.com/gpu": "a100", "cpu": "a100"}
    assigned = {"name": "gpus", "count": 2, "flavors": flavors}
    status = {
        "admission": {"clusterQueue": "team-a", "podSetAssignments": [assigned]},
        "conditions": said,
    }
    made = make()
    made["metadata"] |= {"generation": 1, "resourceVersion": "5"}
    return {**made, "status": status}


def read(workload: Json, queues: Mapping[Name, Json] | None = None) -> Request:
    return read_request(workload, queues or {}, {})


def cluster_queue(*, own: int, has: int, borrowed: int = 0) -> Json:
    """The ClusterQueue of team b with this quota, of a flavor beside another."""

    def of(**amounts: int) -> list[Json]:
        gpus = {"name": "nvidia.com/gpu", **{what: str(n) for what, n in amounts.items()}}
        cpu = {"name": "cpu", **dict.fromkeys(amounts, "500m")}
        return [{"name": each, "resources": [cpu, gpus]} for each in ("a100", "h100")]

    reserved = of(total=has, borrowed=borrowed)
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": of(nominalQuota=own)}
    return {"spec": {"resourceGroups": [group]}, "status": {"flavorsReservation": reserved}}


def test_workload_asks_for_gpus_alone_and_belongs_to_its_job():
    made = make()
    assert (made["apiVersion"], made["kind"]) == ("kueue.x-k8s.io/v1beta2", "Workload")
    assert made["metadata"]["name"] == "net-0-2"
    assert made["metadata"]["labels"][JOB_LABEL] == "net"
    assert find_layer(made, OWNER) == LOW
    assert find_layer(made, {"metadata": {**OWNER["metadata"], "uid": "1-3"}}) is None
    (pods,) = made["spec"]["podSets"]
    (container,) = pods["template"]["spec"]["containers"]
    assert pods["count"] == 2
    # A ClusterQueue may cover GPUs alone, and a LimitRange may have defaults for the rest.
    assert container["resources"]["requests"] == {"nvidia.com/gpu": "1", "cpu": "0", "memory": "0"}


@pytest.mark.parametrize(
    ("path", "forged"),
    [
        (("metadata", "labels"), {}),
        (("metadata", "labels"), {LAYER_LABEL: "abc"}),
        (("metadata", "labels"), {LAYER_LABEL: "2-2"}),
        (("metadata", "labels"), {LAYER_LABEL: "0-8"}),
        (("metadata", "name"), "net-0-8"),
        (("spec", "podSets"), [{"count": 1}]),
        (("spec", "podSets"), []),
    ],
)
def test_forged_workload_is_no_layer(path, forged):
    made = make()
    made[path[0]] |= {path[1]: forged}
    assert find_layer(made, OWNER) is None


def test_workload_names_the_nodes_that_the_job_accepts():
    def terms(made: dict[str, Any]) -> Any:
        affinity = made["spec"]["podSets"][0]["template"]["spec"]["affinity"]["nodeAffinity"]
        return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

    typed = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["A100", "H100"]}
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    wanted = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": wanted}}
    assert terms(make(types=("A100", "H100"))) == [{"matchExpressions": [typed]}]
    assert terms(make(affinity=required)) == [{"matchExpressions": [zone]}]
    both = terms(make(types=("A100", "H100"), affinity=required))
    assert both == [{"matchExpressions": [zone, typed]}]
    step = make(HIGH, nodeSelector={"disk": "fast"})["spec"]["podSets"][0]["template"]["spec"]
    assert step["nodeSelector"] == {"disk": "fast", "pool": "x"}
    assert "affinity" not in step
    empty = make(nodeSelector=None, tolerations=None)["spec"]["podSets"][0]["template"]["spec"]
    assert (empty["nodeSelector"], empty["tolerations"]) == ({}, [])


def test_steps_are_below_every_minimum_and_the_highest_goes_first():
    priorities = (-(10**9), -5, 0, 5, 10**9)
    least = min(priority_of(each, LOW, 0) for each in priorities)
    for one, other in itertools.combinations(priorities, 2):
        assert priority_of(one, LOW, 0) < priority_of(other, LOW, 0)
        assert priority_of(one, HIGH, 1) < priority_of(other, HIGH, 7) < least
    assert priority_of(0, HIGH, 2) < priority_of(0, HIGH, 1)
    assert priority_of(min(priorities), HIGH, 7) > -(2**31)


def test_lowest_layer_names_its_priority_class():
    def spec(layer: Layer) -> dict[str, Any]:
        job = {"metadata": {"name": "net", "namespace": "team-a", "uid": "1-2"}}
        job["spec"] = copy.deepcopy(make_manifest("net")["spec"])
        demand = GpuDemand(options=(2, 4), requested=4)
        wanted: Any = {"queue": "q", "priority": 9, "demand": demand, "node_labels": {}}
        made: dict[str, Any] = make_workload(job, layer, **wanted, priority_class="high")["spec"]
        return made

    kind = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
    assert spec(LOW)["priorityClassRef"] == kind
    # Kueue shows the class beside the priority, which is another one here.
    assert "priorityClassRef" not in spec(HIGH)


def test_request_is_read():
    assert read(make()) == Request("q", priority=3)
    with_quota = read(admitted())
    assert with_quota == Request(
        "q",
        is_judged=True,
        is_reserved=True,
        is_admitted=True,
        cluster_queue="team-a",
        flavor="a100",
        priority=3,
        told=with_quota.told,
    )
    assert read(admitted(PodsReady=("True", "PodsReady", ""))).is_ready
    waits = "couldn't assign flavors to pod set gpus: insufficient unused quota for nvidia.com/gpu in flavor a100"
    pending = admitted(QuotaReserved=("False", "Pending", f"{waits}, 3 more needed"))
    assert read(pending).told == waits, "the number changes with each job of others"


def test_eviction_has_its_reason():
    evicted = read(admitted(Evicted=("True", "Preempted", EVICTION)))
    assert (evicted.is_admitted, evicted.is_evicted) == (True, True)
    assert evicted.told == "back for team-b (reclamation within the cohort)", "its quota is unknown"
    owed = {TEAM_B: cluster_queue(own=6, has=2)}
    assert read(admitted(Evicted=("True", "Preempted", EVICTION)), owed).told == (
        "back for team-b, which is owed 4"
    )
    urgent = EVICTION.replace("reclamation within the cohort", "prioritization in the ClusterQueue")
    assert read(admitted(Evicted=("True", "Preempted", urgent)), owed).told == (
        "back for team-b (prioritization in the ClusterQueue)"
    )
    # As Kueue leaves it when it has admitted the Workload again.
    again = admitted(Evicted=("False", "QuotaReserved", f"Previously: {EVICTION}"))
    assert not read(again).is_evicted
    stopped = admitted(Evicted=("True", "ClusterQueueStopped", "The ClusterQueue is stopped"))
    assert read(stopped).told == "away (ClusterQueueStopped)"
    inactive = admitted()
    inactive["spec"]["active"] = False
    assert read(inactive).told == "away (Deactivated)"


def test_cleared_workload_waits_for_the_reason_that_kueue_gives():
    stops = ("True", "ClusterQueueStopped", "The ClusterQueue is stopped")
    waits = ("False", "Inadmissible", "ClusterQueue team-a is inactive")
    cleared = admitted(Evicted=stops, QuotaReserved=waits)
    assert read(cleared).told == "ClusterQueue team-a is inactive"
    cleared["spec"]["active"] = False
    assert read(cleared).told == "the Workload is deactivated (spec.active: false)"


def test_lowest_and_latest_layers_have_the_borrowed_gpus():
    quota = Request("q", is_reserved=True, cluster_queue="team-b", flavor="a100")
    early, late = (replace(quota, reserved_at=f"2026-01-01T00:00:0{second}Z") for second in (1, 2))
    requests = {
        JobId("a"): {LOW: replace(late, priority=5), HIGH: replace(early, priority=-9)},
        JobId("b"): {LOW: early, HIGH: replace(late, priority=-9)},
        JobId("waits"): {LOW: replace(late, is_reserved=False)},
    }

    def borrowed(gpus: int) -> dict[str, int]:
        found = find_borrowed(requests, {TEAM_B: cluster_queue(own=8, has=8, borrowed=gpus)})
        return {job: gpus for job, gpus in found.items() if gpus}

    assert borrowed(0) == {}
    assert borrowed(1) == {"b": 1}
    assert borrowed(3) == {"b": 2, "a": 1}
    assert borrowed(5) == {"b": 3, "a": 2}
    assert not any(find_borrowed(requests, {}).values())


def test_clearing_queues_a_preempted_workload_again():
    def cleared(reason: str, status: str = "True") -> dict[str, tuple[str, str]]:
        change = changed_status(admitted(Evicted=(status, reason, "")), Wanted.CLEARED, now=5.0)
        assert change["admission"] is None
        return {each["type"]: (each["status"], each["reason"]) for each in change["conditions"]}

    assert cleared("Preempted") == {
        "Evicted": ("True", "Preempted"),
        "QuotaReserved": ("False", "Pending"),
        "Admitted": ("False", "NoReservation"),
        "PodsReady": ("False", "WaitForStart"),
        "Requeued": ("True", "Preempted"),
    }
    # Kueue itself queues it again when its queue goes on.
    assert cleared("ClusterQueueStopped")["Requeued"] == ("False", "ClusterQueueStopped")
    # It has been evicted before, and is deactivated now; Kueue queues it again when it is active.
    assert cleared("QuotaReserved", "False")["Requeued"] == ("False", "Deactivated")


def test_cleared_workload_reads_as_one_that_kueue_has_cleared():
    ready, taken = ("True", "PodsReady", "the job trains"), ("True", "Preempted", EVICTION)
    before = admitted(PodsReady=ready, Evicted=taken)
    said = changed_status(before, Wanted.CLEARED, now=5.0)["conditions"]
    # KueueViz shows the type of the first one as the status.
    kinds = [each["type"] for each in said]
    assert kinds == ["QuotaReserved", "Admitted", "PodsReady", "Evicted", "Requeued"]
    by_kind = {each["type"]: each for each in said}
    assert by_kind["PodsReady"]["status"] == "False", "Kueue waits for it again"
    assert by_kind["Admitted"]["message"] == "The GPUs are released, as DLJob has proven"
    # Kueue leaves it when it has admitted the Workload again, and then nothing else that is true has the taker.
    assert by_kind["Requeued"]["message"] == EVICTION


def test_readiness_leaves_the_other_conditions():
    change = changed_status(admitted(), Wanted.READY, now=5.0)
    assert set(change) == {"conditions"}
    kinds = [each["type"] for each in change["conditions"]]
    assert kinds == ["QuotaReserved", "Admitted", "PodsReady"]

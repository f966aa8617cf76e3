"""The Workloads that jobs have in Kueue: what they ask for, and how their status is read and changed."""

import copy
import itertools
from typing import Any

from dljob.core.model import GpuDemand
from dljob.kube.names import JOB_LABEL
from dljob.operator.kueue.layers import Layer, Request, Wanted
from dljob.operator.kueue.workloads import (
    changed_status,
    is_of,
    layer_of,
    make_workload,
    priority_of,
    read_request,
)
from tests.operator.manifests import make_manifest

LOW, HIGH = Layer(0, 2), Layer(2, 4)
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


def test_workload_asks_for_gpus_alone_and_belongs_to_its_job():
    made = make()
    assert (made["apiVersion"], made["kind"]) == ("kueue.x-k8s.io/v1beta2", "Workload")
    assert made["metadata"]["name"] == "net-0-2"
    assert made["metadata"]["labels"][JOB_LABEL] == "net"
    assert layer_of(made) == LOW
    assert is_of(made, {"metadata": {"uid": "1-2"}})
    assert not is_of(made, {"metadata": {"uid": "1-3"}})
    (pods,) = made["spec"]["podSets"]
    (container,) = pods["template"]["spec"]["containers"]
    assert pods["count"] == 2
    # A ClusterQueue may cover GPUs alone, and a LimitRange may have defaults for the rest.
    assert container["resources"]["requests"] == {"nvidia.com/gpu": "1", "cpu": "0", "memory": "0"}


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


def test_steps_are_below_every_minimum_and_the_highest_goes_first():
    priorities = (-(10**9), -5, 0, 5, 10**9)
    least = min(priority_of(each, LOW, 0) for each in priorities)
    for one, other in itertools.combinations(priorities, 2):
        assert priority_of(one, LOW, 0) < priority_of(other, LOW, 0)
        assert priority_of(one, HIGH, 1) < priority_of(other, HIGH, 7) < least
    assert priority_of(0, HIGH, 2) < priority_of(0, HIGH, 1)
    assert priority_of(min(priorities), HIGH, 7) > -(2**31)


def test_request_is_read():
    assert read_request(make()) == Request("q")
    with_quota = Request("q", is_judged=True, is_reserved=True, is_admitted=True, flavor="a100")
    assert read_request(admitted()) == with_quota
    assert read_request(admitted(PodsReady=("True", "PodsReady", ""))).is_ready
    evicted = read_request(admitted(Evicted=("True", "Preempted", EVICTION)))
    assert (evicted.is_admitted, evicted.is_evicted) == (True, True)
    assert evicted.told == "back for team-b"
    # As Kueue leaves it when it has admitted the Workload again.
    again = admitted(Evicted=("False", "QuotaReserved", f"Previously: {EVICTION}"))
    assert not read_request(again).is_evicted
    stopped = admitted(Evicted=("True", "ClusterQueueStopped", "The ClusterQueue is stopped"))
    assert read_request(stopped).told == "away (ClusterQueueStopped)"
    inactive = admitted()
    inactive["spec"]["active"] = False
    assert read_request(inactive).told == "away (Deactivated)"


def test_clearing_queues_a_preempted_workload_again():
    def cleared(reason: str) -> dict[str, tuple[str, str]]:
        change = changed_status(admitted(Evicted=("True", reason, "")), Wanted.CLEARED, now=5.0)
        assert change["admission"] is None
        return {each["type"]: (each["status"], each["reason"]) for each in change["conditions"]}

    assert cleared("Preempted") == {
        "Evicted": ("True", "Preempted"),
        "QuotaReserved": ("False", "Pending"),
        "Admitted": ("False", "NoReservation"),
        "Requeued": ("True", "Preempted"),
    }
    # Kueue itself queues it again when its queue goes on.
    assert cleared("ClusterQueueStopped")["Requeued"] == ("False", "ClusterQueueStopped")


def test_readiness_leaves_the_other_conditions():
    change = changed_status(admitted(), Wanted.READY, now=5.0)
    assert set(change) == {"conditions"}
    kinds = [each["type"] for each in change["conditions"]]
    assert kinds == ["QuotaReserved", "Admitted", "PodsReady"]

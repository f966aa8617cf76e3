"""The documents of Kueue: makes and reads the Workload of a layer, and the changes of its status."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dljob.control.situation.status_documents import write_time
from dljob.core.model import GpuDemand
from dljob.kube import names
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.resources import WORKLOADS
from dljob.operator.kueue.layers import Layer, Request, Wanted
from dljob.operator.kueue.lending import find_owed
from dljob.operator.nodes.nodes import TYPE_LABELS
from dljob.operator.nodes.placeholders import RESOURCE

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
JOB_UID_LABEL: Final = "kueue.x-k8s.io/job-uid"
"""Kueue names this job to those that it evicts for it."""
POD_SET: Final = "gpus"
STEPS: Final = -1_500_000_000
"""
The priority of the steps of a job of priority 0: below the fewest GPUs of every job, so that Kueue takes steps first.

Of equal jobs, the highest steps go first.
"""
MOST_WEIGHT: Final = 1_000_000
LEAST_BASE: Final = -1_000_000_000
_PREEMPTION: Final = re.compile(
    r"due to (?P<why>[^;]+); preemptor path: (?:[^\s;]*/)?(?P<taker>[^\s;/]+);"
)
_RECLAIMED: Final = "reclamation within the cohort"
_MISSING: Final = re.compile(r", \d+ more needed")
"""A part of a message that changes with each start and end of others."""
DEACTIVATED: Final = "Deactivated"
"""The reason of a Workload with ``active: false``."""
_REQUEUED_AT_ONCE: Final = frozenset({"Preempted", "NodeFailures"})
"""Kueue itself decides after other evictions when the Workload is queued again."""


def priority_of(priority: int, layer: Layer, place: int) -> int:
    """Return the priority of a layer; ``place`` is its number from the lowest."""
    if not layer.low:
        return max(LEAST_BASE, priority)
    return STEPS + max(-MOST_WEIGHT, min(MOST_WEIGHT, priority)) * 10 - place


def make_workload(
    job: Json,
    layer: Layer,
    *,
    queue: str,
    priority: int,
    demand: GpuDemand,
    node_labels: Mapping[str, str],
) -> dict[str, Any]:
    """
    Make the Workload of a layer of a job, whose flavor has these labels of nodes.

    No pod is made of it: Kueue reads from its pod set how many GPUs are asked for, and which nodes the job accepts.
    """
    metadata, pod = job["metadata"], job["spec"]["template"]["spec"]
    # A ClusterQueue may cover GPUs alone, and a LimitRange may add defaults for the rest.
    amounts = {RESOURCE: "1", "cpu": "0", "memory": "0"}
    container = {
        "name": POD_SET,
        "image": "none",
        "resources": {"requests": amounts, "limits": {RESOURCE: "1"}},
    }
    template: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [container],
        "nodeSelector": {**pod.get("nodeSelector", {}), **node_labels},
        "tolerations": pod.get("tolerations", []),
    }
    if affinity := _affinity(pod, demand.types):
        template["affinity"] = affinity
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": {
            "name": f"{metadata['name']}-{layer.low}-{layer.high}",
            "namespace": metadata["namespace"],
            "labels": {
                names.JOB_LABEL: metadata["name"],
                names.LAYER_LABEL: f"{layer.low}-{layer.high}",
                JOB_UID_LABEL: metadata["uid"],
            },
            "ownerReferences": [names.owner_reference(metadata)],
        },
        "spec": {
            "queueName": queue,
            "priority": priority,
            "podSets": [
                {
                    "name": POD_SET,
                    "count": layer.high - layer.low,
                    "template": {"spec": template},
                }
            ],
        },
    }


def _affinity(pod: Json, types: Sequence[str]) -> dict[str, Any]:
    """Return the node affinity of a job's pods, with the types of GPUs that the job accepts."""
    node = dict((pod.get("affinity") or {}).get("nodeAffinity") or {})
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or [{}]
    if types:
        wanted = {"key": TYPE_LABELS[-1], "operator": "In", "values": list(types)}
        terms = [
            {**term, "matchExpressions": [*term.get("matchExpressions", []), wanted]}
            for term in terms
        ]
    elif not required:
        return {}
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }
    }


def layer_of(workload: Json) -> Layer:
    """Return the layer that a Workload is; raises ValueError if the label does not say that."""
    low, high = workload["metadata"]["labels"][names.LAYER_LABEL].split("-")
    return Layer(int(low), int(high))


def is_of(workload: Json, job: Json) -> bool:
    """True if a Workload belongs to this job, and not to an earlier one of its name."""
    owners = workload["metadata"].get("ownerReferences") or ()
    return any(each["uid"] == job["metadata"]["uid"] for each in owners)


def read_request(workload: Json, queues: Mapping[Name, Json]) -> Request:
    """Read a Workload; ``queues`` are the ClusterQueues."""
    status, spec = workload.get("status") or {}, workload["spec"]
    said = {each["type"]: each for each in status.get("conditions") or ()}
    true = {kind for kind, each in said.items() if each["status"] == "True"}
    admission = status.get("admission") or {}
    assigned: Json = next(iter(admission.get("podSetAssignments", ())), {})
    flavor = (assigned.get("flavors") or {}).get(RESOURCE, "")
    is_evicted = "Evicted" in true or spec.get("active") is False
    quota = said.get("QuotaReserved") or {}
    if is_evicted and "QuotaReserved" in true:
        told = _tell_eviction(said.get("Evicted") or {}, flavor=flavor, queues=queues)
    else:
        told = _MISSING.sub("", quota.get("message", ""))
    return Request(
        queue=spec.get("queueName", ""),
        is_judged="QuotaReserved" in said,
        is_reserved="QuotaReserved" in true,
        is_admitted="Admitted" in true,
        is_evicted=is_evicted,
        is_ready="PodsReady" in true,
        cluster_queue=admission.get("clusterQueue", ""),
        flavor=flavor,
        reserved_at=quota.get("lastTransitionTime", ""),
        priority=spec.get("priority", 0),
        told=told,
    )


def _tell_eviction(evicted: Json, *, flavor: str, queues: Mapping[Name, Json]) -> str:
    found = _PREEMPTION.search(evicted.get("message", ""))
    if found is None:
        return f"away ({evicted.get('reason', DEACTIVATED)})"
    taker, why = found["taker"], found["why"]
    owed = find_owed(queues.get(Name("", taker)), flavor) if why == _RECLAIMED else 0
    return f"back for {taker}, which is owed {owed}" if owed else f"back for {taker} ({why})"


def changed_status(workload: Json, wanted: Wanted, now: float) -> dict[str, Any]:
    """
    Make the change of the status of a Workload that has quota.

    One that is cleared gives its quota back and is queued again; of one that is ready, the job trains.
    """
    conditions = workload["status"]["conditions"]
    if wanted is Wanted.CLEARED:
        evicted: Json = next((each for each in conditions if each["type"] == "Evicted"), {})
        reason = evicted.get("reason", DEACTIVATED)
        is_queued = "True" if reason in _REQUEUED_AT_ONCE else "False"
        message = "The GPUs are released, as DLJob has proven"
        changes = {
            "QuotaReserved": ("False", "Pending"),
            "Admitted": ("False", "NoReservation"),
            "Requeued": (is_queued, reason),
        }
    else:
        message, changes = "the job trains", {"PodsReady": ("True", "PodsReady")}
    changed = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": write_time(now),
            "observedGeneration": workload["metadata"].get("generation", 1),
        }
        for kind, (status, reason) in changes.items()
    ]
    kept = [each for each in conditions if each["type"] not in changes]
    without_quota = {"admission": None} if wanted is Wanted.CLEARED else {}
    return {**without_quota, "conditions": kept + changed}

"""The documents of Kueue: makes and reads the Workload of a layer, and the changes of its status."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dljob.control.situation.status_documents import write_time
from dljob.core.model import GpuDemand
from dljob.kube import names
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.resources import PRIORITY_CLASSES, WORKLOADS
from dljob.operator.kueue.layers import Layer, Request, Wanted
from dljob.operator.kueue.lending import find_owed
from dljob.operator.nodes.nodes import TYPE_LABELS
from dljob.operator.nodes.placeholders import RESOURCE

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
CLASS_LABEL: Final = "kueue.x-k8s.io/priority-class"
BOOST: Final = "kueue.x-k8s.io/priority-boost"
"""The annotation that Kueue adds to the priority of a Workload, if its feature gate PriorityBoost is on."""
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
_LAYER: Final = re.compile(r"(\d{1,6})-(\d{1,6})", re.ASCII)
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
    priority_class: str = "",
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
        "nodeSelector": {**(pod.get("nodeSelector") or {}), **node_labels},
        "tolerations": pod.get("tolerations") or [],
    }
    if affinity := _affinity(pod, demand.types):
        template["affinity"] = affinity
    group, kind = PRIORITY_CLASSES.group, PRIORITY_CLASSES.kind
    named = {"priorityClassRef": {"group": group, "kind": kind, "name": priority_class}}
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": {
            "name": _name(metadata["name"], layer),
            "namespace": metadata["namespace"],
            "labels": {
                names.JOB_LABEL: metadata["name"],
                names.LAYER_LABEL: str(layer),
                JOB_UID_LABEL: metadata["uid"],
            },
            "ownerReferences": [names.owner_reference(metadata)],
        },
        "spec": {
            "queueName": queue,
            "priority": priority,
            **(named if priority_class and not layer.low else {}),
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


def _name(job: str, layer: Layer) -> str:
    return f"{job}-{layer}"


def find_layer(workload: Json, job: Json) -> Layer | None:
    """Return the layer of a job that a Workload is; ``None`` for one of an earlier job of its name, and for a forged one."""
    metadata, sets = workload["metadata"], workload["spec"].get("podSets") or ()
    numbers = _LAYER.fullmatch((metadata.get("labels") or {}).get(names.LAYER_LABEL, ""))
    owners = metadata.get("ownerReferences") or ()
    if numbers is None or all(each["uid"] != job["metadata"]["uid"] for each in owners):
        return None
    layer = Layer(int(numbers[1]), int(numbers[2]))
    is_named = metadata["name"] == _name(job["metadata"]["name"], layer)
    counts = [each.get("count", 1) for each in sets]
    is_right = is_named and layer.low < layer.high and counts == [layer.high - layer.low]
    return layer if is_right else None


def read_request(
    workload: Json, queues: Mapping[Name, Json], flavors: Mapping[Name, Json]
) -> Request:
    """Read a Workload; ``queues`` are the ClusterQueues."""
    status, spec = workload.get("status") or {}, workload["spec"]
    said = {each["type"]: each for each in status.get("conditions") or ()}
    true = {kind for kind, each in said.items() if each["status"] == "True"}
    admission = status.get("admission") or {}
    assigned: Json = next(iter(admission.get("podSetAssignments", ())), {})
    flavor = (assigned.get("flavors") or {}).get(RESOURCE, "")
    is_evicted = "Evicted" in true or spec.get("active") is False
    quota = said.get("QuotaReserved") or {}
    boost = (workload["metadata"].get("annotations") or {}).get(BOOST, "")
    if is_evicted and "QuotaReserved" in true:
        told = _tell_eviction(said.get("Evicted") or {}, flavor=flavor, queues=queues)
    elif spec.get("active") is False:
        told = "the Workload is deactivated (spec.active: false)"
    else:
        told = _MISSING.sub("", quota.get("message", ""))
    return Request(
        queue=spec.get("queueName", ""),
        # Kueue judges nothing in a queue that is not there, or not active.
        is_judged=quota.get("reason", "Inadmissible") != "Inadmissible",
        is_reserved="QuotaReserved" in true,
        is_admitted="Admitted" in true,
        is_evicted=is_evicted,
        is_ready="PodsReady" in true,
        cluster_queue=admission.get("clusterQueue", ""),
        flavor=flavor,
        nodes=frozenset(node_labels(flavors, flavor).items()),
        reserved_at=quota.get("lastTransitionTime", ""),
        priority=spec.get("priority", 0),
        boost=int(boost) if boost.isascii() and boost.isdecimal() else 0,
        told=told,
    )


def node_labels(flavors: Mapping[Name, Json], flavor: str) -> Mapping[str, str]:
    """Return the labels of the nodes of a flavor; none where it is not known."""
    labels: Mapping[str, str] = (flavors.get(Name("", flavor), {}).get("spec") or {}).get(
        "nodeLabels"
    ) or {}
    return labels


def _tell_eviction(evicted: Json, *, flavor: str, queues: Mapping[Name, Json]) -> str:
    found = _PREEMPTION.search(evicted.get("message", ""))
    if found is None:
        return f"away ({evicted.get('reason', DEACTIVATED)})"
    taker, why = found["taker"], found["why"]
    owed = find_owed(queues.get(Name("", taker), {}), flavor) if why == _RECLAIMED else 0
    return f"back for {taker}, which is owed {owed}" if owed else f"back for {taker} ({why})"


def changed_status(workload: Json, wanted: Wanted, now: float) -> dict[str, Any]:
    """
    Make the change of the status of a Workload that has quota.

    One that is cleared gives its quota back and is queued again; of one that is ready, the job trains.
    """
    said: dict[str, Json] = {each["type"]: each for each in workload["status"]["conditions"]}
    if wanted is Wanted.CLEARED:
        evicted = said.get("Evicted", {})
        if evicted.get("status") != "True":
            evicted = {"reason": DEACTIVATED, "message": "The workload is deactivated"}
        reason, why = evicted["reason"], evicted["message"]
        released = "The GPUs are released, as DLJob has proven"
        changes = {
            "QuotaReserved": ("False", "Pending", why),
            "Admitted": ("False", "NoReservation", released),
            # Where Kueue waits for pods, it waits for those of the next start, too.
            "PodsReady": ("False", "WaitForStart", released),
            "Requeued": (str(reason in _REQUEUED_AT_ONCE), reason, why),
        }
    else:
        changes = {"PodsReady": ("True", "PodsReady", "the job trains")}
    for kind, (status, reason, message) in changes.items():
        # Each stays in its place: programs show the first one as the state of the Workload.
        said[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": write_time(now),
            "observedGeneration": workload["metadata"].get("generation", 1),
        }
    without_quota = {"admission": None} if wanted is Wanted.CLEARED else {}
    return {**without_quota, "conditions": list(said.values())}

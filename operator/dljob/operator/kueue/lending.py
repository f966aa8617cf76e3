"""
How many GPUs of jobs are borrowed, and how many a team is owed, as the ClusterQueues of Kueue show it.

Kueue counts the GPUs that a ClusterQueue has borrowed, but not which Workloads have them. It takes the lowest priority back
first, and of equal ones the latest, so those have the borrowed GPUs here.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from dljob.core.model import JobId
from dljob.core.placement.amounts import WHOLE, read_amount
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.operator.kueue.layers import Layer, Request
from dljob.operator.nodes.placeholders import RESOURCE


def find_borrowed(
    requests: Mapping[JobId, Mapping[Layer, Request]], queues: Mapping[Name, Json]
) -> Mapping[JobId, int]:
    """Return how many of its GPUs each job has borrowed."""
    reserved: dict[tuple[str, str], list[tuple[Request, Layer, JobId]]] = defaultdict(list)
    for job, layers in requests.items():
        for layer, request in layers.items():
            if request.is_reserved:
                reserved[request.cluster_queue, request.flavor].append((request, layer, job))
    borrowed: Counter[JobId] = Counter()
    for (queue, flavor), there in reserved.items():
        left = _count(_reserved_in(queues.get(Name("", queue), {})), flavor, "borrowed")
        there.sort(key=lambda each: each[0].reserved_at, reverse=True)
        for _, layer, job in sorted(there, key=lambda each: each[0].priority):
            gpus = min(left, layer.high - layer.low)
            borrowed[job] += gpus
            left -= gpus
    return borrowed


def find_owed(queue: Json, flavor: str) -> int:
    """Return how many GPUs of its own quota a ClusterQueue does not have."""
    groups = (queue.get("spec") or {}).get("resourceGroups") or ()
    own = sum(_count(group["flavors"], flavor, "nominalQuota") for group in groups)
    return max(0, own - _count(_reserved_in(queue), flavor, "total"))


def _reserved_in(queue: Json) -> list[Json]:
    """Return the quota that is in use in a ClusterQueue, by flavor."""
    return (queue.get("status") or {}).get("flavorsReservation") or []


def _count(flavors: Iterable[Json], flavor: str, what: str) -> int:
    return sum(
        read_amount(each.get(what, 0)) // WHOLE
        for usage in flavors
        if usage["name"] == flavor
        for each in usage["resources"]
        if each["name"] == RESOURCE
    )

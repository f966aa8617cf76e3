"""
Placeholder pods, which reserve the GPUs of a node where a device plugin counts them (``pool.mode: reserve``).

Such a pod requests every allocatable ``nvidia.com/gpu`` of one node and does nothing. While it runs, Kubernetes'
own accounting keeps other pods off, and quotas and dashboards show the GPUs in use. DLJob uses the GPUs only while
placeholders hold all of them. If more become allocatable later, because one is healthy again, a further placeholder
holds those.

A deleted placeholder keeps its devices for a while, so that jobs can leave first.

Pure.
"""

import copy
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from dljob.kube import names
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.operator.podspecs.podsettings import RESTRICTED

RESOURCE: Final = "nvidia.com/gpu"
ROLE: Final = "placeholder"
CONTAINER: Final = "placeholder"
LONGEST_STEM: Final = 36
PAUSE: Final = (
    "registry.k8s.io/pause:3.10"
    "@sha256:ee6521f290b2168b6e0935a181d4cff9be1ac3f505666ef0e3c98fae8199917a"
)
"""By its digest, because it runs on every node of the pool."""
MOST_A_NODE: Final = 8
"""The most placeholders of a node: one, and one more each time that more GPUs become allocatable under jobs."""
AT_ONCE_S: Final = 1
"""The grace period of a placeholder that the operator deletes, once no job is on the node."""

_ENDED: Final = ("Succeeded", "Failed")


class PoolMode(StrEnum):
    """The means that keeps other pods off the GPUs of the pool."""

    DEDICATED = "dedicated"
    """No device plugin runs on its nodes, so that Kubernetes gives GPUs there to no other pod."""
    RESERVE = "reserve"
    """The device plugin stays, and a placeholder pod on each node requests all that it offers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderSettings:
    """The pods that reserve GPUs for DLJob in the mode ``reserve``."""

    image: str = PAUSE
    """An image whose program waits until it is ended, and that can run as any user."""
    pull_policy: str = ""
    """Always, IfNotPresent or Never; empty leaves it to Kubernetes."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets in the operator's namespace for pulling that image."""
    priority_class: str = ""
    """The priority class of these pods; one that preempts takes GPUs from other pods. Empty:
    none."""
    hold_seconds: int = 900
    """How long a placeholder that another program deletes or evicts still holds its GPUs, while
    jobs save their work and leave."""


@dataclass(frozen=True, slots=True)
class Supply:
    """The counts of GPUs that a node of the pool reports."""

    node: str
    labelled: int
    """The number in the labels; 0 without one."""
    capacity: int
    """The number that the device plugin knows, healthy or not."""
    allocatable: int
    """The number that it considers healthy; Kubernetes gives away only these."""
    is_whole: bool = True
    """True if they are neither partitioned nor shared."""


@dataclass(frozen=True, slots=True)
class Make:
    """A placeholder is to be made."""

    node: str
    gpus: int
    number: int = 0
    """The number of the placeholder on its node."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A placeholder is to be deleted."""

    name: Name
    uid: str
    because: str


Step = Make | Drop


# --- the pod ------------------------------------------------------------------------------


@lru_cache(maxsize=100_000)
def placeholder_name(node: str, number: int = 0) -> str:
    """Name a placeholder of a node; a fixed name, so that the API server refuses a second one."""
    mark = hashlib.sha256(node.encode()).hexdigest()[:8]
    further = f"-{number}" if number else ""
    return f"dljob-placeholder-{node[:LONGEST_STEM].rstrip('-.')}-{mark}{further}"


def make_placeholder(
    node: Json, step: Make, *, namespace: str, settings: PlaceholderSettings
) -> dict[str, Any]:
    """Make the pod that holds the GPUs of ``step``; ``node`` is the node's metadata."""
    name = node["name"]
    # Limits equal requests, so that a node under pressure evicts it last.
    amounts = {"cpu": "10m", "memory": "16Mi", RESOURCE: str(step.gpus)}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": settings.image,
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "securityContext": copy.deepcopy(RESTRICTED),
        # Its devices count as taken until this has passed, or the operator deletes the pod itself.
        "lifecycle": {"preStop": {"sleep": {"seconds": settings.hold_seconds}}},
    }
    if settings.pull_policy:
        container["imagePullPolicy"] = settings.pull_policy
    here = {"key": "metadata.name", "operator": "In", "values": [name]}
    terms = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    spec: dict[str, Any] = {
        "containers": [container],
        "affinity": {"nodeAffinity": affinity},
        # The placeholder reserves the GPUs of a node with any taint, also while the node is unreachable.
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": settings.hold_seconds + AT_ONCE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": each} for each in settings.pull_secrets]
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": placeholder_name(name, step.number),
            "namespace": namespace,
            "labels": {
                # Of no job; the operator watches pods with this label.
                names.JOB_LABEL: "",
                names.ROLE_LABEL: ROLE,
            },
            "annotations": {names.NODE_ANNOTATION: name},
            # The pod is deleted with its node, and `kubectl drain` ignores it.
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": name,
                    "uid": node["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": spec,
    }


def is_placeholder(pod: Json) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(names.ROLE_LABEL) == ROLE and not labels.get(names.JOB_LABEL)


def node_of(pod: Json) -> str:
    """Return the node of a placeholder, which may not be bound yet."""
    return str((pod["metadata"].get("annotations") or {}).get(names.NODE_ANNOTATION, ""))


def held_by(pod: Json) -> int:
    requests = _container(pod).get("resources", {}).get("requests", {})
    return int(requests.get(RESOURCE, 0))


# --- the state of the reservation -----------------------------------------------------------


def why_not_ours(supply: Supply, pods: Collection[Json]) -> str:
    """Return the reason why the GPUs of a node are not reserved; empty if they are."""
    if why := _why_lacking(supply):
        return why
    if why := next(filter(None, (_why_not_held(supply, pod) for pod in pods)), ""):
        return f"its GPUs are not reserved: {why}"
    if not pods:
        return "its GPUs are not reserved: the operator is about to create the placeholder pod"
    if (held := sum(map(held_by, pods))) < supply.allocatable:
        return (
            f"its device plugin offers {supply.allocatable} GPUs, and only {held} are reserved;"
            " the operator is about to create a further placeholder pod"
        )
    return ""


def _why_lacking(supply: Supply) -> str:
    if not supply.capacity:
        return f"its device plugin offers no {RESOURCE}, and pool.mode is reserve"
    if supply.labelled > supply.capacity:
        return (
            f"its labels name {supply.labelled} GPUs, and its device plugin offers"
            f" {supply.capacity}"
        )
    if not supply.allocatable:
        return f"according to its device plugin, none of its {supply.capacity} GPUs is healthy"
    return ""


def _why_not_held(supply: Supply, pod: Json) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "the placeholder pod is being deleted"
    status = pod.get("status") or {}
    phase = status.get("phase")
    if phase in _ENDED:
        return f"the placeholder pod has ended ({status.get('reason') or phase})"
    return "" if phase == "Running" else _why_pending(supply, pod)


def is_lost(pods: Iterable[Json]) -> bool:
    """True if other pods have GPUs of a node, or will soon, so that no job may stay there."""
    return any(
        f"Insufficient {RESOURCE}" in _unscheduled_because(pod)
        or "deletionTimestamp" in pod["metadata"]
        for pod in pods
    )


def _why_pending(supply: Supply, pod: Json) -> str:
    said = _unscheduled_because(pod)
    if f"Insufficient {RESOURCE}" in said:
        if supply.allocatable < held_by(pod):
            sick = supply.capacity - supply.allocatable
            return f"{sick} of them are not healthy according to its device plugin"
        return "other pods hold some of them until they end"
    if not said:
        first: Json = next(iter((pod.get("status") or {}).get("containerStatuses") or ()), {})
        waiting = (first.get("state") or {}).get("waiting") or {}
        said = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
    return "the placeholder pod does not run yet" + (f" ({said})" if said else "")


def _unscheduled_because(pod: Json) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next(
        (
            each.get("message") or ""
            for each in conditions
            if each["type"] == "PodScheduled" and each["status"] == "False"
        ),
        "",
    )


def _container(pod: Json) -> Json:
    found: Json = pod["spec"]["containers"][0]
    return found


# --- the steps to the wanted pods -----------------------------------------------------------


def next_steps(
    supplies: Mapping[str, Supply],
    pods: Mapping[Name, Json],
    *,
    busy: Collection[str],
    settings: PlaceholderSettings,
) -> Iterator[Step]:
    """
    Return the placeholders to create and to delete.

    ``supplies`` are the nodes whose GPUs are to be reserved. ``busy`` are the nodes where jobs have GPUs, or may
    get some; their placeholders stay.
    """
    there: dict[str, list[Json]] = {}
    for name, pod in pods.items():
        node = node_of(pod)
        there.setdefault(node, []).append(pod)
        if because := _why_drop(supplies.get(node), pod, busy=busy, settings=settings):
            yield Drop(name, pod["metadata"]["uid"], because)
    for node, supply in supplies.items():
        if make := _find_missing(supply, there.get(node, ())):
            yield make


def _find_missing(supply: Supply, pods: Collection[Json]) -> Make | None:
    """Return the placeholder that a node lacks; None while another one starts or ends."""
    if any(_phase(pod) != "Running" or "deletionTimestamp" in pod["metadata"] for pod in pods):
        return None
    missing = supply.allocatable - sum(map(held_by, pods))
    names = {pod["metadata"]["name"] for pod in pods}
    numbers = range(MOST_A_NODE)
    free = next(
        (each for each in numbers if placeholder_name(supply.node, each) not in names), None
    )
    return Make(supply.node, missing, free) if missing > 0 and free is not None else None


def _why_drop(
    supply: Supply | None, pod: Json, *, busy: Collection[str], settings: PlaceholderSettings
) -> str:
    phase, is_busy = _phase(pod), node_of(pod) in busy
    if "deletionTimestamp" in pod["metadata"]:
        # Its end waits for the jobs that run there.
        lasts_s = pod["metadata"].get("deletionGracePeriodSeconds") or 0
        is_ending = is_busy or lasts_s <= AT_ONCE_S
        return "" if is_ending else "it was deleted, and the node has no job"
    if phase in _ENDED:
        return "it has ended"
    if phase == "Running":
        # It also holds a device that is no longer healthy, and that no other pod gets.
        is_wanted = is_busy or (supply is not None and supply.capacity)
        return "" if is_wanted else "its node is given back"
    return _why_replace(supply, pod, settings=settings)


def _why_replace(supply: Supply | None, pod: Json, *, settings: PlaceholderSettings) -> str:
    """Return the reason to delete a placeholder that holds nothing yet."""
    if supply is None or not supply.capacity:
        return "its node is given back"
    if held_by(pod) > supply.allocatable:
        return f"its node offers {supply.allocatable} GPUs instead"
    return "the setting names another image" if _container(pod)["image"] != settings.image else ""


def _phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase") or "")

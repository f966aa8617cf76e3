"""
Pods that hold the GPUs of a node for us where a device plugin counts them (``pool.mode: reserve``).

Such a pod requests every ``nvidia.com/gpu`` of one node and does nothing. As long as it runs there,
Kubernetes' own accounting keeps the pods of others off, and quotas and dashboards see the GPUs in
use. Until it runs there, with the full count, they are not ours.

Pure: what should be (:func:`next_steps`) and what follows from what is (:func:`why_not_ours`).
"""

import copy
import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from dloperator import names
from dloperator.mirror import Name
from dloperator.podmaking import RESTRICTED

Json = Mapping[str, Any]

RESOURCE: Final = "nvidia.com/gpu"
ROLE: Final = "placeholder"
CONTAINER: Final = "placeholder"
LONGEST_STEM: Final = 36
SECONDS_TO_END: Final = 1
PAUSE: Final = (
    "registry.k8s.io/pause:3.10"
    "@sha256:ee6521f290b2168b6e0935a181d4cff9be1ac3f505666ef0e3c98fae8199917a"
)
"""By its digest, because it runs on every node of the pool: what it names cannot become something else."""

_ENDED: Final = ("Succeeded", "Failed")


class PoolMode(StrEnum):
    """How the pods of others are kept off the GPUs of the pool."""

    DEDICATED = "dedicated"
    """No device plugin runs on its nodes, so that nobody else is given GPUs there."""
    RESERVE = "reserve"
    """The device plugin stays, and a placeholder pod on each node requests all that it offers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderSettings:
    """The pods that hold GPUs for us in the mode ``reserve``."""

    image: str = PAUSE
    """An image that does nothing until it is ended, and may run as any user."""
    pull_policy: str = ""
    """As Kubernetes has it: Always, IfNotPresent, Never; empty leaves it to Kubernetes."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets in the operator's namespace with which that image is pulled."""
    priority_class: str = ""
    """A priority class for them; one that preempts takes GPUs from others' pods. Empty: none."""


@dataclass(frozen=True, slots=True)
class Supply:
    """What is known of the GPUs of a node of the pool."""

    node: str
    labelled: int
    """How many the labels tell of; 0 if they tell of none."""
    capacity: int
    """How many the device plugin offers, healthy or not."""
    allocatable: int
    """How many of these it takes for healthy."""
    is_whole: bool = True
    """Whether they are neither cut into parts nor shared."""


@dataclass(frozen=True, slots=True)
class Make:
    """A placeholder is to be made."""

    node: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Drop:
    """A placeholder is to be deleted."""

    name: Name
    uid: str
    because: str


Step = Make | Drop


# --- the pod ------------------------------------------------------------------------------


def placeholder_name(node: str) -> str:
    """Name the placeholder of a node: always alike, so that there is never a second one."""
    mark = hashlib.sha256(node.encode()).hexdigest()[:8]
    return f"dljob-placeholder-{node[:LONGEST_STEM].rstrip('-.')}-{mark}"


def make_placeholder(
    node: Json, gpus: int, namespace: str, settings: PlaceholderSettings
) -> dict[str, Any]:
    """Make the pod that holds so many GPUs of this node; ``node`` is the node's metadata."""
    name = node["name"]
    # Limits as requests, so that it is the last that a node under pressure evicts.
    amounts = {"cpu": "10m", "memory": "16Mi", RESOURCE: str(gpus)}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": settings.image,
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "securityContext": copy.deepcopy(RESTRICTED),
    }
    if settings.pull_policy:
        container["imagePullPolicy"] = settings.pull_policy
    here = {"key": "metadata.name", "operator": "In", "values": [name]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": _terms(here)}
    spec: dict[str, Any] = {
        "containers": [container],
        "affinity": {"nodeAffinity": affinity},
        # Whatever a node of the pool is marked with, its GPUs are held, also while it is away.
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": SECONDS_TO_END,
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
            "name": placeholder_name(name),
            "namespace": namespace,
            "labels": {
                # Of no job; by this label the operator follows what is its own.
                names.JOB_LABEL: "",
                names.ROLE_LABEL: ROLE,
            },
            "annotations": {names.NODE_ANNOTATION: name},
            # It goes with its node, and `kubectl drain` knows that it need not ask.
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


def _terms(here: Json) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchFields": [here]}]}


def is_placeholder(pod: Json) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(names.ROLE_LABEL) == ROLE and not labels.get(names.JOB_LABEL)


def node_of(pod: Json) -> str:
    """For which node a placeholder was made."""
    return str((pod["metadata"].get("annotations") or {}).get(names.NODE_ANNOTATION, ""))


def held_by(pod: Json) -> int:
    """How many GPUs a placeholder requests."""
    requests = _container(pod).get("resources", {}).get("requests", {})
    return int(requests.get(RESOURCE, 0))


# --- what is --------------------------------------------------------------------------------


def why_not_ours(supply: Supply, pod: Json | None) -> str:
    """Say why the GPUs of a node are not ours to give, in the mode ``reserve``; empty if they are."""
    offered = supply.capacity
    if not offered:
        return f"its device plugin offers no {RESOURCE}, and pool.mode is reserve"
    if supply.labelled > offered:
        return f"its labels tell of {supply.labelled} GPUs, and its device plugin offers {offered}"
    if why := _why_not_held(supply, pod):
        return f"its GPUs are not reserved: {why}"
    if pod is not None and held_by(pod) != offered:
        return (
            f"its device plugin offers {offered} GPUs by now, and {held_by(pod)} are reserved;"
            " that is put right as soon as no job is there"
        )
    return ""


def _why_not_held(supply: Supply, pod: Json | None) -> str:
    if pod is None:
        return "the placeholder pod is to be made"
    if "deletionTimestamp" in pod["metadata"]:
        return "the placeholder pod is being deleted"
    status = pod.get("status") or {}
    phase = status.get("phase")
    if phase in _ENDED:
        return f"the placeholder pod has ended ({status.get('reason') or phase})"
    return "" if phase == "Running" else _why_pending(supply, pod)


def is_taken(pod: Json | None) -> bool:
    """Whether kube-scheduler says that pods of others hold GPUs that a placeholder asks for."""
    return f"Insufficient {RESOURCE}" in _unscheduled_because(pod)


def _why_pending(supply: Supply, pod: Json) -> str:
    if is_taken(pod):
        if supply.allocatable < held_by(pod):
            sick = supply.capacity - supply.allocatable
            return f"{sick} of them are not healthy, says its device plugin"
        return "pods of others hold some of them, until these end"
    said = _unscheduled_because(pod) or _waits_for(pod)
    return f"the placeholder pod does not run yet{_after(said)}"


def _unscheduled_because(pod: Json | None) -> str:
    conditions = ((pod or {}).get("status") or {}).get("conditions") or ()
    return next(
        (
            each.get("message") or ""
            for each in conditions
            if each["type"] == "PodScheduled" and each["status"] == "False"
        ),
        "",
    )


def _waits_for(pod: Json) -> str:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (status.get("state") or {}).get("waiting") or {}
        words = (waiting.get("reason"), waiting.get("message"))
        return ": ".join(word for word in words if word)
    return ""


def _after(said: str) -> str:
    return f" ({said})" if said else ""


def _container(pod: Json) -> Json:
    found: Json = pod["spec"]["containers"][0]
    return found


# --- what should be -------------------------------------------------------------------------


def next_steps(
    supplies: Mapping[str, Supply],
    pods: Mapping[Name, Json],
    busy: Collection[str],
    settings: PlaceholderSettings,
) -> Iterator[Step]:
    """
    Say which placeholders to make and which to delete.

    ``supplies`` are the nodes whose GPUs shall be reserved; none in another mode. ``busy`` are the
    nodes where jobs have GPUs, or may be given some: these are not given back before.
    """
    held = set()
    for name, pod in pods.items():
        held.add(node_of(pod))
        because = _why_drop(supplies.get(node_of(pod)), pod, busy, settings)
        if because and "deletionTimestamp" not in pod["metadata"]:
            yield Drop(name, pod["metadata"]["uid"], because)
    for node in supplies.keys() - held:
        if supplies[node].capacity:
            yield Make(node, supplies[node].capacity)


def _why_drop(
    supply: Supply | None, pod: Json, busy: Collection[str], settings: PlaceholderSettings
) -> str:
    phase = (pod.get("status") or {}).get("phase")
    if phase in _ENDED:
        return "it has ended"
    holds_for_jobs = phase == "Running" and node_of(pod) in busy
    if holds_for_jobs:
        return ""
    if supply is None or not supply.capacity:
        return "its node is given back"
    if held_by(pod) != supply.capacity:
        return f"its node offers {supply.capacity} GPUs by now"
    if phase != "Running" and _container(pod)["image"] != settings.image:
        return "another image is set by now"
    return ""

"""
How pods of other owners reach GPUs, as far as their documents show.

A pod requests GPUs, or claims them through DRA. A pod that sees GPUs without a request names NVIDIA's runtime class, a
variable of NVIDIA's toolkit, or a CDI annotation. Documents do not show GPUs that are used by privileged pods, host
paths or processes of the node; for these the SideCar checks before each start that a GPU is empty.

Pure.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from dljob.core.documents.rules.podrules import is_gpu_resource
from dljob.kube.constraints.usage import Name
from dljob.kube.documents import Json, PodDocument, PodSpec

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
HIDDEN: Final = frozenset({"void", "none", ""})
"""Values of the variable that hide all GPUs."""
CDI_MARKS: Final = (
    "cdi.k8s.io/",
    "nvidia.cdi.k8s.io/",
    "cdi-devices.nri.io/",
    "cdi-devices.noderesource.dev/",
    "devices.nri.io/",
)
"""Prefixes of annotations that give devices to containers."""
_GPU_DRIVER: Final = re.compile(r"(^|[.-])gpus?([.-]|$)")


class Ways(NamedTuple):
    """The ways of one bound pod to GPUs."""

    node: str
    requested: str = ""
    """The GPU resource that the pod requests."""
    claims: tuple[Name, ...] = ()
    """The DRA claims of the pod, for devices of any kind."""
    seen_by: str = ""
    """The annotation or variable that exposes GPUs to the pod without a request."""
    runtime_class: str = ""

    def why(self, is_gpu_claim: Callable[[Name], bool], runtime_class: str) -> str:
        """Return how the pod reaches GPUs; empty if it does not."""
        if self.requested:
            return f"requests {self.requested}"
        if claim := next((name for name in self.claims if is_gpu_claim(name)), None):
            return f"has GPUs by the ResourceClaim {claim[1]}"
        if runtime_class and self.runtime_class.startswith(runtime_class):
            return f"sees its GPUs by the runtime class {self.runtime_class}"
        return f"asks to see its GPUs by {self.seen_by}" if self.seen_by else ""


def read_ways(document: PodDocument) -> Ways | None:
    """Read how a pod may reach GPUs; None if it is not bound, has ended, or cannot."""
    spec, status = document.get("spec") or {}, document.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return None
    ways = Ways(spec["nodeName"], _requested(spec), tuple(_iter_claims(document)))
    owners = document["metadata"].get("ownerReferences") or ()
    # Monitors and plugins in DaemonSets see all GPUs by design, and do not compute on them.
    if not any(owner.get("kind") == "DaemonSet" and owner.get("controller") for owner in owners):
        ways = ways._replace(
            seen_by=_seen_by(document), runtime_class=str(spec.get("runtimeClassName") or "")
        )
    return ways if any(ways[1:]) else None


def is_gpu_driver(driver: str) -> bool:
    """True if a DRA driver offers GPUs, by its name, such as ``gpu.nvidia.com``."""
    return _GPU_DRIVER.search(driver) is not None


def _containers(spec: PodSpec) -> Iterator[Json]:
    yield from spec.get("containers") or ()
    yield from spec.get("initContainers") or ()
    yield from spec.get("ephemeralContainers") or ()


def _requested(spec: PodSpec) -> str:
    lists = (
        (container.get("resources") or {}).get(part) or {}
        for container in _containers(spec)
        for part in ("limits", "requests")
    )
    asked = ((name, amount) for amounts in lists for name, amount in amounts.items())
    return next((name for name, amount in asked if is_gpu_resource(name) and amount != "0"), "")


def _iter_claims(document: PodDocument) -> Iterable[Name]:
    """Yield the claims of a pod, including those from a template."""
    namespace = document["metadata"].get("namespace") or ""
    made = {
        each.get("name"): each.get("resourceClaimName") or ""
        for each in (document.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    for claim in (document.get("spec") or {}).get("resourceClaims") or ():
        if name := claim.get("resourceClaimName") or made.get(claim.get("name")):
            yield namespace, str(name)


def _seen_by(document: PodDocument) -> str:
    for mark in document["metadata"].get("annotations") or {}:
        if mark.startswith(CDI_MARKS):
            return f"the annotation {mark}"
    for container in _containers(document["spec"]):
        for variable in container.get("env") or ():
            if variable.get("name") == VISIBLE and (
                variable.get("valueFrom") or variable.get("value", "") not in HIDDEN
            ):
                return f"the variable {VISIBLE}"
    return ""

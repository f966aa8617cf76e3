"""
Brings the SideCar into the pod of a training, and returns the command that starts it.

An image volume brings it, where the node supports them: then nothing runs before the training, the pod has no
emptyDir that needs an option of kubectl drain, and its QoS class is that of the user's containers. Elsewhere an
init container copies two files into a volume of the pod. Its requests equal its limits, so that the pod can still be
Guaranteed and no LimitRange objects to the ratio.

Pure.
"""

import copy
import re
from collections.abc import Mapping
from typing import Any, Final

from dljob.core.documents.rules.podrules import TRAINER
from dljob.kube.documents import JsonObject
from dljob.operator.podspecs.podsettings import RESTRICTED, Bringing, PodSettings

SIDECAR_FOLDER: Final = "/dljob"
SIDECAR_VOLUME: Final = "dljob-sidecar"
INSTALLER: Final = "dljob-sidecar"
"""The init container that brings the SideCar."""
IN_IMAGE: Final = "sidecar"
"""The folder of the image that holds the two files."""

SINCE: Final[Mapping[str, tuple[int, int]]] = {
    "kubelet": (1, 35),
    "containerd": (2, 1),
    "cri-o": (1, 33),
}
"""The first versions in which image volumes are on by default."""
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")


def bring_sidecar(
    spec: JsonObject, settings: PodSettings, *, node: Mapping[str, Any] | None
) -> list[str]:
    known = spec.get("imagePullSecrets") or []
    more = [{"name": name} for name in settings.pull_secrets if {"name": name} not in known]
    if more:
        spec["imagePullSecrets"] = [*known, *more]
    by_volume = settings.sidecar is Bringing.IMAGE or (
        settings.sidecar is Bringing.AUTO and has_image_volumes(node)
    )
    volume: JsonObject = {"emptyDir": {"sizeLimit": "16Mi"}}
    if by_volume:
        policy = {"pullPolicy": settings.pull_policy} if settings.pull_policy else {}
        volume = {"image": {"reference": settings.image, **policy}}
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": SIDECAR_VOLUME, **volume}]
    for container in spec["containers"]:
        if container["name"] == TRAINER:
            mount = {"name": SIDECAR_VOLUME, "mountPath": SIDECAR_FOLDER, "readOnly": True}
            container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    if by_volume:
        # Files of an image volume cannot be executed, but a shell can read them.
        return ["/bin/sh", f"{SIDECAR_FOLDER}/{IN_IMAGE}/sidecar-start"]
    spec["initContainers"] = [_installer(settings), *(spec.get("initContainers") or ())]
    return [f"{SIDECAR_FOLDER}/sidecar-start"]


def has_image_volumes(node: Mapping[str, Any] | None) -> bool:
    """True if the kubelet and the runtime of a node support image volumes, by their versions."""
    info = ((node or {}).get("status") or {}).get("nodeInfo") or {}
    runtime, _, version = str(info.get("containerRuntimeVersion") or "").partition("://")
    kubelet = str(info.get("kubeletVersion") or "")
    return _is_since("kubelet", kubelet) and _is_since(runtime, version)


def _is_since(program: str, version: str) -> bool:
    found = _VERSION.match(version)
    least = SINCE.get(program)
    return found is not None and least is not None and (int(found[1]), int(found[2])) >= least


def _installer(settings: PodSettings) -> JsonObject:
    amounts = {"cpu": settings.init_cpu, "memory": settings.init_memory}
    installer: JsonObject = {
        "name": INSTALLER,
        "image": settings.image,
        "args": [SIDECAR_FOLDER],
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "securityContext": copy.deepcopy(RESTRICTED),
        "volumeMounts": [{"name": SIDECAR_VOLUME, "mountPath": SIDECAR_FOLDER}],
    }
    if settings.pull_policy:
        installer["imagePullPolicy"] = settings.pull_policy
    return installer

"""Names of the resource, labels, annotations, ConfigMaps and the field manager."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

GROUP: Final = "dljob.io"
VERSION: Final = "v1alpha1"
KIND: Final = "DLJob"
PLURAL: Final = "dljobs"
SINGULAR: Final = "dljob"
SHORT: Final = "dlj"

MANAGER: Final = "dljob"
"""The field manager of everything that the operator applies."""

FINALIZER: Final = "dljob.io/pods"
"""On a job: keeps it until the end of its pods is proven."""
PROOF_FINALIZER: Final = "dljob.io/end-is-proven"
"""On a pod: keeps it until its end is proven."""

JOB_LABEL: Final = "dljob.io/job"
"""On every object of a job: the job's name."""
LAYER_LABEL: Final = "dljob.io/layer"
"""On a Workload of Kueue: the GPUs of the job below it and up to it, such as 2-4."""
ROLE_LABEL: Final = "dljob.io/role"
"""On a pod: ``trainer``, or the name of an auxiliary."""
SERIAL_LABEL: Final = "dljob.io/serial"
"""On a trainer pod: the number of its booking."""
LOSS: Final = "dljob.io/lost-if-stopped-seconds"
"""On a trainer pod: how many seconds of work a stop would lose now."""
NODE_ANNOTATION: Final = "dljob.io/node"
"""On a placeholder pod: the node whose GPUs it holds."""

ALL: Final = "*"
"""Means all namespaces."""
HOLD: Final = "dljob.io/hold"
"""On a namespace: an administrator holds its jobs; the value is the reason."""
MAX_PRIORITY: Final = "dljob.io/max-priority"
"""On a namespace: the highest priority that an administrator grants to its jobs."""
HOLD_ALL: Final = "dljob.io/hold-all"
"""On the namespace of the operator: an administrator holds all jobs."""

SETTINGS: Final = "dljob-effective-settings"
"""The ConfigMap with the settings of the operator."""
SETTINGS_KEY: Final = "settings.json"
GPUS: Final = "dljob-gpus"
"""The ConfigMap with the operator's state of GPUs."""
GPUS_KEY: Final = "gpus.json"
GPUS_PARTS_KEY: Final = "parts"
"""Key in the first ConfigMap: the number of parts, because an object holds 1 MiB at most."""
GPUS_PARTS: Final = (GPUS, *(f"{GPUS}-{number}" for number in range(1, 16)))
"""The names of the ConfigMaps; those beyond the number of parts are outdated."""
FAULTS_KEY: Final = "faults.json"
"""Key in the same ConfigMaps: the faults of GPUs, for the next leader."""
LEARNED: Final = "dljob-learned"
"""The ConfigMap with the profiles and the state of the policy."""
LEARNED_KEY: Final = "learned.json.zlib"
HOME: Final = "dljob-system"
"""The namespace of the operator in manifests/install."""

JOB_SUFFIX: Final = ".job.dljob"


class Name(NamedTuple):
    """An object by its namespace (empty for cluster-scoped objects) and its name."""

    namespace: str
    name: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Name":
        metadata = document["metadata"]
        return cls(metadata.get("namespace", ""), metadata["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def max_priority_of(namespace: Mapping[str, Any]) -> int | None:
    """Return the highest priority that the annotation of a namespace grants; text that is no number grants nothing."""
    written = (namespace["metadata"].get("annotations") or {}).get(MAX_PRIORITY, "")
    return int(written) if re.fullmatch(r"-?\d{1,10}", written) else None


def priorities_of(namespaces: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the highest priorities that the annotations of these namespaces grant."""
    granted = {each["metadata"]["name"]: max_priority_of(each) for each in namespaces}
    return {name: highest for name, highest in granted.items() if highest is not None}


def holds_of(namespace: Mapping[str, Any], home: str) -> dict[str, str]:
    """Return the holds in the annotations of a namespace, with the reasons; ``home`` is the operator's namespace."""
    metadata = namespace["metadata"]
    annotations, name = metadata.get("annotations") or {}, metadata["name"]
    held = {HOLD: name, **({HOLD_ALL: ALL} if name == home else {})}
    said = {whose: annotations.get(each, "false") for each, whose in held.items()}
    return {whose: "" if why == "true" else why for whose, why in said.items() if why != "false"}


def sidecar_name(uid: str) -> str:
    """Return the name in the certificate of the SideCars of a job."""
    return uid.lower() + JOB_SUFFIX


def secret_name(job: str) -> str:
    """Name the Secret with the certificate of a job."""
    return f"{job}-dljob-tls"


def owner_reference(metadata: dict[str, Any]) -> dict[str, Any]:
    """Make the owner reference of an object that belongs to a job."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def finalizers_of(document: Mapping[str, Any]) -> list[str]:
    return list(document["metadata"].get("finalizers") or ())

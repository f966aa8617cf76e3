"""The names by which Kubernetes knows what is ours: of the resource, of labels, of the field manager."""

from collections.abc import Mapping
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
"""On a job: it stays until its pods are proven to have ended."""
PROOF_FINALIZER: Final = "dljob.io/end-is-proven"
"""On a pod: it stays until the kubelet has said that its containers have ended."""

JOB_LABEL: Final = "dljob.io/job"
"""The label on every object of a job: the job's name."""
ROLE_LABEL: Final = "dljob.io/role"
"""On a pod: ``trainer``, or the name of an auxiliary."""
SERIAL_LABEL: Final = "dljob.io/serial"
"""On a pod of the trainer: which of the job's bookings it is."""
NODE_ANNOTATION: Final = "dljob.io/node"
"""On a placeholder pod: whose GPUs it holds."""

SETTINGS: Final = "dljob-effective-settings"
"""The ConfigMap in which the operator shows how it is set."""
SETTINGS_KEY: Final = "settings.json"
GPUS: Final = "dljob-gpus"
"""The ConfigMap in which the operator shows what it alone knows of GPUs."""
GPUS_KEY: Final = "gpus.json"
GPUS_PARTS_KEY: Final = "parts"
"""In the first of them: how many there are, because an object holds 1 MiB at most."""
GPUS_PARTS: Final = (GPUS, *(f"{GPUS}-{number}" for number in range(1, 16)))
"""Their names; those beyond the number of parts hold what was before."""
FAULTS_KEY: Final = "faults.json"
"""In the same: what the next operator that leads has to know of broken ones."""
HOME: Final = "dljob-system"
"""The namespace of an operator that is installed as manifests/install has it."""

JOB_SUFFIX: Final = ".job.dljob"


class Name(NamedTuple):
    """An object, by its namespace (empty where it has none) and its name."""

    namespace: str
    name: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Name":
        metadata = document["metadata"]
        return cls(metadata.get("namespace", ""), metadata["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def sidecar_name(uid: str) -> str:
    """Return the name in the certificate of the SideCars of a job."""
    return uid.lower() + JOB_SUFFIX


def secret_name(job: str) -> str:
    """Name the Secret with the certificate of a job."""
    return f"{job}-dljob-tls"


def owner_reference(metadata: dict[str, Any]) -> dict[str, Any]:
    """Say of what is made for a job that it belongs to it."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def finalizers_of(document: Mapping[str, Any]) -> list[str]:
    """Return the finalizers of an object, which keep it after its deletion."""
    return list(document["metadata"].get("finalizers") or ())

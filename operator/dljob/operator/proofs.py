"""Proves the end of a training's pod (law 1), and finds the job of a pod.

Other jobs get the GPUs of a pod that has ended, so only proof counts. The deletion of the pod's
object proves nothing: a forced deletion, and the garbage collector of Kubernetes itself, delete it
while containers may run on a machine that is out of reach. Proof is the kubelet's report that the
containers have terminated, or the administrator's confirmation that the machine is gone
(:func:`is_gone`). Pure.
"""

from typing import Final

from dljob.core.documents.rules.podrules import TRAINER
from dljob.kube import names
from dljob.kube.documents import Json

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Kubernetes' own taint by which an administrator confirms that a node is shut down."""
UNKNOWN: Final = "ContainerStatusUnknown"
_DEVICE_PATHS: Final = ("", "/dev")


def proof_of_end(document: Json, node: Json | None) -> str:
    """
    Name the proof that no process of this pod's training is left or will be started; empty without one.

    ``node`` is the pod's Node; None if that was deleted.
    """
    metadata, status = document["metadata"], document.get("status") or {}
    if not is_bound(document):
        # The API server binds no pod to a node any more that is being deleted.
        return "NeverStarted" if metadata.get("deletionTimestamp") else ""
    if is_gone(node):
        return "NodeGone"
    trainer = (trainer_of(status).get("state") or {}).get("terminated")
    if trainer is not None and trainer.get("exitCode") == 0:
        # The kubelet restarts it on failure only. Other containers count if GPUs cannot be hidden from them.
        others = seeing_containers(document["spec"]) - {TRAINER}
        return "" if others & _running(status) else "Completed"
    # The kubelet reports this of a pod that it ends after its runtime has forgotten the container.
    is_forgotten = (trainer or {}).get("reason") == UNKNOWN and "deletionTimestamp" in metadata
    is_reported = status.get("phase") in ("Succeeded", "Failed") and not _was_collected(status)
    if _running(status) or not (is_forgotten or is_reported):
        return ""
    return UNKNOWN if is_forgotten else str(status.get("reason") or "Terminated")


def is_gone(document: Json | None) -> bool:
    """True if an administrator confirms that no process runs on this machine any more.

    Administrators and cloud providers delete the Node of a machine that no longer exists, and taint
    that of a machine that was shut down.
    """
    if document is None:
        return True
    taints = (document.get("spec") or {}).get("taints") or ()
    return any(taint.get("key") == OUT_OF_SERVICE for taint in taints)


def is_bound(document: Json) -> bool:
    return bool((document.get("spec") or {}).get("nodeName"))


def awaits_proof(document: Json) -> bool:
    """True while our finalizer keeps a pod of a training."""
    return names.PROOF_FINALIZER in names.finalizers_of(document) and role_of(document) == TRAINER


def seeing_containers(spec: Json) -> frozenset[str]:
    """
    Name the containers of a pod from which GPUs cannot be hidden, and the trainer.

    A privileged container, or one that mounts the host's /dev, sees all devices despite its variables.
    """
    of_host = {
        volume["name"]
        for volume in spec.get("volumes") or ()
        if (volume.get("hostPath") or {}).get("path", "").rstrip("/") in _DEVICE_PATHS
    }
    return frozenset(
        container["name"]
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        if container["name"] == TRAINER
        or (container.get("securityContext") or {}).get("privileged")
        or any(mount.get("name") in of_host for mount in container.get("volumeMounts") or ())
    )


def _running(status: Json) -> frozenset[str]:
    """Name the running containers, native sidecars included."""
    parts = ("initContainerStatuses", "containerStatuses")
    return frozenset(
        each["name"]
        for part in parts
        for each in status.get(part) or ()
        if "running" in (each.get("state") or {})
    )


def _was_collected(status: Json) -> bool:
    """True if the garbage collector for lost nodes, not the kubelet, has set the phase."""
    conditions = status.get("conditions") or ()
    return status.get("reason") == "NodeLost" or any(
        each.get("type") == "DisruptionTarget" and each.get("reason") == "DeletionByPodGC"
        for each in conditions
    )


# --- which job a pod belongs to ---------------------------------------------------------------


def job_of(document: Json) -> str:
    """Return the job that a pod's label names; empty without one."""
    return str((document["metadata"].get("labels") or {}).get(names.JOB_LABEL, ""))


def role_of(document: Json) -> str:
    """Return the role of a pod in its DLJob, such as ``trainer``; empty if it belongs to none."""
    metadata = document["metadata"]
    labels = metadata.get("labels") or {}
    if names.JOB_LABEL not in labels or names.ROLE_LABEL not in labels:
        return ""
    owners = metadata.get("ownerReferences") or ()
    is_of_a_job = any(owner.get("kind") == names.KIND for owner in owners)
    return str(labels[names.ROLE_LABEL]) if is_of_a_job else ""


def is_of(document: Json, uid: str) -> bool:
    """True if a pod belongs to the job with this uid, and not to another job of the same name."""
    owners = document["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid for owner in owners)


def is_booked(job: Json, pod: Json) -> bool:
    """True if the status of a job books this pod."""
    if not is_of(pod, job["metadata"]["uid"]):
        return False
    serial = pod["metadata"]["labels"].get(names.SERIAL_LABEL)
    bookings = (job.get("status") or {}).get("pods", ())
    return any(str(booking["serial"]) == serial for booking in bookings)


def trainer_of(status: Json) -> Json:
    """Return the status of the container that trains."""
    statuses = status.get("containerStatuses") or ()
    found: Json = next((each for each in statuses if each["name"] == TRAINER), {})
    return found

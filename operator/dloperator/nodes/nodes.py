"""
Reads objects of Kubernetes for the controller: nodes with GPUs, and whether a pod proves that it has ended.

Pure. The most important question is when a pod has *ended*, because other jobs then get its GPUs. The
deletion of its object proves nothing: a forced deletion, and the garbage collector of Kubernetes itself,
delete it while containers may run on a machine that is out of reach. The proof is the kubelet's report that
the containers have terminated, or the administrator's confirmation that the machine is gone (see
:func:`is_gone`).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from dlcontrol.situation.ports import (
    NODE_NOT_READY,
    Address,
    Machine,
    Pod,
    PodKey,
    PodPhase,
)
from dlcore.documents.rules.podrules import TRAINER
from dlcore.model import Gpu, Node, NodeName
from dlkube import names
from dlkube.parsing import parse
from dloperator.nodes.placeholders import (
    RESOURCE,
    PlaceholderSettings,
    PoolMode,
    Supply,
)
from dloperator.pods.pod_states import (
    PodProblem,
    explain_end,
    explain_restart,
    explain_wait,
    trainer_of,
)
from dloperator.podspecs.building import SIDECAR_PORT
from dloperator.podspecs.host_ports import first_port

Json = Mapping[str, Any]

COUNT_LABELS: Final = ("dljob.io/gpu-count", "nvidia.com/gpu.count")
TYPE_LABELS: Final = ("dljob.io/gpu-type", "nvidia.com/gpu.product")
"""Ours come first, so that an administrator can put right what was discovered."""
NOT_READY: Final = "its node is not ready"
CORDONS: Final = "dljob.io/cordoned-gpus"
"""An annotation of a node: a JSON object that says by number which GPUs to leave out, and why."""
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Kubernetes' own taint by which an administrator confirms that a node is shut down."""
PARDONS: Final = "dljob.io/pardoned-gpus"
"""Likewise: which GPUs a person has reinstated although they were out for a fault, and when."""
MOST_GPUS: Final = 64
LONGEST_COUNT: Final = 10
"""In digits."""
UNKNOWN: Final = "ContainerStatusUnknown"
_DEVICE_PATHS: Final = ("", "/dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Which nodes DLJob schedules."""

    label: str = "dljob.io/pool"
    """The label of the nodes of the pool."""
    value: str = ""
    """The value that the label must have; empty: any."""
    mode: PoolMode = PoolMode.DEDICATED
    """The means that keeps other pods off the GPUs of the pool: dedicated (no device plugin there) or reserve
    (placeholder pods)."""
    cordon_seconds: float = 120.0
    """Jobs leave a node that has been cordoned for this time; 0: only when Kubernetes evicts
    them."""
    leave_taints: tuple[str, ...] = ()
    """Further keys of taints because of which jobs leave a node at once."""
    placeholder: PlaceholderSettings = PlaceholderSettings()
    """The pods that reserve GPUs for DLJob in the mode reserve."""


# --- nodes --------------------------------------------------------------------------------


def read_node(document: Json, pool: Pool, *, not_ours: str = "") -> Node | None:
    """
    Read a node of the pool; none if it is not one, or is lost at present.

    ``not_ours`` says why none of its GPUs may be given to a job. No job newly gets one either while its
    kubelet says that it is not ready, as each does for a moment when it has started; pods that run there
    go on, as Kubernetes lets them, too.
    """
    if not is_in_pool(document, pool) or is_gone(document) or _ready(document) == "Unknown":
        return None
    return describe_node(
        document, pool, not_ours=not_ours or ("" if is_ready(document) else NOT_READY)
    )


def describe_node(document: Json, pool: Pool, *, not_ours: str = "") -> Node:
    """Read a node of the pool as it would be if it were ready."""
    metadata = document["metadata"]
    labels = metadata.get("labels") or {}
    count = _count(labels)
    if not count and pool.mode is PoolMode.RESERVE:
        count = min(_offered(document, "capacity"), MOST_GPUS)
    cordons = _cordons(metadata)
    out = _why_not_whole(labels) or not_ours
    return Node(
        NodeName(metadata["name"]),
        tuple(
            Gpu(index, unavailable_because=out or cordons.get(index, "")) for index in range(count)
        ),
        gpu_type=_first(labels, TYPE_LABELS),
        schedulable=not (document.get("spec") or {}).get("unschedulable", False),
    )


WELL_CONDITIONS: Final = frozenset({"AcceleratedHardwareReady", "GpuHealthy", "GPUHealthy"})
"""Conditions by which monitors of nodes say that GPUs are well, such as that of Amazon EKS."""
AILING_WORDS: Final = ("unhealthy", "problem", "missing", "error", "xid", "fault")
"""Parts of the names of conditions about GPUs by which the node problem detector says that they are not."""


def read_machine(document: Json) -> Machine:
    """Read the facts about a node that do not concern its GPUs."""
    info = (document.get("status") or {}).get("nodeInfo") or {}
    # An unreadable annotation reinstates no GPU.
    pardons = _read_numbered(document["metadata"], PARDONS) or {}
    return Machine(str(info.get("bootID", "")), pardons, _why_ailing(document))


def _why_ailing(document: Json) -> str:
    """Say why a node says itself that its GPUs are not well: a second witness beside a job's SideCar."""
    for each in (document.get("status") or {}).get("conditions") or ():
        kind, is_true = str(each.get("type", "")), each.get("status") == "True"
        if kind in WELL_CONDITIONS and each.get("status") == "False":
            return f"its condition {kind} is False"
        if is_true and any(word in kind.lower() for word in AILING_WORDS) and "gpu" in kind.lower():
            return f"its condition {kind} is True"
    offered, capacity = _offered(document, "allocatable"), _offered(document, "capacity")
    if 0 < offered < capacity:
        return f"its device plugin offers {offered} of {capacity} GPUs"
    return ""


def read_supply(document: Json) -> Supply:
    """Read what a node tells of its GPUs, and what its device plugin offers of them."""
    metadata = document["metadata"]
    labels = metadata.get("labels") or {}
    return Supply(
        node=metadata["name"],
        labelled=_count(labels),
        capacity=_offered(document, "capacity"),
        allocatable=_offered(document, "allocatable"),
        is_whole=not _why_not_whole(labels),
    )


def _offered(document: Json, part: str) -> int:
    return _whole(str(((document.get("status") or {}).get(part) or {}).get(RESOURCE, "0")))


def _whole(text: str) -> int:
    """Read a number of GPUs; a text that is no number, or a number that no node has, counts as 0."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < LONGEST_COUNT else 0


def is_in_pool(document: Json, pool: Pool) -> bool:
    value = (document["metadata"].get("labels") or {}).get(pool.label)
    return value is not None and pool.value in ("", value)


def is_ready(document: Json) -> bool:
    """Whether its kubelet has been heard of lately, and says that it can run pods."""
    return _ready(document) == "True"


def is_gone(document: Json | None) -> bool:
    """
    Whether an administrator says that nothing runs on this machine any more.

    Either its object is deleted, which is how administrators and cloud providers say that a machine
    is no more, or it has the taint for a machine that was shut down.
    """
    if document is None:
        return True
    taints = (document.get("spec") or {}).get("taints") or ()
    return any(taint.get("key") == OUT_OF_SERVICE for taint in taints)


def _ready(document: Json) -> str:
    conditions = (document.get("status") or {}).get("conditions") or ()
    return next((each["status"] for each in conditions if each["type"] == "Ready"), "Unknown")


def _count(labels: Mapping[str, str]) -> int:
    return min(_whole(_first(labels, COUNT_LABELS)), MOST_GPUS)


def _first(labels: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def _cordons(metadata: Json) -> dict[int, str]:
    found = _read_numbered(metadata, CORDONS)
    if found is None:
        # A person wanted GPUs left out, but which ones cannot be read.
        why = f"the annotation {CORDONS} of the node cannot be read"
        return dict.fromkeys(range(MOST_GPUS), why)
    return {number: reason or "cordoned" for number, reason in found.items()}


def _read_numbered(metadata: Json, key: str) -> dict[int, str] | None:
    """Read an annotation that says something about GPUs by their numbers; none if that is impossible."""
    text = (metadata.get("annotations") or {}).get(key, "")
    try:
        return {int(number): str(word) for number, word in parse(text or "{}").items()}
    except (ValueError, AttributeError):
        return None


def _why_not_whole(labels: Mapping[str, str]) -> str:
    """Say why the GPUs of a node cannot be given away whole; empty if they can."""
    parts = [key for key in labels if key.startswith("nvidia.com/mig-") and key.endswith(".count")]
    if parts or "-MIG-" in labels.get("nvidia.com/gpu.product", ""):
        return "its GPUs are cut into parts (MIG), which DLJob does not schedule"
    if labels.get("nvidia.com/gpu.sharing-strategy", "none") not in ("none", ""):
        return "its device plugin shares GPUs, so other pods may use them"
    return ""


# --- pods ---------------------------------------------------------------------------------


def read_pod(key: PodKey, document: Json | None, node: Json | None, uid: str) -> Pod:
    """Say what is known of a pod that was booked; ``uid`` is that of its job."""
    if document is None:
        return Pod(key, PodPhase.PENDING)
    if proof := _why_ended(document, node):
        found = explain_end(document, key.node, proof=proof)
        return _pod(key, PodPhase.ENDED, found)
    if is_bound(document) and node is not None and _ready(node) == "Unknown":
        message = (
            f"node {key.node} does not answer, so it is unknown what runs there; its GPUs stay"
            " with their jobs until their end is proven: by its kubelet, or, once the machine is off,"
            f" by deleting the Node or tainting it {OUT_OF_SERVICE}"
        )
        return Pod(key, PodPhase.LOST, reason="NodeLost", message=message)
    status = document.get("status") or {}
    if (trainer_of(status).get("state") or {}).get("running") and status.get("podIP"):
        port = first_port(document) or SIDECAR_PORT
        address = Address(host=status["podIP"], port=port, name=names.sidecar_name(uid))
        return _pod(key, PodPhase.UP, explain_restart(document), address)
    if is_bound(document) and node is not None and not is_ready(node):
        message = f"node {key.node} is not ready; kubectl describe node {key.node} tells why"
        return Pod(key, PodPhase.PENDING, reason=NODE_NOT_READY, message=message)
    return _pod(key, PodPhase.PENDING, explain_wait(document))


def _pod(key: PodKey, phase: PodPhase, found: PodProblem, address: Address | None = None) -> Pod:
    return Pod(key, phase, address, **asdict(found))


def is_bound(document: Json) -> bool:
    """Whether a node was found for it."""
    return bool((document.get("spec") or {}).get("nodeName"))


def job_of(document: Json) -> str:
    """The name of the job that a pod says it is of; empty if it says none."""
    return str((document["metadata"].get("labels") or {}).get(names.JOB_LABEL, ""))


def role_of(document: Json) -> str:
    """Return the role of a pod in a job of ours, such as the training; empty if it belongs to none."""
    metadata = document["metadata"]
    labels = metadata.get("labels") or {}
    if names.JOB_LABEL not in labels or names.ROLE_LABEL not in labels:
        return ""
    owners = metadata.get("ownerReferences") or ()
    is_of_a_job = any(owner.get("kind") == names.KIND for owner in owners)
    return str(labels[names.ROLE_LABEL]) if is_of_a_job else ""


def is_of(document: Json, uid: str) -> bool:
    """Whether a pod was made for the job with this uid, and not for another one of its name."""
    owners = document["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid for owner in owners)


def is_booked(job: Json, pod: Json) -> bool:
    """Whether the status of a job, as it is written, accounts for this pod of its training."""
    if not is_of(pod, job["metadata"]["uid"]):
        return False
    serial = pod["metadata"]["labels"].get(names.SERIAL_LABEL)
    bookings = (job.get("status") or {}).get("pods", ())
    return any(str(booking["serial"]) == serial for booking in bookings)


def awaits_proof(document: Json) -> bool:
    """Whether a pod of a training is kept by us, because its end is not proven yet, or was just now."""
    return names.PROOF_FINALIZER in names.finalizers_of(document) and role_of(document) == TRAINER


def has_ended(document: Json, node: Json | None) -> bool:
    """Whether it is proven that no process of this pod's training is left, or will be started."""
    return bool(_why_ended(document, node))


def _why_ended(document: Json, node: Json | None) -> str:
    metadata, status = document["metadata"], document.get("status") or {}
    if not is_bound(document):
        # The API server binds no pod to a node any more that is being deleted.
        return "NeverStarted" if metadata.get("deletionTimestamp") else ""
    if is_gone(node):
        return "NodeGone"
    trainer = (trainer_of(status).get("state") or {}).get("terminated")
    if trainer is not None and trainer.get("exitCode") == 0:
        # It is restarted on failure only. From what else runs in the pod GPUs are hidden, if they can be.
        beside = seeing_containers(document["spec"]) - {TRAINER}
        return "" if beside & _running(status) else "Completed"
    # The kubelet ends its account so when it ends a pod, and its runtime knows the container no more.
    is_forgotten = (trainer or {}).get("reason") == UNKNOWN and "deletionTimestamp" in metadata
    is_told = status.get("phase") in ("Succeeded", "Failed") and not _was_collected(status)
    if _running(status) or not (is_forgotten or is_told):
        return ""
    return UNKNOWN if is_forgotten else str(status.get("reason") or "Terminated")


def seeing_containers(spec: Json) -> frozenset[str]:
    """
    Name the containers of a pod of ours that could see GPUs.

    A privileged container sees all devices of its node despite its variables, and so does one that
    has them as files of the host.
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
    """Name the containers that run, native side cars among them."""
    parts = ("initContainerStatuses", "containerStatuses")
    return frozenset(
        each["name"]
        for part in parts
        for each in status.get(part) or ()
        if "running" in (each.get("state") or {})
    )


def _was_collected(status: Json) -> bool:
    """Whether the garbage collector for lost nodes, and not the kubelet, has set the phase to "Failed"."""
    conditions = status.get("conditions") or ()
    return status.get("reason") == "NodeLost" or any(
        each.get("type") == "DisruptionTarget" and each.get("reason") == "DeletionByPodGC"
        for each in conditions
    )

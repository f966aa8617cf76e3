"""
Reads the Nodes of the pool: their GPUs, and why some of them are not given to jobs.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dljob.control.situation.ports import BootState
from dljob.core.model import Gpu, Node, NodeName
from dljob.kube.documents import Json, parse
from dljob.operator.nodes.placeholders import RESOURCE, PlaceholderSettings, PoolMode, Supply
from dljob.operator.proofs import is_gone

COUNT_LABELS: Final = ("dljob.io/gpu-count", "nvidia.com/gpu.count")
TYPE_LABELS: Final = ("dljob.io/gpu-type", "nvidia.com/gpu.product")
"""The labels of DLJob come first, so that an administrator can correct discovered values."""
NOT_READY: Final = "its node is not ready"
CORDONS: Final = "dljob.io/cordoned-gpus"
"""An annotation of a node: a JSON object of GPUs to leave out, by number, each with the reason."""
PARDONS: Final = "dljob.io/pardoned-gpus"
"""Likewise: GPUs that a person has reinstated after a fault, each with the time."""
MOST_GPUS: Final = 64
LONGEST_COUNT: Final = 10


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


def read_node(document: Json, pool: Pool, *, not_ours: str = "") -> Node | None:
    """
    Read a node of the pool; None if it is not in the pool, is gone, or its kubelet does not report.

    ``not_ours`` is the reason why none of its GPUs may be given to a job. A node that is not ready gets no new
    jobs either, as each is for a moment when its kubelet has started; pods that run there continue.
    """
    if not is_in_pool(document, pool) or is_gone(document) or readiness(document) == "Unknown":
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
"""Conditions that are True while GPUs are healthy, such as that of Amazon EKS."""
AILING_WORDS: Final = ("unhealthy", "problem", "missing", "error", "xid", "fault")
"""Parts of the names of conditions by which the node problem detector reports faulty GPUs."""


def read_boot_state(document: Json) -> BootState:
    """Read the boot ID of a node, the reinstated GPUs, and the reason why it reports its GPUs as faulty."""
    info = (document.get("status") or {}).get("nodeInfo") or {}
    # An unreadable annotation reinstates no GPU.
    pardons = _read_numbered(document["metadata"], PARDONS) or {}
    return BootState(str(info.get("bootID", "")), pardons, _why_ailing(document))


def _why_ailing(document: Json) -> str:
    """Return the reason why a node reports faulty GPUs; a second source in addition to SideCars."""
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
    """Read the numbers of GPUs that the labels of a node and its device plugin report."""
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
    """Read a number of GPUs; anything else, or an impossibly large number, counts as 0."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < LONGEST_COUNT else 0


def is_in_pool(document: Json, pool: Pool) -> bool:
    value = (document["metadata"].get("labels") or {}).get(pool.label)
    return value is not None and pool.value in ("", value)


def is_ready(document: Json) -> bool:
    """True if the kubelet has recently reported that it can run pods."""
    return readiness(document) == "True"


def readiness(document: Json) -> str:
    """Return the status of a Node's condition Ready: True, False or Unknown."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    return next((each["status"] for each in conditions if each["type"] == "Ready"), "Unknown")


def _count(labels: Mapping[str, str]) -> int:
    return min(_whole(_first(labels, COUNT_LABELS)), MOST_GPUS)


def _first(labels: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def _cordons(metadata: Json) -> dict[int, str]:
    found = _read_numbered(metadata, CORDONS)
    if found is None:
        # A person wanted to leave GPUs out, but it cannot be read which ones.
        why = f"the annotation {CORDONS} of the node cannot be read"
        return dict.fromkeys(range(MOST_GPUS), why)
    return {number: reason or "cordoned" for number, reason in found.items()}


def _read_numbered(metadata: Json, key: str) -> dict[int, str] | None:
    """Read an annotation that maps numbers of GPUs to texts; None if it cannot be read."""
    text = (metadata.get("annotations") or {}).get(key, "")
    try:
        return {int(number): str(word) for number, word in parse(text or "{}").items()}
    except (ValueError, AttributeError):
        return None


def _why_not_whole(labels: Mapping[str, str]) -> str:
    """Return the reason why the GPUs of a node cannot be given away whole; empty if they can."""
    parts = [key for key in labels if key.startswith("nvidia.com/mig-") and key.endswith(".count")]
    if parts or "-MIG-" in labels.get("nvidia.com/gpu.product", ""):
        return "its GPUs are cut into parts (MIG), which DLJob does not schedule"
    if labels.get("nvidia.com/gpu.sharing-strategy", "none") not in ("none", ""):
        return "its device plugin shares GPUs, so other pods may use them"
    return ""

"""
Notices of maintenance and of spot nodes: the nodes that jobs leave before their pods are evicted.

A taint with a known key, or a step of the GPU Operator's driver upgrade, announces that everything on a node will
end soon: jobs save a checkpoint and leave at once. A cordon means less, because people also cordon a node to
inspect it: jobs leave after a while.
"""

import time
from collections.abc import Callable
from typing import Final

from dljob.kube.documents import Json

TAINTS: Final = (
    "dljob.io/ending",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/rebalance-recommendation",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "cloud.google.com/impending-node-termination",
    "kubernetes.azure.com/scalesetpriority-evicted",
    "node.kubernetes.io/maintenance",
    "medik8s.io/drain",
)
"""Keys of taints that announce maintenance or the end of a spot node."""
UPGRADE: Final = "nvidia.com/gpu-driver-upgrade-state"
"""A label of the GPU Operator."""
UPGRADING: Final = frozenset(
    {
        "cordon-required",
        "wait-for-jobs-required",
        "pod-deletion-required",
        "drain-required",
        "node-maintenance-required",
        "pod-restart-required",
        "validation-required",
    }
)
"""Its values while the driver of a node is about to be replaced."""


class Notices:
    """One for the life of a leader."""

    def __init__(
        self,
        taints: tuple[str, ...],
        cordon_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._taints = frozenset((*TAINTS, *taints))
        self._cordon_seconds = cordon_seconds
        self._clock = clock
        self._cordoned_at: dict[str, float] = {}

    def why_leave(self, node: Json) -> str:
        """Return the reason why jobs have to leave a node now; empty if they need not."""
        spec, metadata = node.get("spec") or {}, node["metadata"]
        for taint in spec.get("taints") or ():
            if taint.get("key") in self._taints:
                shown = f"{taint['key']}={taint.get('value') or ''}".removesuffix("=")
                return f"its taint {shown} says that its pods will be evicted"
        state = (metadata.get("labels") or {}).get(UPGRADE, "")
        if state in UPGRADING:
            return f"its driver is to be replaced ({UPGRADE}: {state})"
        return self._why_cordoned(metadata["name"], is_cordoned=bool(spec.get("unschedulable")))

    def _why_cordoned(self, node: str, *, is_cordoned: bool) -> str:
        if not is_cordoned:
            self._cordoned_at.pop(node, None)
            return ""
        since = self._cordoned_at.setdefault(node, self._clock())
        if self._cordon_seconds <= 0 or self._clock() < since + self._cordon_seconds:
            return ""
        return f"it has been cordoned for {self._cordon_seconds:g} s"

"""
Which nodes jobs leave before their pods are evicted, and why: notices of maintenance and of spot nodes.

A taint of a known key, or a step of the GPU Operator's driver upgrade, says that everything on a node will
be ended soon: jobs save themselves and leave at once. A cordon says less, because people also cordon a
node to look at it: jobs leave when it has lasted for a while.
"""

import time
from collections.abc import Callable
from typing import Final

from dlkube.documents import Json

TAINTS: Final = (
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
"""Of maintenance and of spot nodes, by those who are known to set them."""
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
"""Its values from the moment on at which the driver of a node is about to be replaced."""


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
        """Say why jobs have to leave a node now; empty if they need not."""
        spec, metadata = node.get("spec") or {}, node["metadata"]
        for taint in spec.get("taints") or ():
            if taint.get("key") in self._taints:
                return f"its taint {taint['key']} says that its pods will be evicted"
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

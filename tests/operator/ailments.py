"""
The faults of nodes that a test asks for, in the words with which a real kubelet reports them.

Read by :mod:`tests.operator.kubelets` at each look; a test may change it at any time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]


@dataclass
class Ailments:
    """The faults of one set of nodes; none, unless a test sets one."""

    waits: dict[str, Json] = field(default_factory=dict)
    """By image: why its containers do not start, as ``{"reason": …, "message": …}``."""
    inits: dict[str, int] = field(default_factory=dict)
    """By name: init containers that end with this exit code, again and again."""
    rejects: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By node: the reason and message with which its kubelet rejects pods."""
    evicted: dict[str, str] = field(default_factory=dict)
    """By pod: the message of an eviction."""
    out_of_memory: set[str] = field(default_factory=set)
    """Pods whose container exceeds its memory limit; each is killed once."""

    def why_waiting(self, spec: Json, image: str) -> tuple[Json, list[Json]]:
        """The reason for which a pod's trainer waits, and the statuses of its init containers."""
        for init in spec.get("initContainers", ()):
            code = self.inits.get(init["name"])
            if code is not None:
                return {"reason": "PodInitializing"}, [_failing_init(init, code)]
        return self.waits.get(image, {}), []


def _failing_init(init: Json, code: int) -> Json:
    message = f"back-off 10s restarting failed container={init['name']}"
    return {
        "name": init["name"],
        "image": init["image"],
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": message}},
        "lastState": {"terminated": {"exitCode": code, "reason": "Error"}},
    }


def evicted(status: Json, conditions: list[Mapping[str, Any]], message: str) -> Json:
    told = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": message,
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    others = [each for each in conditions if each["type"] != "DisruptionTarget"]
    failed = {"phase": "Failed", "reason": "Evicted", "message": message}
    return status | failed | {"conditions": [*others, told]}


def rejected(reason: str, message: str) -> Json:
    """The status of a pod that a kubelet rejects."""
    return {"phase": "Failed", "reason": reason, "message": f"Pod was rejected: {message}"}

"""Booked pods without an object whose end is not proven.

Our finalizer keeps the object of a pod until its end is proven, even if it is deleted by force. A
person may remove the finalizer; then Kubernetes no longer reports the state of the containers, and
the missing object proves nothing (law 1). Proof is a reboot of the machine, its removal, or the
SideCar's report, at its old address, that it has released everything and exits: the container of a
deleted pod is not restarted. The next leader does not remember the pod; the status of the job names
the pods that were ever used. A pod that is still needed is created again on the same node, where
the kubelet ends the former pod before it starts the new one. A pod that is no longer needed counts
as gone. A pod that was never used may never have been created, because the operator that booked it
died; it has no command to run, and never gets one, because a former leader can record nothing. If a
late request of the former leader still creates the pod, it is not booked, and is deleted.
"""

from collections.abc import Collection
from dataclasses import dataclass

from dljob.control.situation.ports import Address, Pod, PodKey, PodPhase
from dljob.kube.documents import Json
from dljob.operator.proofs import is_gone

REASON = "PodVanished"


@dataclass(frozen=True, slots=True)
class _Missing:
    address: Address | None
    """The address of its SideCar."""
    boot: str
    """The boot ID of the node when the object was first missing."""
    was_used: bool = True
    """True if processes may have run in it."""


class MissingPods:
    """One for the life of a leader."""

    def __init__(self) -> None:
        self._known: dict[tuple[PodKey, str], _Missing] = {}

    def note(self, key: PodKey, name: str, *, last: Pod, node: Json | None) -> None:
        """Remember that the object of a pod is missing, which was last read as ``last``."""
        self._known.setdefault((key, name), _Missing(last.address, _boot_of(node)))

    def note_missing(self, key: PodKey, name: str, *, node: Json | None, was_used: bool) -> None:
        """Remember that a pod has no object, which may never have existed, and is to end."""
        self._known.setdefault((key, name), _Missing(None, _boot_of(node), was_used))

    def read(self, key: PodKey, name: str, *, node: Json | None) -> Pod | None:
        """Read a pod without an object; None if it never was noted."""
        missing = self._known.get((key, name))
        if missing is None:
            return None
        if not missing.was_used:
            message = f"its pod on {key.node} is missing, and nothing ever ran in it"
            return Pod(key, PodPhase.ENDED, reason="NeverUsed", message=message)
        if is_gone(node):
            message = f"its pod on {key.node} is gone with its node"
            return Pod(key, PodPhase.ENDED, reason="NodeGone", message=message)
        if missing.boot and _boot_of(node) not in ("", missing.boot):
            message = f"its pod on {key.node} vanished, and the machine has rebooted since"
            return Pod(key, PodPhase.ENDED, reason="NodeRebooted", message=message)
        message = (
            f"the object of its pod {name} on {key.node} was removed by force, which does not"
            " prove that it ended; if nothing of it is left there, reboot the machine, or delete or"
            " taint its Node"
        )
        return Pod(
            key, PodPhase.LOST, missing.address, reason=REASON, message=message, vanished=True
        )

    def keep(self, keys: Collection[PodKey]) -> None:
        """Forget pods that are no longer booked."""
        for known in [known for known in self._known if known[0] not in keys]:
            del self._known[known]


def _boot_of(node: Json | None) -> str:
    info = ((node or {}).get("status") or {}).get("nodeInfo") or {}
    return str(info.get("bootID", ""))

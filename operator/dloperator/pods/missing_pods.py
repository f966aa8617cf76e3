"""
Pods whose objects are gone although it is not proven that they ended.

Our finalizer keeps the object of a pod until then, also where it is deleted with force. A person may
take the finalizer away as well; then Kubernetes no longer reports what becomes of the containers, and that
the object is gone proves nothing (law 1). One of these is proof: the machine has rebooted since, or is gone,
or the SideCar, which the operator still asks at its old address, has released everything and
ends: a container whose pod is gone is not started again.

Only one operator remembers a pod; the next one finds in the status of the job which pods were ever used.
A pod that is still needed is created again on the same node, where the kubelet has ended the former one
before it starts the new one. A pod that is no longer needed counts as gone. A pod that was never used may
never have been created, because the operator that booked it died before; it has no command to run, and
never gets one, because an operator records a command first and a former leader can record nothing. If a
late request of the former leader still creates the pod, it is not booked, and is deleted like any such pod.
"""

from collections.abc import Collection
from dataclasses import dataclass

from dlcontrol.situation.ports import (
    Address,
    Pod,
    PodKey,
    PodPhase,
)
from dlkube.documents import Json
from dloperator.proofs import is_gone

REASON = "PodVanished"


@dataclass(frozen=True, slots=True)
class _Missing:
    address: Address | None
    """Where its SideCar was spoken to."""
    boot: str
    """Which start of the machine it was when the object was first seen to be gone."""
    was_used: bool = True
    """Whether anything may ever have run in it."""


class MissingPods:
    """One for the life of a leader."""

    def __init__(self) -> None:
        self._known: dict[tuple[PodKey, str], _Missing] = {}

    def note(self, key: PodKey, name: str, last: Pod, node: Json | None) -> None:
        """Remember that a pod is gone that was seen as ``last``."""
        self._known.setdefault((key, name), _Missing(last.address, _boot_of(node)))

    def note_missing(self, key: PodKey, name: str, *, node: Json | None, was_used: bool) -> None:
        """Remember that there is no such pod now, which may never have been seen, and is to end."""
        self._known.setdefault((key, name), _Missing(None, _boot_of(node), was_used))

    def read(self, key: PodKey, name: str, node: Json | None) -> Pod | None:
        """Say what is known of a pod without an object; none if none was ever seen."""
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
        """Forget all others, which are no longer booked."""
        for known in [known for known in self._known if known[0] not in keys]:
            del self._known[known]


def _boot_of(node: Json | None) -> str:
    info = ((node or {}).get("status") or {}).get("nodeInfo") or {}
    return str(info.get("bootID", ""))

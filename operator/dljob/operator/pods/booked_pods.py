"""
Reads the booked pods from the mirrors; an unchanged pod is not read again.

Some booked pods have no object, and no proof of their end. Our finalizer keeps the object of a pod until its end is
proven, even if it is deleted by force. A person may remove the finalizer; then Kubernetes no longer reports the state of
the containers, and the missing object proves nothing (law 1). Proof is a reboot of the machine, its removal, or the
SideCar's report, at its old address, that it has released everything and exits: the container of a deleted pod is not
restarted. The next leader does not remember the pod; the status of the job names the pods that were ever used. A pod that
is still needed is created again on the same node, where the kubelet ends the former pod before it starts the new one. A
pod that is no longer needed counts as gone. A pod that was never used may never have been created, because the operator
that booked it died; it has no command to run, and never gets one, because a former leader can record nothing. If a late
request of the former leader still creates the pod, it is not booked, and is deleted.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dljob.control.situation.ports import Address, Entry, Pod, PodKey, PodPhase
from dljob.control.situation.status import Booking
from dljob.core.model import JobId
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import name_of
from dljob.operator.pods.pod_states import read_pod
from dljob.operator.podspecs import building
from dljob.operator.proofs import is_gone, is_of


@dataclass(frozen=True, slots=True)
class _Missing:
    address: Address | None
    """The address of its SideCar."""
    boot: str
    """The boot ID of the node when the object was first missing."""
    was_used: bool = True
    """True if processes may have run in it."""


class MissingPods:
    """Booked pods without an object whose end is not proven; one for the life of a leader."""

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
            key,
            PodPhase.LOST,
            missing.address,
            reason="PodVanished",
            message=message,
            vanished=True,
        )

    def keep(self, keys: Collection[PodKey]) -> None:
        """Forget pods that are no longer booked."""
        for known in [known for known in self._known if known[0] not in keys]:
            del self._known[known]


def _boot_of(node: Json | None) -> str:
    info = ((node or {}).get("status") or {}).get("nodeInfo") or {}
    return str(info.get("bootID", ""))


class _Read(NamedTuple):
    document: Json | None
    node: Json | None
    serial: int
    uid: str
    """The job's uid."""
    name: Name
    pod: Pod


class BookedPods:
    """One for the life of a leader."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self._known: dict[PodKey, _Read] = {}
        self._missing = MissingPods()

    def read(self, entries: Mapping[JobId, Entry]) -> dict[PodKey, Pod]:
        pods: dict[PodKey, Pod] = {}
        for job, entry in entries.items():
            for booking in entry.status.pods:
                key = PodKey(job, booking.node)
                pods[key] = self._read(entry, key, booking=booking)
        for key in self._known.keys() - pods.keys():
            del self._known[key]
        self._missing.keep(pods)
        return pods

    def address(self, key: PodKey) -> Address | None:
        """Return the address of a pod's SideCar."""
        return self._known[key].pod.address

    def note_missing(self, job: JobId, booking: Booking, *, was_used: bool) -> None:
        """Remember that a booking has no pod, and that none will be created for it any more."""
        key, name = PodKey(job, booking.node), name_of_trainer(job, booking)
        node = self._mirrors.nodes.get(Name("", booking.node))
        self._missing.note_missing(key, name.name, node=node, was_used=was_used)
        self._known.pop(key, None)

    def _read(self, entry: Entry, key: PodKey, *, booking: Booking) -> Pod:
        uid = entry.document["metadata"]["uid"]
        known = self._known.get(key)
        if known is not None and (known.serial, known.uid) != (booking.serial, uid):
            known = None
        name = known.name if known is not None else name_of_trainer(key.job, booking)
        document = self._mirrors.pods.get(name)
        node = self._mirrors.nodes.get(Name("", key.node))
        if known is not None and known.document is document and known.node is node:
            return known.pod
        if document is not None and not is_of(document, uid):
            # The pod belongs to a former job of this name.
            document = None
        if document is None and known is not None and known.document is not None:
            self._missing.note(key, name.name, last=known.pod, node=node)
        absent = self._missing.read(key, name.name, node=node) if document is None else None
        pod = absent or read_pod(key, document, node=node, uid=uid)
        self._known[key] = _Read(document, node, booking.serial, uid, name, pod)
        return pod


def name_of_trainer(job: JobId, booking: Booking) -> Name:
    namespace, name = name_of(job)
    return Name(namespace, building.trainer_name(name, booking.serial))

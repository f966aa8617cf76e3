"""Reads the booked pods from the mirrors; an unchanged pod is not read again."""

from collections.abc import Mapping
from typing import NamedTuple

from dljob.control.situation.ports import Address, Entry, Pod, PodKey
from dljob.control.situation.status import Booking
from dljob.core.model import JobId
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import name_of
from dljob.operator.pods.missing_pods import MissingPods
from dljob.operator.pods.pod_states import read_pod
from dljob.operator.podspecs import building
from dljob.operator.proofs import is_of


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

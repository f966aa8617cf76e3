"""Creates and deletes the pods in which jobs train."""

import asyncio
import contextlib
from typing import Final

from dljob.control.situation.ports import Entry, NotTaken, PodKey, PodOrder
from dljob.control.situation.status import Booking
from dljob.kube.certificates import Certificates
from dljob.kube.client import ApiServer, Conflict, NotFound, Rejected
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.resources import PODS
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.pods.booked_pods import BookedPods, name_of_trainer
from dljob.operator.pods.remedies import find_remedy
from dljob.operator.podspecs import building
from dljob.operator.podspecs.host_ports import (
    PortRange,
    choose_block,
    first_port,
    is_on_host,
    meeting_port,
)
from dljob.operator.podspecs.podsettings import PodSettings
from dljob.operator.proofs import is_of

FIRST_PORT, PORTS, PORTS_A_START = 20_000, 10_000, 64
"""The ports of the rendezvous of a job's processes, in a pod with an address of its own."""

BAD_REQUEST, FORBIDDEN, INVALID = 400, 403, 422
REFUSALS: Final = frozenset({BAD_REQUEST, FORBIDDEN, INVALID})
"""Status codes that a retry does not change; a person has to act."""


class Launcher:
    """One for the life of a leader."""

    def __init__(
        self,
        api: ApiServer,
        mirrors: Mirrors,
        *,
        certificates: Certificates,
        booked: BookedPods,
        settings: PodSettings,
        turns: asyncio.Semaphore,
    ) -> None:
        """``turns`` limits the requests that are under way, together with the writes of statuses."""
        self._api = api
        self._mirrors = mirrors
        self._certificates = certificates
        self._booked = booked
        self._settings = settings
        self._turns = turns
        self._host_network = asyncio.Lock()
        """Held from the choice of host ports until the mirror shows the pod that has them."""

    async def launch(self, order: PodOrder) -> None:
        """Create this pod, unless it exists."""
        entry = order.entry
        metadata = entry.document["metadata"]
        # Created before the pod, because the kubelet starts no container without this Secret.
        try:
            await self._certificates.provide(entry.job.id, metadata)
        except Rejected as error:
            # Such as in a namespace that is about to be deleted, where nothing can be created any more.
            raise _not_taken(error) from error
        if not is_on_host(entry.job.template["spec"]):
            await self._make(order)
            return
        async with self._host_network:
            await self._make(order, host_port=self._choose_ports(metadata["uid"]))

    async def _make(self, order: PodOrder, *, host_port: int = 0) -> None:
        entry, booking = order
        document, node = entry.document, self._mirrors.nodes.get(Name("", order.booking.node))
        pod = building.make_trainer(
            dict(document),
            entry.job,
            booking=booking,
            settings=self._settings,
            node=node,
            host_port=host_port,
        )
        # No turn is held while the pod waits for a certificate or for ports, because the writes of
        # statuses have the same turns.
        async with self._turns:
            made = await self._create(pod, document["metadata"]["uid"])
        self._mirrors.pods.show(made, is_ours=True)

    def _choose_ports(self, uid: str) -> int:
        if not self._settings.host_ports:
            return 0  # make_trainer() refuses the pod, with the remedy.
        ports = PortRange.parse(self._settings.host_ports)
        first = choose_block(uid, self._mirrors.pods.objects.values(), ports=ports)
        if not first:
            raise NotTaken(
                f"all ports of pods.hostPorts ({self._settings.host_ports}) belong to other jobs; wait, or make the"
                " range larger"
            )
        return first

    def host_of(self, key: PodKey) -> str:
        """Return the address of a pod, by which the other pods of its job reach it."""
        address = self._booked.address(key)
        if address is None:
            raise LookupError(f"the pod of {key} has no address")
        return address.host

    def rendezvous_port(self, entry: Entry, generation: int, *, processes: int) -> int:
        """Take other ports for each start, since a process of the last one may still hold its own."""
        pods = (
            self._mirrors.pods.get(name_of_trainer(entry.job.id, each))
            for each in entry.status.pods
        )
        first = next((port for pod in pods if pod is not None and (port := first_port(pod))), 0)
        if first:
            return meeting_port(first, generation, processes=processes)
        step = max(PORTS_A_START, processes)
        return FIRST_PORT + generation * step % (PORTS - step)

    async def _create(self, pod: Json, uid: str) -> Json:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        try:
            return await self._api.create(PODS, pod, namespace)
        except Conflict:
            # The pod may be ours: the answer to an earlier request was lost, or a former leader
            # created it.
            there = await self._api.get(PODS, name, namespace)
        except Rejected as error:
            raise _not_taken(error) from error
        if not is_of(there, uid):
            raise NotTaken(
                f"there is a pod {namespace}/{name} already, which does not belong to DLJob"
            )
        return there

    async def end(self, entry: Entry, booking: Booking, *, was_used: bool) -> None:
        """
        Delete a pod; our finalizer keeps the object until the kubelet proves the end of the containers.

        If it is missing, the operator that booked it may have died before creating it.
        """
        name = name_of_trainer(entry.job.id, booking)
        pod: Json | None = self._mirrors.pods.get(name)
        if pod is None:
            # The watch may not have shown yet a pod that a former leader has just created.
            with contextlib.suppress(NotFound):
                self._mirrors.pods.show(pod := await self._api.get(PODS, name.name, name.namespace))
        if pod is not None and is_of(pod, entry.document["metadata"]["uid"]):
            await self._api.delete(PODS, name.name, name.namespace, uid=pod["metadata"]["uid"])
            return
        self._booked.note_missing(entry.job.id, booking, was_used=was_used)
        self._mirrors.report_news(burst=False)


def _not_taken(error: Rejected) -> Rejected | NotTaken:
    """Name the remedy of a refusal that only a person changes."""
    if error.status not in REFUSALS:
        return error
    return NotTaken(f"{error}; {find_remedy(error).remedy}")

"""The pods in which jobs train: how they are made, and how they are made to end."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from dlcontrol.situation.ports import Entry, PodOrder
from dlcontrol.situation.status import Booking
from dlkube.certificates import Certificates
from dlkube.client import (
    ApiServer,
    Conflict,
    NotFound,
    Rejected,
)
from dlkube.mirror import Mirrors
from dlkube.names import Name
from dlkube.resources import PODS
from dloperator.nodes.nodes import is_of
from dloperator.pods.booked_pods import BookedPods, name_of_trainer
from dloperator.pods.remedies import find_remedy
from dloperator.podspecs import building
from dloperator.podspecs.podsettings import PodSettings

Json = Mapping[str, Any]

BAD_REQUEST, FORBIDDEN, INVALID = 400, 403, 422
REFUSALS: Final = frozenset({BAD_REQUEST, FORBIDDEN, INVALID})
"""With these the API server says that somebody has to do something."""


class NotTaken(Exception):
    """A pod is refused; the text says why, and what is to be done about it."""


class Trainers:
    """One for the life of a leader."""

    def __init__(
        self,
        api: ApiServer,
        mirrors: Mirrors,
        certificates: Certificates,
        booked: BookedPods,
        settings: PodSettings,
    ) -> None:
        self._api = api
        self._mirrors = mirrors
        self._certificates = certificates
        self._booked = booked
        self._settings = settings

    async def launch(self, order: PodOrder, turns: asyncio.Semaphore) -> None:
        """Let there be this pod."""
        entry, booking = order
        document = entry.document
        metadata = document["metadata"]
        await self._certificates.provide(entry.job.id, metadata)
        node = self._mirrors.nodes.get(Name("", booking.node))
        pod = building.make_trainer(dict(document), entry.job, booking, self._settings, node=node)
        async with turns:
            made = await self._create(pod, metadata["uid"])
        self._mirrors.pods.show(made, is_ours=True)

    async def _create(self, pod: Json, uid: str) -> Json:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        try:
            return await self._api.create(PODS, pod, namespace)
        except Conflict:
            there = await self._api.get(PODS, name, namespace)
        except Rejected as error:
            if error.status not in REFUSALS:
                raise
            raise NotTaken(f"{error}; {find_remedy(error).remedy}") from error
        if not is_of(there, uid):
            raise NotTaken(f"there is a pod {namespace}/{name} already, which is not ours")
        return there

    async def end(self, entry: Entry, booking: Booking, *, was_used: bool) -> None:
        """
        Have a pod deleted; that its object goes proves nothing, so it stays until the kubelet tells.

        If it is not there, whoever booked it may have died before making it.
        """
        name = name_of_trainer(entry.job.id, booking)
        pod = self._mirrors.pods.get(name)
        if pod is None:
            with contextlib.suppress(NotFound):
                pod = await self._api.get(PODS, name.name, name.namespace)
                self._mirrors.pods.show(pod)
        if pod is not None and is_of(pod, entry.document["metadata"]["uid"]):
            await self._api.delete(PODS, name.name, name.namespace, uid=pod["metadata"]["uid"])
            return
        self._booked.note_missing(entry.job.id, booking, was_used=was_used)
        self._mirrors.wake(False)  # noqa: FBT003 - that is news, and stands in no watch

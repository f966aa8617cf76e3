"""
The list of jobs at the start of a controller, with the pods in it that it had lost.

Called by :mod:`dllocal.running` before anything is decided; :mod:`dllocal.jobs.unlisted` finds the pods.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from dlcontrol.sidecars.dialing import (
    DialSettings,
    Line,
    NotAccepted,
    Unreachable,
)
from dlcontrol.situation.ports import MOST_JUMP
from dlcontrol.situation.status import Booking
from dlcore.model import JobId, Node
from dllocal.environments import Origin, Submitter
from dllocal.events import Events
from dllocal.folders import Folders
from dllocal.jobs.registry import Registry
from dllocal.jobs.unlisted import find_unlisted, narrowed, status_with
from dllocal.pods.processes import Pods
from dlwire.messages import State

log = logging.getLogger(__name__)

ANSWER_S = 5.0
"""So long a SideCar whose job the list had lost may take to say which GPUs it has."""


class Relisting:
    """One for each start."""

    def __init__(self, folders: Folders, clock: Callable[[], float], dialing: DialSettings) -> None:
        self._folders = folders
        self._clock = clock
        self._dialing = dialing
        self._lost: list[JobId] = []
        """Jobs that the list had lost wholly."""

    def open_registry(self, lock: int, at_least: int = 0) -> Registry:
        """
        Begin an epoch above all that SideCars may have heard of, also where the list of jobs is lost.

        It is ``at_least`` this one where a SideCar was found to have heard of a later one than is written here.
        """
        path, least = self._folders.registry, max(self._read_epoch(lock), at_least - 1)
        registry = Registry.open(path, clock=self._clock, least_epoch=least)
        if not registry.was_there and find_unlisted(self._folders, {}):
            # The clock counts further than any number of starts.
            registry.close()
            registry = Registry.open(path, clock=self._clock, least_epoch=int(time.time()))
        self._folders.note_epoch(lock, registry.epoch)
        return registry

    def _read_epoch(self, lock: int) -> int:
        """Return the epoch that the lock tells of; one that no controller can have reached does not count."""
        epoch = self._folders.read_epoch(lock)
        # A lost list of jobs has made an epoch of the time, and each start takes one more.
        if epoch <= time.time() + MOST_JUMP:
            return epoch
        log.warning(
            "the lock tells of epoch %d, which no controller can have reached; it is not believed",
            epoch,
        )
        return 0

    def adopt(self, registry: Registry, nodes: tuple[Node, ...], events: Events) -> None:
        """
        Take in all pods that live and that the list of jobs does not know, with what they may hold.

        Raises :class:`~dllocal.folders.StateError` where the list knows another pod in the place of one.
        """
        found = find_unlisted(self._folders, registry.entries)
        for job in dict.fromkeys(pod.key.job for pod in found):
            pods = [pod for pod in found if pod.key.job == job]
            entry = registry.entries.get(job)
            before = entry.status if entry is not None else None
            status = status_with(before, pods, nodes, self._clock())
            registry.adopt(job, status, self._owner_of(job))
            named = ", ".join(map(str, pods))
            message = f"{named}: lives, and was not in the list of jobs; it keeps its GPUs"
            events.add(job, "ListedAgain", message, warning=True)
            if entry is None:
                self._lost.append(job)

    async def narrow(self, registry: Registry, pods: Pods, nodes: tuple[Node, ...]) -> None:
        """Ask the SideCars of jobs that the list had lost which GPUs they have; they keep no others."""
        for job in self._lost:
            status = registry.entries[job].status
            asked = {each.node: self._ask(pods, job, each) for each in status.pods}
            answers = dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))
            states = {node: state for node, state in answers.items() if state is not None}
            registry.record({job: narrowed(status, states, nodes)})

    async def _ask(self, pods: Pods, job: JobId, booking: Booking) -> State | None:
        line = Line(pods.address(job, booking), self._dialing, None)
        try:
            return await asyncio.wait_for(line.read_state(None), ANSWER_S)
        except (Unreachable, NotAccepted, TimeoutError):
            return None
        finally:
            await line.close()

    def _owner_of(self, job: JobId) -> Origin:
        """Whose a job is that only its folder tells of; where users share a server, the folder is its owner's."""
        status = self._folders.job(job).stat()
        return Origin.of(Submitter.known(status.st_uid, status.st_gid, ()), None)

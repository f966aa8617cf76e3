"""
Opens the list of jobs at the start of a controller, and completes a list that was lost from the folders of the jobs.

:mod:`dljob.local.running` calls it before the first decision; :mod:`dljob.local.jobs.unlisted` finds the pods.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from dljob.control.sidecars.dialing import DialSettings, Line, NotAccepted, Unreachable
from dljob.control.situation.ports import MOST_JUMP
from dljob.control.situation.status import Booking, Status
from dljob.core.model import GpuRef, JobId, Node, NodeName
from dljob.local.environments import Origin, Submitter
from dljob.local.events import Events
from dljob.local.folders import Folders, StateError
from dljob.local.jobs.registry import Registry, is_locked, why_not_written
from dljob.local.jobs.rows import is_lost
from dljob.local.jobs.unlisted import Unlisted, find_unlisted, may_live, narrowed, status_with
from dljob.local.pods.pod_folders import read_end
from dljob.local.pods.processes import Pods
from dljob.local.state_folder import note_epoch, read_epoch
from dljob_wire.messages import State

log = logging.getLogger(__name__)

ANSWER_S = 5.0
"""How long a SideCar of a lost job may take to report its GPUs."""
MOST_ASKED = 32
"""The number of SideCars that are asked at the same time."""
LOCKED_S, LOCKED_STEP_S = 30.0, 0.2
"""How long to wait while another process has locked the list, and between two attempts."""


class Relisting:
    def __init__(
        self, folders: Folders, clock: Callable[[], float], *, dialing: DialSettings
    ) -> None:
        self._folders = folders
        self._clock = clock
        self._dialing = dialing

    def open_registry(self, lock: int, at_least: int = 0) -> Registry:
        """Begin an epoch above all epochs that SideCars may know, even if the list of jobs is lost.

        If SideCars have reported a later epoch than the list holds, pass it as ``at_least``.
        """
        path, least = self._folders.registry, max(self._read_epoch(lock), at_least - 1)
        registry = Registry.open(path, clock=self._clock, least_epoch=least)
        if not registry.was_there and find_unlisted(self._folders, {}):
            # The time is higher than any number of starts.
            registry.close()
            registry = Registry.open(path, clock=self._clock, least_epoch=int(time.time()))
        # Write this after the list: a controller that is killed in between has sent this epoch to
        # no SideCar.
        note_epoch(lock, registry.epoch)
        return registry

    def _read_epoch(self, lock: int) -> int:
        """Return the epoch in the lock, unless no controller can have reached it."""
        epoch = read_epoch(lock)
        # The time became the epoch when a list was lost, and each start adds one.
        if epoch <= time.time() + MOST_JUMP:
            return epoch
        log.warning(
            "the lock names epoch %d, which no controller can have reached; this controller ignores it",
            epoch,
        )
        return 0

    def adopt(self, registry: Registry, nodes: tuple[Node, ...], *, events: Events) -> None:
        """
        Add all living pods that the list lacks, with the GPUs that they may hold.

        Raises :class:`~dljob.local.folders.StateError` if the list has another pod in the place of one, or cannot be written.
        """
        try:
            if registry.is_restored:
                self._catch_up(registry, nodes)
            found = find_unlisted(self._folders, registry.entries)
            for job in dict.fromkeys(pod.key.job for pod in found):
                pods = [pod for pod in found if pod.key.job == job]
                # From here on, the loop notices if the pod ends.
                before = self._without_former(registry, pods)
                status = status_with(before, pods, nodes=nodes, now=self._clock())
                registry.adopt(job, status, origin=self._owner_of(job))
                named = ", ".join(map(str, pods))
                message = f"{named}: lives, and was not in the list of jobs; it keeps its GPUs"
                events.add(job, "ListedAgain", message, warning=True)
        except sqlite3.Error as error:
            raise self._not_written(error) from error

    def _catch_up(self, registry: Registry, nodes: tuple[Node, ...]) -> None:
        """Add the changes since the copy to a restored list: jobs that ended, were removed, or may have other GPUs."""
        for job, entry in tuple(registry.entries.items()):
            status = entry.status
            if ended := read_end(self._folders, job):
                registry.record({job: ended})
            elif (status.used or status.started_at) and not self._folders.pods_of(job).is_dir():
                log.warning("%s: has no folder any more, so it was cancelled since the copy", job)
                registry.forget(job)
            elif status.pods:
                booked = {booking.node for booking in status.pods}
                refs = {
                    GpuRef(each.name, gpu.index)
                    for each in nodes
                    if each.name in booked
                    for gpu in each.gpus
                }
                placed = status.placement.refs() if status.placement is not None else ()
                leftover = status.leftover.union(refs).difference(placed)
                registry.record({job: replace(status, leftover=leftover)})

    def _without_former(self, registry: Registry, pods: list[Unlisted]) -> Status | None:
        """Return the status of a job without dead pods in the places of these, which a restored list still has."""
        job = pods[0].key.job
        if job not in registry.entries:
            return None
        status = registry.entries[job].status
        places = {pod.booking.node for pod in pods}
        former = [
            each.node
            for each in status.pods
            if each.node in places and not may_live(self._folders, job, booking=each)
        ]
        return status.without_pods(former) if former else status

    async def narrow(self, registry: Registry, pods: Pods, *, nodes: tuple[Node, ...]) -> None:
        """Ask the SideCars of lost jobs, and of all jobs of a restored list, for their GPUs, and release all other GPUs.

        Raises :class:`~dljob.local.folders.StateError` if the list cannot be written.
        """
        # Also jobs that an earlier start has added, which may have ended before it knew or could write their GPUs.
        lost = [
            job
            for job, entry in registry.entries.items()
            if entry.status.pods and (is_lost(entry) or registry.is_restored)
        ]
        limit = asyncio.Semaphore(MOST_ASKED)
        asked = [(job, each) for job in lost for each in registry.entries[job].status.pods]
        answers = await asyncio.gather(*(self._ask(pods, *each, limit=limit) for each in asked))
        states: dict[JobId, dict[NodeName, State]] = {job: {} for job in lost}
        for (job, booking), state in zip(asked, answers, strict=True):
            if state is not None:
                states[job][booking.node] = state
        # Read after the await. No other task writes statuses before the loop runs.
        before = {job: registry.entries[job].status for job in lost}
        await self._record(
            registry, {job: narrowed(before[job], states[job], nodes=nodes) for job in lost}
        )

    async def _record(self, registry: Registry, statuses: Mapping[JobId, Status]) -> None:
        """Write statuses, with retries while another process has locked the list."""
        until = time.monotonic() + LOCKED_S
        while True:
            try:
                registry.record(statuses)
                if registry.is_restored:
                    registry.note_addition()
                return
            except sqlite3.Error as error:
                # The server runs already and would end with this error. Locks are short.
                if not is_locked(error) or time.monotonic() >= until:
                    raise self._not_written(error) from error
            await asyncio.sleep(LOCKED_STEP_S)

    def _not_written(self, error: sqlite3.Error) -> StateError:
        return StateError(f"{self._folders.registry}: {why_not_written(error)}")

    async def _ask(
        self, pods: Pods, job: JobId, booking: Booking, *, limit: asyncio.Semaphore
    ) -> State | None:
        async with limit:
            return await self._ask_one(pods, job, booking)

    async def _ask_one(self, pods: Pods, job: JobId, booking: Booking) -> State | None:
        line = Line(pods.address(job, booking), self._dialing, credentials=None)
        try:
            # A SideCar answers at once unless it hangs.
            return await asyncio.wait_for(line.read_state(None), ANSWER_S)
        except (Unreachable, NotAccepted, TimeoutError):
            return None
        finally:
            await line.close()

    def _owner_of(self, job: JobId) -> Origin:
        status = self._folders.job(job).stat()
        return Origin.of(Submitter.known(status.st_uid, status.st_gid, ()), None)

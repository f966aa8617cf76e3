"""The parts of ``dljob up`` that its server needs."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dljob.control.reporting.reasons import Outlook
from dljob.control.settings import Setting
from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.core.contract import Policy
from dljob.core.model import GpuRef, JobId, Snapshot
from dljob.core.recording.record import Record
from dljob.local.events import Events
from dljob.local.folders import Folders
from dljob.local.jobs.registry import Registry
from dljob.local.jobs.user_limits import UserLimits
from dljob.local.pods.logtimes import LogTimes
from dljob.store.rows import RecordRow


@dataclass(frozen=True, kw_only=True)
class ServerParts:
    """
    The parts of a controller that its server reads, and the call that wakes the controller.

    ``history`` and ``record`` block and are called in a thread, all others on the controller's event loop.
    """

    folders: Folders
    registry: Registry
    events: Events
    log_times: LogTimes
    policy: Policy
    scene: Callable[[], Scene | None]
    """Returns the scene of the last cycle; ``None`` before the first one."""
    snapshot: Callable[[Scene], Snapshot]
    """Returns the scheduler's input."""
    worths: Callable[[], Mapping[JobId, float]]
    """Returns the worth of a GPU to each job by the last decision."""
    wake: Callable[[], None]
    """Makes the controller decide soon, after a change by a user."""
    reinstate: Callable[[GpuRef], bool]
    """Puts a GPU back into service; returns whether it was out of service."""
    history: Callable[[JobId, int], Sequence[RecordRow]]
    """Returns the latest entries about a job, newest first; raises :class:`~dljob.store.store.StoreError`."""
    record: Callable[[float], Record]
    """Returns the record since a time; raises :class:`~dljob.store.store.StoreError`."""
    settings: Callable[[], Iterable[Setting]]
    metrics: Callable[[], bytes]
    virtual_gpus: bool = True
    shared: bool = False
    user_limits: UserLimits = UserLimits()
    about: Callable[[], Mapping[str, Any]]
    """Returns the description of this controller."""
    clock: Callable[[], float] = time.time
    """The controller's own clock, which changes of the machine's clock do not move."""


PROGRESS = ("iteration", "iterated_at", "iterations_total", "speed", "metric", "reached")
"""The fields that the loop updates in every cycle and writes only sometimes."""


class LatestScene:
    """The scene of the last cycle with its snapshot and outlook, which are made once for all requests."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._seen: Scene | None = None
        self._made: tuple[Scene, Snapshot, Outlook] | None = None

    def see(self) -> tuple[Scene, Snapshot, Outlook] | None:
        """Return them; ``None`` before the first cycle."""
        scene = self._parts.scene()
        if scene is None:
            return None
        if self._made is None or self._made[0] is not scene:
            snapshot = self._parts.snapshot(scene)
            parts = self._parts
            outlook = Outlook(scene, snapshot, policy=parts.policy, worths=parts.worths())
            self._made = scene, snapshot, outlook
        return self._made

    def renewed(self, entry: Entry) -> Entry:
        """Return an entry of the list with the progress of the last cycle."""
        scene = self._parts.scene()
        there = scene.entries.get(entry.job.id) if scene is not None else None
        if there is None or there.status.generation != entry.status.generation:
            return entry
        if there.status.iterated_at <= entry.status.iterated_at:
            return entry
        progress = {name: getattr(there.status, name) for name in PROGRESS}
        return replace(entry, status=replace(entry.status, **progress))

    def note_progress(self) -> None:
        """Report jobs that have progressed since the last call to the clients that watch."""
        scene, former = self._parts.scene(), self._seen
        if scene is None or scene is former:
            return
        self._seen = scene
        if former is None:
            return
        registry = self._parts.registry
        moved = [
            job
            for job in registry.entries
            if _progress(former, job) not in (None, _progress(scene, job))
        ]
        if moved:
            registry.changes.note(moved)


def _progress(scene: Scene, job: JobId) -> tuple[object, ...] | None:
    entry = scene.entries.get(job)
    return tuple(getattr(entry.status, name) for name in PROGRESS) if entry is not None else None

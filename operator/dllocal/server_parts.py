"""
The parts of ``dljob up`` that its server needs, handed over in one piece.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlcontrol.reporting.reasons import Outlook
from dlcontrol.settings import Setting
from dlcontrol.situation.ports import Entry
from dlcontrol.situation.scene import Scene
from dlcore.contract import Policy
from dlcore.model import GpuRef, JobId, Snapshot
from dlcore.recording.record import Record
from dllocal.events import Events
from dllocal.folders import Folders
from dllocal.jobs.registry import Registry
from dllocal.jobs.user_limits import UserLimits
from dllocal.pods.logtimes import LogTimes
from dlstore.history import HistoryEntry


@dataclass(frozen=True, kw_only=True)
class ServerParts:
    """
    The parts that are asked, and the one way to make the controller look.

    All is called on the event loop of the controller, but for ``history`` and ``record``, which may take
    their time and are called in a thread.
    """

    folders: Folders
    registry: Registry
    events: Events
    log_times: LogTimes
    policy: Policy
    scene: Callable[[], Scene | None]
    """The latest scene of the loop; ``None`` before its first cycle."""
    snapshot: Callable[[Scene], Snapshot]
    """The scheduler's input for a decision."""
    worths: Callable[[], Mapping[JobId, float]]
    """The worth of a GPU to each job by the last decision."""
    wake: Callable[[], None]
    """A user has changed something."""
    reinstate: Callable[[GpuRef], bool]
    """A user says that a GPU is well again; tells whether it was known as broken."""
    history: Callable[[JobId, int], Sequence[HistoryEntry]]
    """The latest entries about a job, newest first; raises :class:`~dlstore.store.StoreError`."""
    record: Callable[[float], Record]
    """The record since that time; called in a thread, and raises the same."""
    settings: Callable[[], Iterable[Setting]]
    metrics: Callable[[], bytes]
    virtual_gpus: bool = True
    """Whether the GPUs are pretended, so that no container needs a way to any."""
    shared: bool = False
    """Whether several users share this server."""
    user_limits: UserLimits = UserLimits()
    """How much of it each of them may take."""
    about: Callable[[], Mapping[str, Any]]
    """Further facts about this controller."""
    clock: Callable[[], float] = time.time
    """The clock of this controller, which is not set while it runs."""


PROGRESS = ("iteration", "iterated_at", "iterations_total", "speed", "metric", "reached")
"""The fields that the loop updates in every cycle, but writes only now and then."""


class LatestScene:
    """The scene that the loop saw last, with what follows from it, made once for all who ask."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._seen: Scene | None = None
        self._made: tuple[Scene, Snapshot, Outlook] | None = None

    def see(self) -> tuple[Scene, Snapshot, Outlook] | None:
        """Show it; ``None`` before the first look of the loop."""
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
        """Show a job of the list with how far it is by now."""
        scene = self._parts.scene()
        there = scene.entries.get(entry.job.id) if scene is not None else None
        if there is None or there.status.generation != entry.status.generation:
            return entry
        if there.status.iterated_at <= entry.status.iterated_at:
            return entry
        progress = {name: getattr(there.status, name) for name in PROGRESS}
        return replace(entry, status=replace(entry.status, **progress))

    def note_progress(self) -> None:
        """Let those know who watch if jobs have come on since the last look."""
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

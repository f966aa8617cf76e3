"""Keeps the recorded statuses, their writers, and the progress that is not recorded yet.

Two things are remembered between cycles. The progress of jobs changes all the time, and each record
costs a write; so progress stays here until it is recorded with a relevant change, or the
GPU-seconds are recorded. The other is the last record: if it holds a decision that is not ours,
another controller leads (law 2), and this one must do nothing more, not even steps that need no
record.
"""

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import NamedTuple

from dljob.control.situation.ports import Entry, Fenced, Platform
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Status
from dljob.core.model import JobId, Phase


class _Mark(NamedTuple):
    generation: int
    booked: int

    @classmethod
    def of(cls, status: Status) -> "_Mark":
        return cls(status.generation, status.booked)


class _Farther:
    """Progress of a job beyond its record."""

    def __init__(self, written: Status, status: Status) -> None:
        self._written = written
        self._status = status
        self._shown: tuple[Entry, Entry] | None = None
        """The entry as the platform shows it, and with the progress."""

    def holds_of(self, recorded: Status) -> bool:
        """Return True if the record is still the one that this progress is ahead of."""
        return recorded is self._written or recorded == self._written

    def says(self, written: Status, status: Status) -> bool:
        """Return True if this was made from the same two statuses."""
        return self._written is written and self._status is status

    def show(self, entry: Entry) -> Entry:
        """Return the job with its progress; the same object for equal input."""
        if self._shown is None or self._shown[0] is not entry:
            self._shown = (entry, replace(entry, status=self._status))
        return self._shown[1]


class Records:
    """The recorded statuses; one object for the life of a controller."""

    def __init__(self, platform: Platform, *, seconds: float = 0.0) -> None:
        """``seconds`` is the shortest time between two records of GPU-seconds alone."""
        self._platform = platform
        self._seconds = seconds
        self._ours: dict[JobId, tuple[_Mark, ...]] = {}
        """The statuses that the record may contain if only we have written it."""
        self._recorded: dict[JobId, Status] | None = None
        """The statuses of the latest read; unknown before the first one."""
        self._unwritten: dict[JobId, _Farther] = {}
        """Jobs with progress beyond the record."""

    def recall(self, entries: Mapping[JobId, Entry]) -> dict[JobId, Entry]:
        """Return the jobs with their latest progress; raises :class:`Fenced` if another controller
        leads.
        """
        begins, before = self._recorded is None, self._recorded or {}
        for job, entry in entries.items():
            # The platform shows the same object until it changes.
            if entry.status is not before.get(job):
                self._insist_on_leading(job, entry.status, begins=begins)
        self._recorded = {job: entry.status for job, entry in entries.items()}
        for job in before.keys() - entries.keys():
            del self._ours[job]
        recalled = dict(entries)
        for job, farther in self._unwritten.items():
            if job in entries and farther.holds_of(entries[job].status):
                recalled[job] = farther.show(entries[job])
        return recalled

    def _insist_on_leading(self, job: JobId, status: Status, *, begins: bool) -> None:
        mark = _Mark.of(status)
        # The first read takes over what a former controller recorded.
        if not begins and mark not in self._ours.get(job, (_Mark(0, 0),)):
            raise Fenced(f"another controller has decided about job {job}")
        self._ours[job] = (mark,)

    async def keep(self, scene: Scene, offered: Container[JobId] = ()) -> None:
        """Record every status with a change that matters, and those of the ``offered`` jobs in any case."""
        assert self._recorded is not None
        lasting: dict[JobId, Status] = {}
        # Rebuilt from this scene: written progress needs no overlay, and after a failed write the
        # next cycle judges the progress again.
        before, self._unwritten = self._unwritten, {}
        for job, entry in scene.entries.items():
            recorded, status = self._recorded[job], entry.status
            if job in offered:
                lasting[job] = status
            elif status is recorded:
                continue
            elif job in before and before[job].says(recorded, status):
                # Thousands are unchanged since the last cycle.
                self._unwritten[job] = before[job]
            elif status == recorded:
                continue
            elif self._matters(recorded, status):
                lasting[job] = status
            else:
                self._unwritten[job] = _Farther(recorded, status)
        if not lasting:
            return
        for job, status in lasting.items():
            # If this write fails half-way, either of the two statuses may be the recorded one.
            mark = _Mark.of(status)
            if mark not in self._ours[job]:
                self._ours[job] = (*self._ours[job], mark)
        await self._platform.record(lasting)

    def _matters(self, recorded: Status, status: Status) -> bool:
        if status.phase is Phase.SUSPENDED and status.iteration != recorded.iteration:
            return True  # The answer to the stop says last how far the training came.
        # A record that is older loses no GPU-second: the next count begins where it ends.
        since = status.counted_at - recorded.counted_at
        return (since != 0.0 and since >= self._seconds) or not status.says_the_same_as(recorded)

"""
The recorded statuses, the controller that wrote each, and the progress that need not be recorded yet.

It remembers two things between cycles. The progress of jobs changes all the time, and each record
of it costs a write; so it stays here until a change that matters is recorded with it, or its
GPU-seconds are counted. The other is the last record: if it holds a decision that is not ours,
another controller leads (law 2), and then this one may do nothing more, not even steps that need no
record.
"""

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import NamedTuple

from dlcontrol.situation.ports import Entry, Fenced, Platform
from dlcontrol.situation.scene import Scene
from dlcontrol.situation.status import Status
from dlcore.model import JobId


class _Mark(NamedTuple):
    """By what a status is known to be of our making."""

    generation: int
    booked: int

    @classmethod
    def of(cls, status: Status) -> "_Mark":
        return cls(status.generation, status.booked)


class _Farther:
    """How far a job is that is farther than recorded."""

    def __init__(self, written: Status, status: Status) -> None:
        self._written = written
        self._status = status
        self._shown: tuple[Entry, Entry] | None = None
        """It as the platform shows it, and as it is."""

    def holds_of(self, recorded: Status) -> bool:
        """Return True if the record is still the one that this progress is ahead of."""
        return recorded is self._written or recorded == self._written

    def says(self, written: Status, status: Status) -> bool:
        """Return True if this was made from the same two statuses."""
        return self._written is written and self._status is status

    def show(self, entry: Entry) -> Entry:
        """Show a job as far as it is; the same object for the same."""
        if self._shown is None or self._shown[0] is not entry:
            self._shown = (entry, replace(entry, status=self._status))
        return self._shown[1]


class Records:
    """One for the life of a controller."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._ours: dict[JobId, tuple[_Mark, ...]] = {}
        """The statuses that the record may contain if only we have written it."""
        self._recorded: dict[JobId, Status] | None = None
        """The statuses of the latest read; unknown before the first one."""
        self._unwritten: dict[JobId, _Farther] = {}
        """Jobs that are farther than recorded."""

    def recall(self, entries: Mapping[JobId, Entry]) -> dict[JobId, Entry]:
        """Show the jobs as far as they are known to be; raises :class:`Fenced` if it is not we who lead."""
        begins, before = self._recorded is None, self._recorded or {}
        for job, entry in entries.items():
            # The platform shows the same object as long as it is as it was.
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
        # Made again from this scene: what is written now needs no overlay, and if the write fails,
        # the next cycle judges the progress again from the reports of SideCars.
        before, self._unwritten = self._unwritten, {}
        for job, entry in scene.entries.items():
            recorded, status = self._recorded[job], entry.status
            if job in offered:
                lasting[job] = status
            elif status is recorded:
                continue
            elif job in before and before[job].says(recorded, status):
                # Thousands are as they were at the last look.
                self._unwritten[job] = before[job]
            elif status == recorded:
                continue
            elif _matters(recorded, status):
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


def _matters(recorded: Status, status: Status) -> bool:
    return status.counted_at != recorded.counted_at or not status.says_the_same_as(recorded)

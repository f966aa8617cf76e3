"""
Jobs that are set aside, because something about them fails; all other jobs continue.

Each phase of a cycle handles the jobs one by one, and reports the error of one job with :meth:`Quarantine.add`.
A job is set aside until a decision succeeds with it again, or, if no sound plan could be made for it,
until its user changes its spec. It keeps its GPUs, and its condition says why.

The platform may also refuse to store the status of one job, while it stores the statuses of other jobs
(:class:`Unwritable`). The controller acts only on what is recorded. So it judges and decides nothing about such a
job and sends it no command: the recorded status still holds, no other job gets its GPUs, and its training
continues. After a back-off the loop offers the newest status again. A cycle whose write is refused
has no other effect, and the next cycle leaves the job out.
"""

import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Condition, ConditionType, Status
from dljob.core.model import JobId
from dljob.core.placement.limits import ANY, namespace_of
from dljob.core.primitives.backoff import Backoff

log = logging.getLogger(__name__)

FIRST_WAIT_S: Final = 15.0
LONGEST_WAIT_S: Final = 300.0

LONGEST_REASON: Final = 200

UNHEARD: Final = (
    "its SideCar is silent, and so are too many others at once: the fault is probably in the network between DLJob"
    " and the pods, so DLJob leaves the job as it is until its SideCar answers"
)


class Unwritable:
    """The jobs whose status cannot be written; one for the life of a controller."""

    def __init__(self) -> None:
        self._refused: Backoff[JobId] = Backoff(
            first_seconds=FIRST_WAIT_S, longest_seconds=LONGEST_WAIT_S
        )
        self.jobs: frozenset[JobId] = frozenset()
        """Jobs whose status must not be written in this cycle."""
        self.offered: frozenset[JobId] = frozenset()
        """Jobs whose status must be written in this cycle, to see whether it is accepted again."""

    def update(self, present: Container[JobId], now: float) -> None:
        """Forget jobs that are gone, and choose the jobs whose back-off is over."""
        self._refused.keep(present)
        self.offered = frozenset(job for job in self._refused if self._refused.may_try(job, now))
        self.jobs = frozenset(self._refused) - self.offered

    def refuse(self, refused: Mapping[JobId, str], now: float) -> dict[JobId, str]:
        """Leave these jobs out from now on; return those whose reason is new."""
        news: dict[JobId, str] = {}
        for job, why in refused.items():
            if self._refused.refuse(job, why, now):
                log.error("the status of job %s cannot be written: %s", job, why)
                news[job] = why
        return news

    def accept(self) -> frozenset[JobId]:
        """Note that every status offered in this cycle was stored; return their jobs."""
        for job in self.offered:
            log.warning("the status of job %s can be written again", job)
            self._refused.settle(job)
        accepted, self.offered = self.offered, frozenset()
        return accepted


@dataclass(frozen=True, slots=True)
class _BrokenLaw:
    """Why no plan is made for a job until its spec changes."""

    spec_generation: int
    message: str


class Quarantine:
    """The jobs that are set aside, with the reasons; one for the life of a controller."""

    def __init__(self) -> None:
        self._faults: dict[JobId, str] = {}
        """The faults since the last write."""
        self._broken: dict[JobId, _BrokenLaw] = {}
        self._shown: dict[JobId, str] | None = None
        """The jobs with this condition; unknown before the first cycle and after a failed write."""
        self.unwritable = Unwritable()
        self.unheard: frozenset[JobId] = frozenset()
        """The jobs whose SideCars are silent together with too many others."""
        self.held: Mapping[JobId, str] = {}
        """The jobs that an administrator holds, with the message."""

    @property
    def untouched(self) -> frozenset[JobId]:
        """The jobs that are not judged either, and get no command."""
        return self.unwritable.jobs | self.unheard

    @property
    def jobs(self) -> frozenset[JobId]:
        """The jobs that no decision includes."""
        return self.untouched.union(self._faults, self._broken, self.held)

    def add(self, job: JobId, error: Exception) -> None:
        """Set a job aside because of an error in code about this job alone."""
        message = f"its recorded state contradicts itself ({type(error).__name__}: {error})"
        if (self._shown or {}).get(job) != message and self._faults.get(job) != message:
            log.error("job %s is set aside", job, exc_info=error)
        self._faults[job] = message

    def break_law(self, entry: Entry, error: Exception) -> None:
        """Set a job aside until its spec changes, because no sound plan can be made for it."""
        message = (
            f"no valid decision can be made about it ({error}); change its spec, or report this"
        )
        self._broken[entry.job.id] = _BrokenLaw(entry.spec_generation, message)

    def forget_record(self) -> None:
        """A write may have failed half-way, so read again which jobs are marked as set aside."""
        self._shown = None

    def readmit(self, scene: Scene) -> None:
        """Readmit the jobs with a changed spec."""
        for job, verdict in list(self._broken.items()):
            entry = scene.entries.get(job)
            if entry is None or entry.spec_generation != verdict.spec_generation:
                del self._broken[job]

    def _reason(self, job: JobId) -> str:
        if job in self.unheard:
            return "SideCarsSilent"
        return "OnHold" if job in self.held else "NoSoundDecision"

    def statuses(self, scene: Scene, *, was_decided: bool) -> dict[JobId, Status]:
        """
        Return the statuses with a new condition: of jobs that are now set aside, and of readmitted ones.

        Only a cycle with a decision has tried every job, so only such a cycle readmits a job.
        """
        if self._shown is None:
            recorded = {
                job: entry.status.condition(ConditionType.SET_ASIDE)
                for job, entry in scene.entries.items()
            }
            self._shown = {
                job: said.message for job, said in recorded.items() if said and said.status
            }
        present = {job: entry.problem for job, entry in scene.entries.items() if entry.problem}
        present |= {job: verdict.message for job, verdict in self._broken.items()}
        present |= self._faults
        present |= {**self.held, **dict.fromkeys(self.unheard, UNHEARD)}
        self._faults = {}
        before = self._shown
        for job in self.unwritable.jobs:
            # The condition in its recorded status cannot change.
            present.pop(job, None)
            present |= {job: before[job]} if job in before else {}
        if not was_decided:
            present = before | present
        self._shown = present
        statuses: dict[JobId, Status] = {}
        for job in before.keys() | present.keys():
            entry = scene.entries.get(job)
            if entry is not None and before.get(job) != present.get(job):
                statuses[job] = _say(
                    entry.status,
                    before.get(job),
                    message=present.get(job),
                    reason=self._reason(job),
                    now=scene.now,
                )
        return statuses


def find_held(entries: Mapping[JobId, Entry], holds: Mapping[str, str]) -> dict[JobId, str]:
    """Return the jobs that an administrator holds, with the message; a job that ends or is suspended is not held."""
    held: dict[JobId, str] = {}
    for job, entry in entries.items() if holds else ():
        namespace = namespace_of(job)
        whose = namespace if namespace in holds else ANY
        if whose in holds and not entry.is_wanted_gone:
            jobs = "all jobs" if whose == ANY else f"the jobs of namespace {namespace}"
            why = f" ({holds[whose][:LONGEST_REASON]})" if holds[whose] else ""
            held[job] = (
                f"an administrator holds {jobs}{why}: nothing is decided about it until the release"
            )
    return held


def _say(
    status: Status, before: str | None, *, message: str | None, reason: str, now: float
) -> Status:
    is_aside = message is not None
    message = message if message is not None else "it is scheduled again"
    condition = Condition(
        ConditionType.SET_ASIDE,
        status=is_aside,
        reason=reason if is_aside else "Sound",
        message=message,
    )
    if is_aside or status.message == before:
        status = replace(status, message=message)
    return status.with_condition(condition, now)

"""
Jobs that are set aside: something about them cannot be dealt with, and the others go on.

The loop asks :meth:`Quarantine.attempt` for each job by itself, so that what is wrong with one of them
ends there. A job is set aside until it is scheduled again, or, where a sound plan could not
be made for it, until its user has changed its spec. It keeps what it has, and its condition says why.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from dlcontrol.situation.ports import Entry
from dlcontrol.situation.scene import Scene
from dlcontrol.situation.status import Condition, ConditionType, Status
from dlcontrol.situation.unwritable import Unwritable
from dlcore.model import JobId

log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Why no plan is made for a job, until its spec is another one."""

    spec_generation: int
    message: str


class Quarantine:
    """One for the life of a controller."""

    def __init__(self) -> None:
        self._faults: dict[JobId, str] = {}
        """The faults since the last write."""
        self._broken: dict[JobId, _Verdict] = {}
        self._told: dict[JobId, str] | None = None
        """The jobs with this condition; unknown before the first cycle, and after one that failed."""
        self.unwritable = Unwritable()

    @property
    def jobs(self) -> frozenset[JobId]:
        """Those that nothing is decided about."""
        return frozenset(self._faults) | self._broken.keys() | self.unwritable.jobs

    def attempt(
        self, job: JobId, act: Callable[P, T], /, *args: P.args, **named: P.kwargs
    ) -> T | None:
        """Do something about one job; nothing comes of it if that goes wrong."""
        try:
            return act(*args, **named)
        except Exception as error:  # noqa: BLE001 - one job's data never stops the others
            self._note(job, error)
            return None

    def _note(self, job: JobId, error: Exception) -> None:
        message = f"its recorded state contradicts itself ({type(error).__name__}: {error})"
        if (self._told or {}).get(job) != message and self._faults.get(job) != message:
            log.error("job %s is set aside", job, exc_info=error)
        self._faults[job] = message

    def break_law(self, entry: Entry, error: Exception) -> None:
        """No sound plan can be made for the job, and none is until its spec is another one."""
        message = (
            f"no valid decision can be made about it ({error}); change its spec, or report this"
        )
        self._broken[entry.job.id] = _Verdict(entry.spec_generation, message)

    def doubt(self) -> None:
        """The last write may have failed half-way, so the record is unknown."""
        self._told = None

    def readmit(self, scene: Scene) -> None:
        """Try those again whose spec has changed."""
        for job, verdict in list(self._broken.items()):
            entry = scene.entries.get(job)
            if entry is None or entry.spec_generation != verdict.spec_generation:
                del self._broken[job]

    def statuses(self, scene: Scene, *, was_decided: bool) -> dict[JobId, Status]:
        """
        Say it in the conditions of those that are set aside, and of those that are no longer.

        Only a look in which a decision was made has tried everything.
        """
        if self._told is None:
            self._told = dict(_iter_told(scene))
        present = {job: entry.problem for job, entry in scene.entries.items() if entry.problem}
        present |= {job: verdict.message for job, verdict in self._broken.items()}
        present |= self._faults
        self._faults = {}
        before = self._told
        for job in self.unwritable.jobs:
            # It says what it says.
            present.pop(job, None)
            present |= {job: before[job]} if job in before else {}
        if not was_decided:
            present = before | present
        self._told = present
        statuses: dict[JobId, Status] = {}
        for job in before.keys() | present.keys():
            entry = scene.entries.get(job)
            if entry is not None and before.get(job) != present.get(job):
                statuses[job] = _say(entry.status, before.get(job), present.get(job), scene.now)
        return statuses


def _iter_told(scene: Scene) -> Iterator[tuple[JobId, str]]:
    for job, entry in scene.entries.items():
        condition = entry.status.condition(ConditionType.SET_ASIDE)
        if condition is not None and condition.status:
            yield job, condition.message


def _say(status: Status, before: str | None, message: str | None, now: float) -> Status:
    is_aside = message is not None
    message = message if message is not None else "it is scheduled again"
    condition = Condition(
        ConditionType.SET_ASIDE,
        status=is_aside,
        reason="NoSoundDecision" if is_aside else "Sound",
        message=message,
    )
    if is_aside or status.message == before:
        status = replace(status, message=message)
    return status.with_condition(condition, now)

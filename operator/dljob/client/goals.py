"""The goal of a wait: a phase, a condition, or the end of a job."""

from dataclasses import dataclass
from enum import Enum, auto

import click

from dljob.client.backend import Backend, NotThere
from dljob.client.jobviews import CANCELLING, FINAL, PHASES, JobView

LOOK_S = 0.3
"""The interval of checks where ``look_seconds`` is 1; multiplied by ``look_seconds``."""

DELETED = "deleted"
FINISHED = "finished"
_GOALS = {each.lower(): each for each in (*PHASES, FINISHED, DELETED)} | {"delete": DELETED}
_VALUES = {"": "True", "true": "True", "false": "False", "unknown": "Unknown"}


class Verdict(Enum):
    HOLDS = auto()
    NOT_YET = auto()
    NEVER = auto()
    """The job can no longer reach the goal."""


@dataclass(frozen=True)
class Goal:
    phase: str = ""
    condition: str = ""
    value: str = "True"

    def __str__(self) -> str:
        if self.condition:
            return self.condition if self.value == "True" else f"{self.condition}={self.value}"
        return self.phase

    def judge(self, job: JobView | None) -> Verdict:
        """Check a job against the goal; ``None`` is a job that no longer exists."""
        if job is None:
            return Verdict.HOLDS if self.phase == DELETED else Verdict.NEVER
        if self.phase == DELETED:
            return Verdict.NOT_YET
        if self._holds(job):
            return Verdict.HOLDS
        is_over = job.is_final or job.phase == CANCELLING
        return Verdict.NEVER if is_over else Verdict.NOT_YET

    def _holds(self, job: JobView) -> bool:
        if self.condition:
            conditions = job.status.get("conditions", ())
            return any(
                each["type"].lower() == self.condition.lower() and each["status"] == self.value
                for each in conditions
            )
        if self.phase == FINISHED:
            return job.phase in FINAL
        return job.phase == self.phase


def read_goal(text: str) -> Goal:
    """Parse a goal; raises :class:`click.BadParameter`."""
    name, _, value = text.removeprefix("condition=").partition("=")
    if text.startswith("condition=") and name and value.lower() in _VALUES:
        return Goal(condition=name, value=_VALUES[value.lower()])
    phase = _GOALS.get(text.removeprefix("phase=").lower())
    if phase is not None:
        return Goal(phase=phase)
    raise click.BadParameter(
        f"{text!r} is not a goal to wait for; write {FINISHED}, {DELETED}, condition=NAME[=False],"
        f" or a phase: {', '.join(PHASES)}"
    )


def read_job(backend: Backend, name: str) -> JobView | None:
    try:
        return JobView.of(backend.get_job(name), backend.home)
    except NotThere:
        return None

"""The interfaces of learning and metrics: the loop calls both and never waits."""

from collections.abc import Mapping
from typing import Protocol

from dljob.control.situation.rules import News
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Status
from dljob.core.checking import BrokenLaw
from dljob.core.measuring import Resumption
from dljob.core.model import JobId, Snapshot
from dljob.core.planning import Plan
from dljob.core.predicting.learning_curves import Forecast
from dljob.core.profiles import JobType, Profile


class LearningPort(Protocol):
    """Keeps profiles and the history, which outlive a job. It never waits for the store."""

    def profiles(self) -> Mapping[JobType, Profile]:
        """All profiles; a new object after each new observation."""

    def forecasts(self) -> Mapping[JobId, Forecast]:
        """The iterations that jobs with a target are expected to need."""

    def resumptions(self) -> Mapping[JobId, Resumption]:
        """The jobs that have taken the first step of their latest start, with the cost of the
        start.
        """

    def update(self, scene: Scene) -> None:
        """Learn from the reports of SideCars."""

    def note(self, plan: Plan, snapshot: Snapshot, statuses: Mapping[JobId, Status]) -> None:
        """Keep a decision for the history."""

    def keep_policy_state(self, policy: str, state: object) -> None:
        """Store the policy's state between decisions."""

    def policy_state(self, policy: str) -> object:
        """Return the policy's state from an earlier controller; ``None`` if there is none."""

    def note_news(self, job: JobId, news: News, now: float) -> None:
        """Keep an event of a job for the history."""

    def note_cost(self, job: JobId, generation: int, seconds: float, how: str) -> None:
        """Keep how long a change has kept a job from training, and how it was made: live or restarted."""


class MetricsPort(Protocol):
    """The part that counts and times, for the metrics."""

    def cycle(self, seconds: float, *, decided: bool) -> None:
        """Count a cycle of the loop, with its duration."""

    def show(self, scene: Scene) -> None:
        """Show this scene in the metrics."""

    def broken_law(self, error: BrokenLaw) -> None:
        """Count a refused plan."""

    def reshaped(self, seconds: float, mechanism: str) -> None:
        """Count a change of GPUs, with the time for which the job did not train."""

    def waited(self, job: JobId, *, seconds: float, outcome: str) -> None:
        """Count a job that trains for the first time or never will, with its wait since its submission."""

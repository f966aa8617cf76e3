"""
The controller's memory: profiles in front of the store, forecasts, and the history.

The loop and the SideCars' words come in here; everything that is learnt is folded into the profiles
at once, and reaches the store when that is there. Nobody waits for it.
"""

from collections.abc import Mapping

from dlcontrol import observing
from dlcontrol.judging import News
from dlcontrol.learning import Lessons
from dlcontrol.platforms import Entry, PodKey
from dlcontrol.records import Status
from dlcontrol.scene import Scene
from dlcore import profiles as folding
from dlcore.model import JobId, Snapshot
from dlcore.planning import Plan
from dlcore.profiles import Costs, JobType, Profile
from dlwire.messages import State


class Remembrance:
    """One for the life of a controller."""

    def __init__(self, store: str, lessons: Lessons, *, costs: Costs) -> None:
        self._lessons = lessons
        self._costs = costs
        self._profiles: Mapping[JobType, Profile] = {}
        self._forecasts: dict[JobId, float] = {}

    def profiles(self) -> Mapping[JobType, Profile]:
        """All that is known of types of jobs; another object whenever something was learnt."""
        return self._profiles

    def forecasts(self) -> Mapping[JobId, float]:
        """How many iterations jobs with a target are expected to need."""
        return self._forecasts

    def hear(self, entry: Entry, key: PodKey, state: State, now: float) -> None:
        """Learn from what a SideCar says."""
        kind = entry.job.type
        for observation in self._lessons.hear(entry, key, state, now):
            if not kind.model:
                continue  # Jobs of no type have nothing in common.
            old = self._profiles.get(kind) or Profile(kind)
            new = folding.fold(old, observation, defaults=self._costs)
            if new is not old:
                self._profiles = {**self._profiles, kind: new}

    def look(self, scene: Scene) -> None:
        """Predict anew where a job's learning curve has gone on."""
        for job, entry in scene.entries.items():
            if entry.status.is_final:
                self._lessons.forget(job)
                self._forecasts.pop(job, None)
            elif entry.job.training.target is not None:
                profile = self._profiles.get(entry.job.type)
                points = self._lessons.points(job)
                self._forecasts[job] = observing.forecast(entry, profile, points).iterations

    def note(self, plan: Plan, snapshot: Snapshot, statuses: Mapping[JobId, Status]) -> None:
        """Keep a decision for the history."""

    def note_news(self, job: JobId, news: News, now: float) -> None:
        """Keep what happened to a job for the history."""

    def close(self) -> None:
        """Let the store have what it does not have yet, within reason."""

"""Keeps the findings and decisions of a cycle until they are reported and stored in the history.

The loop reports nothing before it is recorded. A cycle that fails half-way may have recorded a
part. The next cycle finds nothing new about those jobs, so it reports the rest of the failed one. A
change that was not recorded is found, decided and reported again.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, ParamSpec

from dljob.control.reporting import events
from dljob.control.reporting.ports import LearningPort, MetricsPort
from dljob.control.situation.ports import Entry, Platform
from dljob.control.situation.rules import News, Verdict
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Status
from dljob.core.model import JobId, Mechanism, Phase, Snapshot
from dljob.core.planning import Plan
from dljob.core.recording.record import LIVE, RESTARTED

log = logging.getLogger(__name__)

P = ParamSpec("P")

Reports = Sequence[tuple[JobId, News]]


class Decision(NamedTuple):
    """The decision of a cycle; without a plan if the policy failed."""

    statuses: Mapping[JobId, Status]
    plan: Plan | None = None
    snapshot: Snapshot | None = None
    """The input of the plan."""


class Pause(NamedTuple):
    """How long the change that made a generation kept a job from training."""

    generation: int
    seconds: float
    is_live: bool = False
    """Its processes stayed."""


def find_pauses(before: Scene, verdicts: Mapping[JobId, Verdict]) -> Iterator[tuple[JobId, Pause]]:
    """Find the changes of GPUs that ended in this cycle."""
    for job, verdict in verdicts.items():
        old = before.entries[job].status
        new = verdict.status
        # Repeated work is a cost of the change just as the pause is.
        seconds = new.reshape_seconds - old.reshape_seconds + new.lost_seconds - old.lost_seconds
        if seconds > 0:
            yield job, Pause(old.generation, seconds, new.live_changes > old.live_changes)


class Waited(NamedTuple):
    """How long a job has waited from its submission to its first training, or to its end without one."""

    seconds: float
    outcome: str
    """started, cancelled or failed."""


def find_waits(before: Scene, after: Mapping[JobId, Status]) -> Iterator[tuple[JobId, Waited]]:
    """Find the jobs that train for the first time, or that ended before they trained, in this cycle."""
    for job, status in after.items():
        old = before.entries[job].status
        if old.running or old.is_final:
            continue
        if status.running or status.phase is Phase.COMPLETED:
            yield job, Waited(before.now - status.submitted_at, "started")
        elif status.phase is Phase.FAILED:
            yield job, Waited(before.now - status.submitted_at, "failed")


def find_cancelled_waits(former: Scene | None, now: Scene) -> Iterator[tuple[JobId, Waited]]:
    """Find the jobs of the former scene that are gone and have never trained."""
    for job, entry in former.entries.items() if former is not None else ():
        status = entry.status
        if entry.cancelled and job not in now.entries and not (status.running or status.is_final):
            yield job, Waited(now.now - status.submitted_at, "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The findings and the decision of one cycle."""

    at: float
    entries: Mapping[JobId, Entry]
    """All jobs with the statuses to record."""
    seen: Reports = ()
    """Facts that do not depend on the status, such as that a GPU is broken."""
    happened: Reports = ()
    """News from judging the jobs."""
    decided: Reports = ()
    """Further news for Events; the history takes them from the decision."""
    decision: Decision | None = None
    pauses: Mapping[JobId, Pause] = field(default_factory=dict)
    waits: Mapping[JobId, Waited] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        plan = self.decision.plan if self.decision is not None else None
        return len(plan.steps) if plan is not None else 0

    def recorded_in(self, scene: Scene) -> "Outcome":
        """Drop the reports about jobs whose status was not recorded."""

        def is_recorded(job: JobId) -> bool:
            entry = scene.entries.get(job)
            return entry is not None and self.entries[job].status.says_the_same_as(entry.status)

        decision = self.decision
        if decision is not None and decision.plan is not None:
            steps = tuple(step for step in decision.plan.steps if is_recorded(step.job))
            decision = decision._replace(plan=replace(decision.plan, steps=steps))
        return replace(
            self,
            happened=[each for each in self.happened if is_recorded(each[0])],
            decided=[each for each in self.decided if is_recorded(each[0])],
            decision=decision,
            pauses={job: pause for job, pause in self.pauses.items() if is_recorded(job)},
            waits={job: waited for job, waited in self.waits.items() if is_recorded(job)},
        )


class Outcomes:
    """Reports each outcome once; one for the life of a controller."""

    def __init__(
        self,
        platform: Platform,
        learning: LearningPort,
        *,
        metrics: MetricsPort,
        mechanism: Mechanism,
    ) -> None:
        self._platform = platform
        self._learning = learning
        self._metrics = metrics
        self._mechanism = mechanism
        self._unreported: Outcome | None = None

    def note(self, outcome: Outcome) -> None:
        """Keep an outcome until it is recorded."""
        # report_late() has emptied this earlier in the same cycle, so that no report is lost.
        self._unreported = outcome

    async def report_late(self, scene: Scene) -> None:
        """Report the outcome of a failed cycle, as far as the scene shows it as recorded."""
        if self._unreported is not None:
            self._unreported = self._unreported.recorded_in(scene)
            await self.report()

    async def report(self) -> None:
        """Report the outcome that is recorded now."""
        # Taken first, so that no pause counts twice if the Events are cancelled half-way.
        outcome, self._unreported = self._unreported, None
        if outcome is None:
            return
        for job, pause in outcome.pauses.items():
            how = LIVE if pause.is_live else RESTARTED
            mechanism = LIVE if pause.is_live else self._mechanism.value
            self._metrics.reshaped(pause.seconds, mechanism)
            remember(
                self._learning.note_cost, job, pause.generation, seconds=pause.seconds, how=how
            )
        for job, waited in outcome.waits.items():
            self._metrics.waited(job, **waited._asdict())
        for job, each in (*outcome.happened, *outcome.seen):
            remember(self._learning.note_news, job, each, now=outcome.at)
        await events.tell_all(self._platform, (*outcome.happened, *outcome.seen, *outcome.decided))
        decision = outcome.decision
        if decision is not None and decision.plan is not None and decision.snapshot is not None:
            remember(
                self._learning.note, decision.plan, decision.snapshot, statuses=decision.statuses
            )


def remember(keep: Callable[P, None], *args: P.args, **named: P.kwargs) -> None:
    """Write something to the store, and only log a failure: scheduling continues without the store (law 7)."""
    try:
        keep(*args, **named)
    except Exception:
        log.exception("could not keep what happened; it goes on without")

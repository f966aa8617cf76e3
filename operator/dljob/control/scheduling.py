"""Judges all jobs, decides when a decision is due, asks the policy, and checks its plan.

Called by :mod:`dljob.control.loop` in each cycle. A job whose plan breaks a law is set aside; if the
policy fails, every job keeps its GPUs.
"""

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from dljob.control.deciding import snapshots
from dljob.control.judging import judging
from dljob.control.judging.checkpoints import counts
from dljob.control.judging.progress import is_changing
from dljob.control.judging.unchanged_pods import UnchangedPods
from dljob.control.pacing import BatchSize, Pace
from dljob.control.reporting import events
from dljob.control.reporting.ports import LearningPort, MetricsPort
from dljob.control.reporting.reports import Decision
from dljob.control.settings import Notify, Settings
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.rules import Rules, Verdict
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Condition, ConditionType
from dljob.core import cycle
from dljob.core.checking import BrokenLaw
from dljob.core.contract import Policy
from dljob.core.model import CauseCode, JobId, Mechanism, Snapshot
from dljob.core.placement.limits import NamespaceLimits, Use
from dljob.core.planning import Move, Plan, Reshape, Start, Stop, Wait
from dljob.core.profiles import Costs

log = logging.getLogger(__name__)

USE: Final = "shares of users"
"""The name of the GPU time of users among the states of policies; no policy has it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of a controller, fixed at its start."""

    policy: Policy
    mechanism: Mechanism = Mechanism.IN_PLACE
    costs: Costs = Costs()
    record_days: float = 0.0
    rules: Rules = Rules()
    pace: Pace = Pace()
    seed: int = 0
    limits: NamespaceLimits = NamespaceLimits()
    notify: Notify = Notify()
    may_rise: bool = True
    """The controller may end with :class:`Behind` if SideCars obey later controllers."""

    @classmethod
    def of(cls, settings: Settings, policy: Policy) -> "Options":
        """Return the controller's part of the settings, with the policy already loaded."""
        return cls(
            policy=policy,
            mechanism=Mechanism(settings.mechanism),
            costs=settings.costs,
            record_days=settings.record_days,
            rules=settings.rules,
            pace=settings.pace,
            seed=settings.seed,
            limits=settings.limits,
            notify=settings.notify,
        )


@dataclass(slots=True)
class _Decided:
    """The input of the last decision, and the time when the next is due."""

    basis: object = None
    at: float = float("-inf")
    wake_at: float = float("inf")
    policy_state: object = None
    use: Use = Use()
    worths: Mapping[JobId, float] = field(default_factory=dict)
    there: AbstractSet[JobId] = frozenset()
    """The jobs that had not ended."""
    ended: AbstractSet[JobId] = frozenset()
    """Jobs that have ended since, and that messages of waiting jobs may name."""
    is_first: bool = True
    """The policy must still take over its state from an earlier controller."""
    is_unfinished: bool = False
    """The next cycle decides again, because this one carries out only a part of the plan."""


class Scheduler:
    """Judges jobs and decides; one for the life of a controller."""

    def __init__(
        self,
        options: Options,
        *,
        learning: LearningPort,
        metrics: MetricsPort,
        quarantine: Quarantine,
        batch_size: BatchSize,
    ) -> None:
        self._options = options
        self._learning = learning
        self._metrics = metrics
        self._quarantine = quarantine
        self._batch_size = batch_size
        self._starting = UnchangedPods()
        self._last = _Decided()

    @property
    def worths(self) -> Mapping[JobId, float]:
        """The worth of a GPU to each job by the last decision, where the policy states it."""
        return self._last.worths

    @property
    def wake_at(self) -> float:
        return self._last.wake_at

    @property
    def is_unfinished(self) -> bool:
        return self._last.is_unfinished

    def judge(self, scene: Scene) -> Mapping[JobId, Verdict]:
        """Return the new status of every job that has changed."""
        return judging.judge(
            scene,
            self._options.rules,
            quarantine=self._quarantine,
            forecasts=self._learning.forecasts(),
            resumptions=self._learning.resumptions(),
            starting=self._starting,
        )

    def note_decided(self, scene: Scene) -> None:
        """Remember the scene after a decision; only a change of it causes another decision."""
        # An unfinished plan is decided again, even if nothing else has changed.
        self._last.basis = None if self._last.is_unfinished else self._basis(scene)

    def limit(self, limits: NamespaceLimits) -> None:
        """Decide within other limits from now on."""
        self._options = replace(self._options, limits=limits)
        self.decide_again()

    def decide_again(self) -> None:
        """Decide again in the next cycle, because this decision could not be recorded for all jobs."""
        self._last.basis = None

    def is_due(self, scene: Scene) -> bool:
        """Return True if the input of the last decision has changed or the next decision is due."""
        last = self._last
        if scene.now >= min(last.at + self._options.pace.period_seconds, last.wake_at):
            return True
        return last.is_unfinished or self._basis(scene) != last.basis

    def _basis(self, scene: Scene) -> object:
        """Return the input of a decision, without progress and without the precision of speeds."""
        profiles = self._learning.profiles()
        jobs = tuple(
            (
                job,
                entry.spec_generation,
                entry.status.phase,
                entry.status.generation,
                is_changing(scene, entry),
                snapshots.count_speeds(entry, profiles.get(entry.job.type)),
                counts(entry.job, entry.status, now=scene.now),
                scene.needs.get(job),
                scene.ceilings.get(job),
            )
            for job, entry in scene.entries.items()
            if snapshots.is_schedulable(scene, entry)
        )
        aside = self._quarantine.unheard, self._quarantine.held.keys()
        unproven = snapshots.find_unproven(scene).keys()
        return jobs, tuple(scene.nodes.values()), unproven, aside, scene.priorities

    def decide(self, scene: Scene) -> Decision:
        """Ask the policy for a plan; set aside only the jobs without a sound plan."""
        self._quarantine.readmit(scene)
        self._last.at = scene.now
        name = self._options.policy.name
        if self._last.is_first:
            self._last.policy_state = self._learning.policy_state(name)
            if isinstance(use := self._learning.policy_state(USE), dict):
                self._last.use = Use(**use)
            self._last.is_first = False
        for _ in range(len(scene.entries) + 1):
            snapshot = self.snapshot(scene)
            try:
                plan = cycle.schedule(snapshot, self._options.policy, enough=self._batch_size.most)
            except BrokenLaw as error:
                log.exception("a plan was refused, and its job is set aside")
                self._metrics.broken_law(error)
                if error.job not in scene.entries or error.job in self._quarantine.jobs:
                    return self._fail_to_decide(snapshot, scene, error=error)
                self._quarantine.break_law(scene.entries[error.job], error)
            except Exception as error:
                log.exception("the policy %s failed", self._options.policy.name)
                return self._fail_to_decide(snapshot, scene, error=error)
            else:
                self._last.wake_at = plan.wake_at if plan.wake_at is not None else float("inf")
                self._last.policy_state = plan.policy_state
                self._last.worths = plan.worths
                self._last.use = plan.use
                self._learning.keep_policy_state(name, plan.policy_state)
                if plan.use.until:
                    self._learning.keep_policy_state(USE, asdict(plan.use))
                plan = snapshots.correct_waits(plan, snapshot, scene=scene)
                plan = self._take_batch(plan)
                renewed = replace(
                    plan, steps=(*plan.steps, *self._renew_waits(plan, snapshot, scene=scene))
                )
                statuses = snapshots.statuses_of(
                    renewed, snapshot, scene=scene, policy=self._options.policy
                )
                return Decision(statuses, plan, snapshot)
        raise AssertionError("every job was set aside, and a plan for none of them was refused")

    def _renew_waits(self, plan: Plan, snapshot: Snapshot, *, scene: Scene) -> tuple[Wait, ...]:
        """Find the jobs that wait on with another message, because theirs names a job that has ended."""
        last = self._last
        there = {job for job, entry in scene.entries.items() if not entry.status.is_final}
        last.ended = (last.ended | (last.there or scene.entries.keys())) - there
        last.there = there
        outdated = snapshots.find_outdated(plan, snapshot, scene=scene, ended=last.ended)
        if len(outdated) < snapshots.MOST_RENEWED:
            last.ended = set()
        return outdated

    def _take_batch(self, plan: Plan) -> Plan:
        """Return one batch of a plan; the next cycle decides the rest again."""
        most = self._batch_size.most
        batch = plan.first(most, urgent=events.HOPELESS_CODES) if most else plan
        is_whole = batch is plan and not plan.is_partial
        # A displaced job loses all its GPUs, and only another decision can place it again.
        displaces = any(
            isinstance(step, Stop) and step.cause.code in _DISPLACED for step in batch.steps
        )
        self._last.is_unfinished = displaces or not is_whole
        return batch

    def _fail_to_decide(self, snapshot: Snapshot, scene: Scene, *, error: Exception) -> Decision:
        """Give waiting jobs the failure as their reason; running jobs keep their GPUs."""
        self._last.wake_at = float("inf")
        self._last.is_unfinished = False
        why = f"{type(error).__name__}: {error}"
        message = f"waits: the policy {self._options.policy.name} cannot decide ({why})"
        condition = Condition(
            ConditionType.SCHEDULED, status=False, reason="PolicyFailed", message=message
        )
        statuses = {
            state.id: replace(
                scene.entries[state.id].status, cause=None, message=message
            ).with_condition(condition, scene.now)
            for state in snapshot.pending
        }
        return Decision(statuses)

    def suppose(self, scene: Scene) -> Mapping[JobId, int]:
        """Return the GPUs that jobs would get by a decision about this scene, where these are others."""
        plan = cycle.schedule(self.snapshot(scene), self._options.policy)
        got = {step.job: step.placement.gpus for step in plan.steps if isinstance(step, Start)}
        changes = (step for step in plan.steps if isinstance(step, Reshape | Move))
        return got | {step.job: step.new.gpus for step in changes}

    def snapshot(self, scene: Scene) -> Snapshot:
        """Return the scheduler's input for a decision about this scene."""
        snapshot = snapshots.take_snapshot(
            scene,
            profiles=self._learning.profiles(),
            costs=self._options.costs,
            quarantine=self._quarantine,
            forecasts=self._learning.forecasts(),
            seed=self._options.seed,
            limits=self._options.limits.granting(scene.priorities),
            policy_state=self._last.policy_state,
        )
        return replace(snapshot, use=self._last.use)


_DISPLACED = {
    CauseCode.NODE_LOST,
    CauseCode.GPUS_GONE,
    CauseCode.SPEC_CHANGED,
    CauseCode.TWO_MASTERS,
}

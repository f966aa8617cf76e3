"""
When a decision is due, what it is made from, and what becomes of the policy's answer.

Called by :mod:`dlcontrol.loop` in each cycle. A plan that breaks a law costs the job that it is about its part in
decisions, and a policy that fails leaves every job with what it has.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dlcontrol.deciding import snapshots
from dlcontrol.judging.checkpoints import counts
from dlcontrol.judging.progress import is_changing
from dlcontrol.pacing import BatchSize, Pace
from dlcontrol.reporting import events
from dlcontrol.reporting.ports import LearningPort, MetricsPort
from dlcontrol.reporting.reports import Decision
from dlcontrol.situation.quarantine import Quarantine
from dlcontrol.situation.rules import Rules
from dlcontrol.situation.scene import Scene
from dlcontrol.situation.status import Condition, ConditionType
from dlcore import cycle
from dlcore.checking import BrokenLaw
from dlcore.contract import Policy
from dlcore.model import CauseCode, JobId, Mechanism, Snapshot
from dlcore.placement.limits import NamespaceLimits
from dlcore.planning import Plan, Step, Stop
from dlcore.profiles import Costs

if TYPE_CHECKING:
    from dlcontrol.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of a controller, fixed at its start."""

    policy: Policy
    mechanism: Mechanism = Mechanism.IN_PLACE
    costs: Costs = Costs()
    rules: Rules = Rules()
    pace: Pace = Pace()
    seed: int = 0
    limits: NamespaceLimits = NamespaceLimits()
    may_rise: bool = True
    """Whether it ends with :class:`Behind` where SideCars have heard of later controllers."""

    @classmethod
    def of(cls, settings: "Settings", policy: Policy) -> "Options":
        """Take the controller's part of the settings; the policy is read already."""
        return cls(
            policy=policy,
            mechanism=Mechanism(settings.mechanism),
            costs=settings.costs,
            rules=settings.rules,
            pace=settings.pace,
            seed=settings.seed,
            limits=settings.limits,
        )


@dataclass(slots=True)
class _Decided:
    """The input of the last decision, and the time when the next is due."""

    basis: object = None
    at: float = float("-inf")
    wake_at: float | None = None
    policy_state: object = None
    worths: Mapping[JobId, float] = field(default_factory=dict)
    is_first: bool = True
    """Whether what the policy remembers is that of an earlier controller."""
    is_unfinished: bool = False
    """Whether there was more to be done than is done at a time."""


class Scheduler:
    """Decides, for as long as a controller leads."""

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
        self._last = _Decided()

    @property
    def worths(self) -> Mapping[JobId, float]:
        """The worth of a GPU to each job by the last decision, where the policy states it."""
        return self._last.worths

    @property
    def wake_at(self) -> float | None:
        """When the policy wants to be asked again, if it says so."""
        return self._last.wake_at

    @property
    def is_unfinished(self) -> bool:
        """Whether the next cycle decides again, because this one takes only a part of the plan."""
        return self._last.is_unfinished

    def note_decided(self, scene: Scene) -> None:
        """Note how all is after a decision, so that only a change from that calls for another one."""
        # An unfinished plan is decided again, even if nothing else has changed.
        self._last.basis = None if self._last.is_unfinished else self._basis(scene)

    def doubt(self) -> None:
        """Decide again in the next cycle, because this decision could not be recorded for all jobs."""
        self._last.basis = None

    def is_due(self, scene: Scene) -> bool:
        """Whether what decisions depend on has changed, or it is time for one."""
        last = self._last
        if scene.now >= last.at + self._options.pace.period_seconds:
            return True
        if last.is_unfinished or (last.wake_at is not None and scene.now >= last.wake_at):
            return True
        return self._basis(scene) != last.basis

    def _basis(self, scene: Scene) -> object:
        """Everything that a decision depends on, but for progress, and for how exactly speeds are known."""
        profiles = self._learning.profiles()
        jobs = tuple(
            (
                job,
                entry.spec_generation,
                entry.status.phase,
                entry.status.generation,
                is_changing(scene, entry),
                snapshots.count_speeds(entry, profiles.get(entry.job.type)),
                counts(entry.job, entry.status, scene.now),
                scene.needs.get(job),
            )
            for job, entry in scene.entries.items()
            if snapshots.is_schedulable(scene, entry)
        )
        return jobs, tuple(scene.nodes.values()), snapshots.find_unproven(scene).keys()

    def decide(self, scene: Scene) -> Decision:
        """Ask the policy. A job about which no sound plan can be made is set aside, alone."""
        self._quarantine.readmit(scene)
        self._last.at = scene.now
        name = self._options.policy.name
        if self._last.is_first:
            self._last.policy_state = self._learning.policy_state(name)
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
                self._last.wake_at = plan.wake_at
                self._last.policy_state = plan.policy_state
                self._last.worths = plan.worths
                self._learning.keep_policy_state(name, plan.policy_state)
                plan = self._bite_off(plan)
                statuses = snapshots.statuses_of(
                    plan, snapshot, scene=scene, policy=self._options.policy
                )
                return Decision(statuses, plan, snapshot)
        raise AssertionError("every job was set aside, and a plan for none of them was refused")

    def _bite_off(self, plan: Plan) -> Plan:
        """Take one batch of a plan; the rest is decided again right after it."""
        most = self._batch_size.most
        bite = plan.first(most, urgent=events.HOPELESS_CODES) if most else plan
        is_whole = bite is plan and not plan.is_partial
        self._last.is_unfinished = not is_whole or any(map(_displaces, bite.steps))
        return bite

    def _fail_to_decide(self, snapshot: Snapshot, scene: Scene, *, error: Exception) -> Decision:
        """Say to those that wait why they do; those that have GPUs go on with them."""
        self._last.wake_at = None
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

    def snapshot(self, scene: Scene) -> Snapshot:
        """Return the scheduler's input for a decision about this scene."""
        return snapshots.take_snapshot(
            scene,
            profiles=self._learning.profiles(),
            costs=self._options.costs,
            quarantine=self._quarantine,
            forecasts=self._learning.forecasts(),
            seed=self._options.seed,
            limits=self._options.limits,
            policy_state=self._last.policy_state,
        )


_DISPLACED = {
    CauseCode.NODE_LOST,
    CauseCode.GPUS_GONE,
    CauseCode.SPEC_CHANGED,
    CauseCode.TWO_MASTERS,
}


def _displaces(step: Step) -> bool:
    """Whether a job loses everything that may be placed again, which only another decision can."""
    return isinstance(step, Stop) and step.cause.code in _DISPLACED

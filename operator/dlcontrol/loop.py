"""
The one loop: wait, observe, judge, decide, record, apply.

Nothing else decides. Whoever learns something (a user has written, a SideCar has news, a timer is
over) wakes the loop, and the loop looks at everything anew. What it finds is recorded before
anything is done about it, and what is done is said to SideCars as declarations; so it can be
killed at any instant, and the next one goes on from what is recorded and what is held.

A decision is made when what decisions depend on has changed, or when the policy or the period asks
for one; between decisions the loop only carries on with what was decided.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dlcontrol.acting import coordinating
from dlcontrol.acting.applying import Dialer, Hands
from dlcontrol.acting.coordinating import Command, Unbook
from dlcontrol.acting.job_pods import Seating
from dlcontrol.acting.recording import Records
from dlcontrol.acting.task_pool import Turns
from dlcontrol.deciding import snapshots
from dlcontrol.gpus.faults import Health
from dlcontrol.gpus.occupancy import Occupancy
from dlcontrol.gpus.uuids import Identities
from dlcontrol.gpus.visibility import Vanishing
from dlcontrol.judging import judging
from dlcontrol.judging.checkpoints import counts
from dlcontrol.judging.coming_up import Coming
from dlcontrol.judging.distrusting import Distrust
from dlcontrol.judging.progress import is_changing
from dlcontrol.pacing import Bites, Effort, Pace, Taken
from dlcontrol.reporting import events
from dlcontrol.reporting.audience import Gauge, Memory
from dlcontrol.reporting.reports import (
    Decision,
    Outcome,
    Outcomes,
    find_pauses,
    remember,
)
from dlcontrol.situation.ports import (
    Behind,
    Entry,
    Fenced,
    NotKept,
    NotKeptAlone,
    Observation,
    Platform,
    Pod,
    PodKey,
)
from dlcontrol.situation.quarantine import Asides
from dlcontrol.situation.rules import News, Rules, Verdict
from dlcontrol.situation.scene import SILENT_S, Scene
from dlcontrol.situation.status import Condition, ConditionType
from dlcore import cycle
from dlcore.checking import BrokenLaw
from dlcore.contract import Policy
from dlcore.model import CauseCode, GpuRef, JobId, Mechanism, Snapshot
from dlcore.placement.limits import NamespaceLimits
from dlcore.planning import Plan, Step, Stop
from dlcore.profiles import Costs

if TYPE_CHECKING:
    from dlcontrol.settings import Settings

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Decided:
    """What the last decision was made from, and when the next is due."""

    basis: object = None
    at: float = float("-inf")
    wake_at: float | None = None
    policy_state: object = None
    worths: Mapping[JobId, float] = field(default_factory=dict)
    is_first: bool = True
    """Whether what the policy remembers is that of an earlier controller."""
    is_unfinished: bool = False
    """Whether there was more to be done than is done at a time."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a controller is told at its start."""

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
        """Take of the settings what a controller needs to be told; the policy is read already."""
        return cls(
            policy=policy,
            mechanism=Mechanism(settings.mechanism),
            costs=settings.costs,
            rules=settings.rules,
            pace=settings.pace,
            seed=settings.seed,
            limits=settings.limits,
        )


class Controller:
    """One for as long as it leads."""

    def __init__(
        self,
        platform: Platform,
        dialer: Dialer,
        memory: Memory,
        gauge: Gauge,
        options: Options,
        *,
        epoch: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._platform = platform
        self._dialer = dialer
        self._memory = memory
        self._gauge = gauge
        self._options = options
        self._epoch = epoch
        self._clock = clock
        self._hands = Hands(platform, dialer, epoch)
        self._asides = Asides()
        self._coming = Coming()
        self.health = Health()
        """Which GPUs are broken; for whoever hands it on to the next controller."""
        self.identities = Identities()
        """What GPUs are called; for whoever hands it on to the next controller."""
        self._vanishing = Vanishing()
        self._occupancy = Occupancy()
        self._records = Records(platform)
        self._outcomes = Outcomes(platform, memory, gauge, options.mechanism)
        self._distrust = Distrust(platform, epoch, may_rise=options.may_rise)
        self._seating = Seating(self._hands, self._distrust)
        self._woken = asyncio.Event()
        self._burst = False
        self._is_urgent = False
        self._began_at = clock()
        self._has_met_all = False
        self._last = _Decided()
        self._next_look = 0.0
        self._next_show = 0.0
        self._effort = Effort()
        self._bites = Bites(options.pace)
        self._rest = 0.0
        self._complaint = ""
        """Why the last look failed; empty if it did not."""
        self.scene: Scene | None = None
        """What was seen and decided last, for whoever shows it."""

    def wake(self, *, burst: bool = False, urgent: bool = False) -> None:
        """
        Look at once; with ``burst`` others are expected to follow, and are waited for.

        It is ``urgent`` where somebody waits for what comes of it, as users do, and those who get the GPUs
        that a job has given up; then less is done before the next look.
        """
        self._burst = self._burst or burst
        self._is_urgent = self._is_urgent or urgent
        self._woken.set()

    def forgive(self, gpu: GpuRef) -> bool:
        """Somebody says that this GPU is well again; tells whether it was known as broken."""
        was_out = [self._vanishing.forgive(gpu), self._occupancy.forgive(gpu)]
        return self.health.forgive(gpu) or any(was_out)

    @property
    def faults(self) -> Mapping[GpuRef, str]:
        """The GPUs that are out until somebody says that they are well, and why."""
        return {**self._vanishing.absent, **self.health.faults}

    @property
    def worths(self) -> Mapping[JobId, float]:
        """What a GPU is worth to each job by the last decision, where the policy says it."""
        return self._last.worths

    async def run(self) -> None:
        """
        Do this until cancelled; raises :class:`Fenced` as soon as another controller leads.

        And :class:`Behind` before it has decided anything, if it has to go on in a later epoch.
        """
        try:
            await self._go_on()
        finally:
            await self._hands.end()

    async def _go_on(self) -> None:
        while True:
            self._effort = Effort()
            try:
                await self._cycle_in_time()
            except (Fenced, Behind):
                raise
            except NotKept as error:
                if self._is_new(error):
                    log.error("%s. Until then nothing is decided, and running jobs continue", error)  # noqa: TRY400 - where in our code says nothing
                self._next_look = self._clock() + self._options.pace.look_seconds
            except Exception as error:
                if self._is_new(error):
                    log.exception("a cycle failed; the next one reads everything again")
                self._next_look = self._clock() + self._options.pace.look_seconds
            else:
                self._be_content()
            self._rest = self._effort.rest(self._options.pace)
            await self._wait()

    async def _cycle_in_time(self) -> None:
        """Give up leading where a look hangs, so that it does not keep others from it for ever."""
        seconds = self._options.pace.stuck_seconds
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await self.cycle()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise Fenced(f"a cycle has not ended for {seconds:g} s") from error

    def _is_new(self, error: Exception) -> bool:
        """Whether the last look did not fail for the same reason; it is told of once."""
        before, self._complaint = self._complaint, f"{type(error).__name__}: {error}"
        return self._complaint != before

    def _be_content(self) -> None:
        if self._complaint:
            self._complaint = ""
            log.warning("it is scheduled again")

    async def _wait(self) -> None:
        # However much news there is, others on this event loop have their turn.
        await asyncio.sleep(self._rest)
        pause = max(0.0, self._next_look - self._clock())
        try:
            # Not wait_for(), which may swallow that we are to end if we are woken just then.
            async with asyncio.timeout(pause):
                await self._woken.wait()
        except TimeoutError:
            return
        until = self._clock() + self._options.pace.longest_settle_seconds
        # Who has more to do than is done at a time need not wait for yet more.
        while self._burst and not self._last.is_unfinished and self._clock() < until:
            self._burst = False
            await asyncio.sleep(self._options.pace.settle_seconds)
        self._woken.clear()

    async def cycle(self) -> None:
        """Look at everything once, and do what is to be done."""
        began = time.perf_counter()
        self._woken.clear()
        self._is_urgent = False
        self._hands.check()

        # 1. What is, and what has happened.
        before = await self._observe()
        await self._outcomes.catch_up(before)
        before, broken = self._know_gpus(before)
        remember(self._memory.look, before)
        verdicts = self._judge(before)
        scene = before.with_statuses({job: verdict.status for job, verdict in verdicts.items()})

        # 2. What shall be.
        decision = self._decide(scene) if self._is_due(scene) else None
        news: list[tuple[JobId, News]] = []
        if decision is not None:
            news += events.news_of_decision(scene, decision.statuses, decision.plan)
            scene = scene.with_statuses(decision.statuses)
            # What is unfinished is decided about anew whatever is the same then.
            self._last.basis = None if self._last.is_unfinished else self._basis(scene)

        # 3. What can be done for it now; first it is recorded.
        commands = coordinating.next_commands(scene, self._asides)
        scene = scene.with_statuses(self._hands.bookings(commands, scene))
        if self._has_met_all:
            statuses = self._asides.statuses(scene, was_decided=decision is not None)
            news += events.news_of_asides(scene, statuses)
            scene = scene.with_statuses(statuses)
        self._outcomes.note(
            Outcome(
                at=scene.now,
                entries=scene.entries,
                seen=list(self.health.news(before, broken)),
                happened=[
                    (job, each) for job, verdict in verdicts.items() for each in verdict.news
                ],
                decided=news,
                decision=decision,
                pauses=dict(find_pauses(before, verdicts)),
            )
        )
        plan = decision.plan if decision is not None else None
        if not await self._bring_about(commands, scene, len(plan.steps) if plan else 0):
            return

        # 4. Who is told of it. What was decided is kept with its plan.
        await self._outcomes.tell()
        self.scene = scene
        self._next_look = self._plan_next_look(scene)
        if any(isinstance(command, Unbook) for command in commands):
            # What was of no use while it was there may be done now.
            self._woken.set()
        self._gauge.cycle(time.perf_counter() - began, decided=decision is not None)
        self._show(scene)

    # --- seeing

    def _know_gpus(self, scene: Scene) -> tuple[Scene, tuple[GpuRef, ...]]:
        """Show what GPUs are called and which are out; and which are known as broken only now."""
        self.identities.look(scene)
        scene = self.identities.mark(scene)
        broken = self.health.look(scene)
        self._vanishing.look(scene)
        self._occupancy.look(scene)
        scene = self._vanishing.mark(self.health.mark(scene))
        return self._occupancy.mark(scene), broken

    async def _observe(self) -> Scene:
        """See what is, without the word of those that are not trusted."""
        observation = await self._platform.observe()
        scene = self._see(observation)
        if await self._distrust.look(scene, self._seating.changed, self._hands.commanded):
            scene = self._see(observation)
        self._distrust.keep(scene)
        if not self._has_met_all and self._meets_all(scene):
            self._distrust.rise()
            self._distrust.end_meeting()
        return scene

    def _see(self, observation: Observation) -> Scene:
        now = self._clock()
        entries = self._records.recall(observation.entries)
        addresses = {
            key: pod.address
            for key, pod in observation.pods.items()
            if pod.address is not None and not self._is_untrusted(key, pod, entries)
        }
        self._hands.keep_up(entries, addresses, now)
        self._asides.unwritable.update(entries, now)
        return Scene(
            now=now,
            epoch=self._epoch,
            entries=entries,
            seats=self._seating.look(entries, observation.pods),
            nodes={node.name: node for node in observation.nodes},
            needs=observation.needs,
            mechanism=self._options.mechanism,
            warm_seconds=self._options.pace.warm_seconds,
            lost_seconds=self._options.rules.lost_seconds,
            obey_seconds=self._options.rules.obey_seconds,
            begun=self._hands.begun,
            machines=observation.machines,
        )

    def _is_untrusted(self, key: PodKey, pod: Pod, entries: Mapping[JobId, Entry]) -> bool:
        """Whether nobody speaks to its SideCar any more."""
        if not self._distrust.is_any:
            return False
        pods = entries[key.job].status.pods
        return any(
            self._distrust.find(key.job, each, pod) for each in pods if each.node == key.node
        )

    def _judge(self, scene: Scene) -> Mapping[JobId, Verdict]:
        return judging.judge(
            scene,
            self._options.rules,
            self._asides,
            forecasts=self._memory.forecasts(),
            resumptions=self._memory.resumptions(),
            coming=self._coming,
        )

    # --- deciding

    def _is_due(self, scene: Scene) -> bool:
        if not self._has_met_all:
            self._has_met_all = self._meets_all(scene)
        last = self._last
        if not self._has_met_all:
            return False
        if scene.now >= last.at + self._options.pace.period_seconds:
            return True
        if last.is_unfinished or (last.wake_at is not None and scene.now >= last.wake_at):
            return True
        return self._basis(scene) != last.basis

    def _meets_all(self, scene: Scene) -> bool:
        """Whether every SideCar obeys us, or has had the time; nothing is decided before."""
        return scene.now >= self._began_at + SILENT_S or all(
            seat.has_ended
            or seat.fresh
            or seat.is_leaving
            or seat.is_stamped(self._epoch)
            or self._distrust.is_met(seat)
            for seats in scene.seats.values()
            for seat in seats.values()
        )

    def _basis(self, scene: Scene) -> object:
        """What a decision depends on, but for progress, and for how exactly speeds are known."""
        profiles = self._memory.profiles()
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

    def _decide(self, scene: Scene) -> Decision:
        """Ask the policy. A job about which no sound plan can be made is set aside, alone."""
        self._asides.readmit(scene)
        self._last.at = scene.now
        name = self._options.policy.name
        if self._last.is_first:
            self._last.policy_state = self._memory.policy_state(name)
            self._last.is_first = False
        for _ in range(len(scene.entries) + 1):
            snapshot = self.snapshot(scene)
            try:
                plan = cycle.schedule(snapshot, self._options.policy, enough=self._bites.most)
            except BrokenLaw as error:
                log.exception("a plan was refused, and its job is set aside")
                self._gauge.broken_law(error)
                if error.job not in scene.entries or error.job in self._asides.jobs:
                    return self._fail_to_decide(snapshot, scene, error)
                self._asides.break_law(scene.entries[error.job], error)
            except Exception as error:
                log.exception("the policy %s failed", self._options.policy.name)
                return self._fail_to_decide(snapshot, scene, error)
            else:
                self._last.wake_at = plan.wake_at
                self._last.policy_state = plan.policy_state
                self._last.worths = plan.worths
                self._memory.keep_policy_state(name, plan.policy_state)
                plan = self._bite_off(plan)
                statuses = snapshots.statuses_of(plan, snapshot, scene, self._options.policy)
                return Decision(statuses, plan, snapshot)
        raise AssertionError("every job was set aside, and a plan for none of them was refused")

    def _bite_off(self, plan: Plan) -> Plan:
        """Take as much of a plan as is taken at a time; the rest is decided anew right after it."""
        most = self._bites.most
        bite = plan.first(most, urgent=events.HOPELESS_CODES) if most else plan
        is_whole = bite is plan and not plan.is_partial
        self._last.is_unfinished = not is_whole or any(map(_displaces, bite.steps))
        if self._last.is_unfinished:
            self._woken.set()
        return bite

    def _fail_to_decide(self, snapshot: Snapshot, scene: Scene, error: Exception) -> Decision:
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
        """What a decision about this scene is made from."""
        return snapshots.take_snapshot(
            scene,
            profiles=self._memory.profiles(),
            costs=self._options.costs,
            asides=self._asides,
            forecasts=self._memory.forecasts(),
            seed=self._options.seed,
            limits=self._options.limits,
            policy_state=self._last.policy_state,
        )

    # --- recording

    async def _bring_about(self, commands: Sequence[Command], scene: Scene, steps: int) -> bool:
        """Record it, and then do it; tell whether it could be recorded."""
        pace, effort = self._options.pace, self._effort.seconds
        with self._effort.aside():
            began = time.perf_counter()
            await self._hands.finish()
            since = time.perf_counter()
            self._bites.note_rest(since - began)
            if not await self._keep(scene):
                return False
            turns = Turns(pace.launches_at_once, self._cut_after(since, effort))
            await self._hands.carry_out(
                commands,
                scene,
                self._asides,
                turns=turns,
                # Who still waits for a turn may be left by then.
                trailing=min(pace.trailing_launches, pace.launches_at_once),
            )
        self._bites.note(
            Taken(
                steps=steps,
                seconds=time.perf_counter() - since,
                effort=effort,
                is_hurried=self._is_urgent,
                left=turns.left,
            )
        )
        return True

    def _cut_after(self, since: float, effort: float) -> Callable[[], bool]:
        """
        Tell whether to leave the rest: more was taken than if somebody had waited, and now somebody does.

        It never happens twice in a row, so that what was left is not left again.
        """
        if not self._bites.is_long:
            return lambda: False
        enough = since + self._bites.hurried_seconds(effort)
        return lambda: self._is_urgent and time.perf_counter() >= enough

    async def _keep(self, scene: Scene) -> bool:
        """Record it. If that is refused of some jobs, all is looked at anew, and they are left alone."""
        unwritable = self._asides.unwritable
        try:
            await self._records.keep(scene, unwritable.offered)
        except NotKept:
            self._asides.doubt()
            raise
        except NotKeptAlone as error:
            await self.leave_alone(error)
            self._last.basis = None
            self._next_look = scene.now
            self._woken.set()
            return False
        back = News("Readmitted", "its status can be written again")
        await events.tell_all(self._platform, ((job, back) for job in unwritable.accept()))
        return True

    async def leave_alone(self, error: NotKeptAlone) -> None:
        """Do nothing about these jobs as long as nothing can be recorded of them."""
        self._asides.doubt()
        news = self._asides.unwritable.refuse(error.jobs, self._clock())
        await events.tell_all(
            self._platform,
            (
                (job, News("SetAside", f"is set aside: {why}", warning=True))
                for job, why in news.items()
            ),
        )

    # --- afterwards

    def _show(self, scene: Scene) -> None:
        if scene.now >= self._next_show:
            self._next_show = scene.now + self._options.pace.look_seconds
            self._gauge.show(scene)

    def _plan_next_look(self, scene: Scene) -> float:
        pace = self._options.pace
        times = [scene.now + pace.look_seconds]
        if self._last.wake_at is not None:
            times.append(max(self._last.wake_at, scene.now + pace.settle_seconds))
        times += [
            entry.status.retry_at
            for entry in scene.entries.values()
            if entry.status.retry_at > scene.now
        ]
        return min(times)


_DISPLACED = {
    CauseCode.NODE_LOST,
    CauseCode.GPUS_GONE,
    CauseCode.SPEC_CHANGED,
    CauseCode.TWO_MASTERS,
}


def _displaces(step: Step) -> bool:
    """Whether a job loses everything that may be placed anew, which only another decision can."""
    return isinstance(step, Stop) and step.cause.code in _DISPLACED

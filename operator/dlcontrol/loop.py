"""
The one loop: wait, observe, judge, decide, record, apply.

Nothing else decides. Each part that learns something (a user has written, a SideCar has news, a timer is
over) wakes the loop, and the loop reads everything again. It records its findings and decisions before it
acts, and it commands SideCars by declarations; so it can be killed at any instant, and the
next one continues from the record and from the GPUs that SideCars hold.

A decision is made when what decisions depend on has changed, or when the policy or the period asks
for one; between decisions the loop only carries on with what was decided.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from dlcontrol.acting import coordinating
from dlcontrol.acting.applying import Actor
from dlcontrol.acting.commands import Unbook
from dlcontrol.acting.dialer import Dialer
from dlcontrol.acting.recording import Records
from dlcontrol.effecting import Effects
from dlcontrol.gpus.faults import GpuFaults
from dlcontrol.gpus.uuids import GpuUuids
from dlcontrol.judging import judging
from dlcontrol.judging.starting_pods import StartingPods
from dlcontrol.observing import Observer
from dlcontrol.pacing import Alarm, BatchSize, Effort
from dlcontrol.reporting import events
from dlcontrol.reporting.ports import LearningPort, MetricsPort
from dlcontrol.reporting.reports import (
    Decision,
    Outcome,
    Outcomes,
    find_pauses,
    remember,
)
from dlcontrol.scheduling import Options, Scheduler
from dlcontrol.situation.ports import (
    Behind,
    Fenced,
    NotKept,
    NotKeptAlone,
    Platform,
)
from dlcontrol.situation.quarantine import Quarantine
from dlcontrol.situation.rules import News, Verdict
from dlcontrol.situation.scene import Scene
from dlcore.model import GpuRef, JobId, Snapshot
from dlcore.primitives.once_per_change import OncePerChange

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

CYCLE: Final = "cycle"
"""Under which failures are noted, so that one that recurs is logged once."""


class Controller:
    """
    One for as long as it leads.

    It only puts the steps of a cycle in order, and answers the programs around it. Seeing, deciding and doing
    are its parts: :class:`~dlcontrol.observing.Observer`, :class:`~dlcontrol.scheduling.Scheduler` and
    :class:`~dlcontrol.effecting.Effects`.
    """

    def __init__(
        self,
        platform: Platform,
        dialer: Dialer,
        *,
        learning: LearningPort,
        metrics: MetricsPort,
        options: Options,
        epoch: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._learning = learning
        self._metrics = metrics
        self._options = options
        self._clock = clock
        self._actor = Actor(platform, dialer, epoch=epoch, clock=clock)
        self._quarantine = Quarantine()
        self._starting = StartingPods()
        records, batch_size = Records(platform), BatchSize(options.pace)
        self._observer = Observer(
            platform,
            self._actor,
            records=records,
            quarantine=self._quarantine,
            options=options,
            epoch=epoch,
            clock=clock,
        )
        self._scheduler = Scheduler(
            options,
            learning=learning,
            metrics=metrics,
            quarantine=self._quarantine,
            batch_size=batch_size,
        )
        self._effects = Effects(
            platform,
            self._actor,
            records=records,
            quarantine=self._quarantine,
            batch_size=batch_size,
            pace=options.pace,
            clock=clock,
        )
        self._outcomes = Outcomes(platform, learning, metrics=metrics, mechanism=options.mechanism)
        self._alarm = Alarm(options.pace, clock)
        self._effort = Effort()
        self._next_look = 0.0
        self._next_show = 0.0
        self._failures: OncePerChange[str] = OncePerChange()
        """Why the last cycles failed."""
        self.scene: Scene | None = None
        """The latest scene with its decisions, for the API and the metrics."""

    def wake(self, *, burst: bool = False, urgent: bool = False) -> None:
        """
        Look at once; with ``burst`` others are expected to follow, and are waited for.

        It is ``urgent`` where its outcome is waited for, as by users and by the jobs that get the GPUs
        that a job has given up; then less is done before the next look.
        """
        self._alarm.ring(burst=burst, urgent=urgent)

    def reinstate(self, gpu: GpuRef) -> bool:
        """Reinstate a GPU; return whether it was known as broken."""
        return self._observer.reinstate(gpu)

    @property
    def gpu_faults(self) -> GpuFaults:
        """Which GPUs are broken; the platform hands it on to the next controller."""
        return self._observer.gpu_faults

    @property
    def gpu_uuids(self) -> GpuUuids:
        """The UUIDs of GPUs; the platform hands them on to the next controller."""
        return self._observer.gpu_uuids

    @property
    def faults(self) -> Mapping[GpuRef, str]:
        """The GPUs that are out until a person reinstates them, and why."""
        return self._observer.faults

    @property
    def worths(self) -> Mapping[JobId, float]:
        """The worth of a GPU to each job by the last decision, where the policy states it."""
        return self._scheduler.worths

    async def run(self) -> None:
        """
        Do this until cancelled; raises :class:`Fenced` as soon as another controller leads.

        And :class:`Behind` before it has decided anything, if it has to go on in a later epoch.
        """
        try:
            await self._go_on()
        finally:
            await self._actor.end()

    async def _go_on(self) -> None:
        while True:
            self._effort = Effort()
            try:
                await self._cycle_in_time()
            except (Fenced, Behind):
                raise
            except NotKept as error:
                if self._failures.note(CYCLE, error):
                    log.error("%s. Until then nothing is decided, and running jobs continue", error)  # noqa: TRY400 - where in our code says nothing
                self._next_look = self._clock() + self._options.pace.look_seconds
            except Exception as error:
                if self._failures.note(CYCLE, error):
                    log.exception("a cycle failed; the next one reads everything again")
                self._next_look = self._clock() + self._options.pace.look_seconds
            else:
                if self._failures.settle(CYCLE):
                    log.warning("it is scheduled again")
            # However much news there is, others on this event loop have their turn.
            await asyncio.sleep(self._effort.rest(self._options.pace))
            # With an unfinished plan the loop need not wait for yet more news.
            settles = not self._scheduler.is_unfinished
            await self._alarm.wait(self._next_look, settles=settles)

    async def _cycle_in_time(self) -> None:
        """Give up leading where a look hangs, so that it does not keep others from it for ever."""
        seconds = self._options.pace.stuck_seconds
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await self.cycle()
        except TimeoutError as error:
            # A request inside the cycle may have a limit of its own: a failure like any other.
            if not limit.expired():
                raise
            raise Fenced(f"a cycle has not ended for {seconds:g} s") from error

    async def cycle(self) -> None:
        """Look at everything once, and do what is to be done."""
        began = time.perf_counter()
        # Before anything is read: news that comes while this cycle waits begins the next one.
        self._alarm.begin_cycle()
        self._actor.check()

        # 1. Read the situation, and judge the news.
        before = await self._observer.observe()
        await self._outcomes.catch_up(before)
        before, broken = self._observer.know_gpus(before)
        remember(self._learning.update, before)
        verdicts = self._judge(before)
        scene = before.with_statuses({job: verdict.status for job, verdict in verdicts.items()})

        # 2. Decide.
        decision, news, scene = self._decide(scene)

        # 3. Find the commands that are safe now; record them first.
        commands = coordinating.next_commands(scene, self._quarantine)
        scene = scene.with_statuses(self._actor.bookings(commands, scene))
        if self._observer.has_met_all:
            statuses = self._quarantine.statuses(scene, was_decided=decision is not None)
            news += events.news_of_quarantine(scene, statuses)
            scene = scene.with_statuses(statuses)
        self._outcomes.note(
            Outcome(
                at=scene.now,
                entries=scene.entries,
                seen=list(self.gpu_faults.news(before, broken)),
                happened=[
                    (job, each) for job, verdict in verdicts.items() for each in verdict.news
                ],
                decided=news,
                decision=decision,
                pauses=dict(find_pauses(before, verdicts)),
            )
        )
        plan = decision.plan if decision is not None else None
        if not await self._effects.bring_about(
            commands,
            scene,
            steps=len(plan.steps) if plan else 0,
            effort=self._effort,
            alarm=self._alarm,
        ):
            self._scheduler.doubt()
            self._next_look = scene.now
            self._alarm.ring()
            return

        # 4. Report it. The history keeps the decision with its plan.
        await self._outcomes.tell()
        self.scene = scene
        self._next_look = self._plan_next_look(scene)
        if any(isinstance(command, Unbook) for command in commands):
            # A command that waited for the end of this pod can be given now.
            self._alarm.ring()
        self._metrics.cycle(time.perf_counter() - began, decided=decision is not None)
        self._show(scene)

    def _decide(self, scene: Scene) -> tuple[Decision | None, list[tuple[JobId, News]], Scene]:
        """Decide if it is time; return the decision, the news about it, and the scene with its statuses."""
        self._observer.meet_all(scene)
        is_due = self._observer.has_met_all and self._scheduler.is_due(scene)
        decision = self._scheduler.decide(scene) if is_due else None
        news: list[tuple[JobId, News]] = []
        if decision is not None:
            news += events.news_of_decision(scene, decision.statuses, plan=decision.plan)
            scene = scene.with_statuses(decision.statuses)
            self._scheduler.note_decided(scene)
            if self._scheduler.is_unfinished:
                self._alarm.ring()
        return decision, news, scene

    def _judge(self, scene: Scene) -> Mapping[JobId, Verdict]:
        return judging.judge(
            scene,
            self._options.rules,
            self._quarantine,
            forecasts=self._learning.forecasts(),
            resumptions=self._learning.resumptions(),
            starting=self._starting,
        )

    def snapshot(self, scene: Scene) -> Snapshot:
        """Return the scheduler's input for a decision about this scene."""
        return self._scheduler.snapshot(scene)

    async def leave_alone(self, error: NotKeptAlone) -> None:
        """Do nothing about these jobs as long as nothing can be recorded of them."""
        await self._effects.leave_alone(error)

    # --- afterwards

    def _show(self, scene: Scene) -> None:
        if scene.now >= self._next_show:
            self._next_show = scene.now + self._options.pace.look_seconds
            self._metrics.show(scene)

    def _plan_next_look(self, scene: Scene) -> float:
        pace = self._options.pace
        times = [scene.now + pace.look_seconds]
        wake_at = self._scheduler.wake_at
        if wake_at is not None:
            times.append(max(wake_at, scene.now + pace.settle_seconds))
        times += [
            entry.status.retry_at
            for entry in scene.entries.values()
            if entry.status.retry_at > scene.now
        ]
        return min(times)

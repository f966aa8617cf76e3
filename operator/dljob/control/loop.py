"""The control loop: wait, observe, judge, decide, record, act. No other code decides.

Every source of news (a user, a SideCar, a timer) wakes the loop, and the loop reads everything
again. It records its findings and decisions before it acts, and it commands SideCars by
declarations; so it can be killed at any instant, and the next one continues from the record and
from the GPUs that SideCars hold. A decision is made when the input of decisions has changed, or
when the policy or the period asks for one; between decisions the loop only carries out the last
one. docs/walks.md follows a job through it, function by function.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from dljob.control.acting.applying import Actor
from dljob.control.acting.desired_pods import changed_records, desired
from dljob.control.acting.recording import Records
from dljob.control.effecting import Effects
from dljob.control.observing import Observer
from dljob.control.pacing import Alarm, BatchSize, Effort, warned_after
from dljob.control.reporting import events
from dljob.control.reporting.notices import Notices
from dljob.control.reporting.ports import LearningPort, MetricsPort
from dljob.control.reporting.reports import (
    Decision,
    Outcome,
    Outcomes,
    find_cancelled_waits,
    find_pauses,
    find_waits,
    remember,
)
from dljob.control.scheduling import Options, Scheduler
from dljob.control.situation.dialer import Contacts, Dialer
from dljob.control.situation.ports import Behind, Fenced, NotKept, Platform
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.rules import News
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import Sent
from dljob.core.model import JobId
from dljob.core.primitives.once_per_change import OncePerChange

log = logging.getLogger(__name__)

CYCLE: Final = "cycle"
"""The key of failed cycles, so that a failure that recurs is logged once."""


class Controller:
    """Waits, and runs the steps of a cycle in order; one object for as long as this process leads.

    Its parts observe (:class:`~dljob.control.observing.Observer`), judge and decide
    (:class:`~dljob.control.scheduling.Scheduler`), and record, act and report
    (:class:`~dljob.control.effecting.Effects`).
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
        self._platform = platform
        self._learning = learning
        self._metrics = metrics
        self._pace = options.pace
        self._clock = clock
        self._quarantine = Quarantine()
        sent, batch_size = Sent(), BatchSize(options.pace)
        records = Records(platform, seconds=options.pace.record_seconds)
        self.observer = Observer(
            platform,
            Contacts(dialer),
            sent=sent,
            records=records,
            quarantine=self._quarantine,
            options=options,
            epoch=epoch,
            clock=clock,
        )
        self.scheduler = Scheduler(
            options,
            learning=learning,
            metrics=metrics,
            quarantine=self._quarantine,
            batch_size=batch_size,
        )
        self.effects = Effects(
            platform,
            Actor(platform, dialer, sent=sent, epoch=epoch, clock=clock),
            records=records,
            outcomes=Outcomes(platform, learning, metrics=metrics, mechanism=options.mechanism),
            quarantine=self._quarantine,
            batch_size=batch_size,
            pace=options.pace,
            clock=clock,
        )
        self._notices = Notices(options.notify, clock)
        self._alarm = Alarm(options.pace, clock)
        self._effort = Effort()
        self._next_cycle = 0.0
        self._next_show = 0.0
        self._failures: OncePerChange[str] = OncePerChange()
        self.scene: Scene | None = None
        """The latest scene with its decisions, for the API and the metrics."""

    def wake(self, *, burst: bool = False, urgent: bool = False) -> None:
        """
        Begin a cycle at once; after a ``burst`` the loop waits for further news first.

        An ``urgent`` call is for a user, or for jobs that get the GPUs that a job has given up: the loop then
        carries out less before the next cycle.
        """
        self._alarm.ring(burst=burst, urgent=urgent)

    async def run(self) -> None:
        """
        Run cycles until cancelled; raises :class:`Fenced` as soon as another controller leads.

        Raises :class:`Behind` before the first decision if the controller has to continue in a later epoch.
        """
        try:
            while True:
                await self._run_once()
                # Leave other tasks on this event loop their share of time, even under a flood of
                # news.
                await asyncio.sleep(self._effort.rest(self._pace))
                # Skip the settle delay while the previous plan is unfinished.
                settles = not self.scheduler.is_unfinished
                await self._alarm.wait(self._next_cycle, settles=settles)
        finally:
            await self.effects.actor.end()
            await self._notices.end()

    async def _run_once(self) -> None:
        """Run one cycle, and log its failure; the next cycle reads everything again."""
        self._effort = Effort()
        try:
            with warned_after(self._pace.slow_seconds):
                await self._cycle_in_time()
        except (Fenced, Behind):
            raise
        except Exception as error:
            if self._failures.note(CYCLE, error):
                if isinstance(error, NotKept):
                    log.error("%s. Until then nothing is decided, and running jobs continue", error)  # noqa: TRY400 - where in our code says nothing
                else:
                    log.exception("a cycle failed; the next one reads everything again")
            self._next_cycle = self._clock() + self._pace.look_seconds
        else:
            if self._failures.settle(CYCLE):
                log.warning("it is scheduled again")

    async def _cycle_in_time(self) -> None:
        """Give up the lease if a cycle hangs, so that another controller can lead."""
        seconds = self._pace.stuck_seconds
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
        """Read everything once, then judge, decide, record and act."""
        began = time.perf_counter()
        # Before the observation, because news that arrives during this cycle begins the next one.
        self._alarm.begin_cycle()
        self.effects.actor.check()

        # 1. Read the situation, and judge the news.
        before = await self.observer.observe()
        await self.effects.outcomes.report_late(before)
        before, broken = self.observer.mark_gpus(before)
        remember(self._learning.update, before)
        verdicts = self.scheduler.judge(before)
        after = {job: verdict.status for job, verdict in verdicts.items()}
        scene = before.with_statuses(after)

        # 2. Decide, once every SideCar has had the time to answer.
        decision: Decision | None = None
        news: list[tuple[JobId, News]] = []
        if self.observer.meets_all(scene) and self.scheduler.is_due(scene):
            decision = self.scheduler.decide(scene)
            news += events.news_of_decision(scene, decision.statuses, plan=decision.plan)
            scene = scene.with_statuses(decision.statuses)
            self.scheduler.note_decided(scene)
            if self.scheduler.is_unfinished:
                self._alarm.ring()

        # 3. Find what is desired and safe now. Record first, then act and report.
        wanted = desired(scene, self._platform, self._quarantine)
        records = changed_records(wanted, scene)
        is_pod_gone = any(
            set(scene.entries[job].status.pods) - set(record.pods)
            for job, record in records.items()
        )
        scene = scene.with_statuses(records)
        if self.observer.has_met_all:
            statuses = self._quarantine.statuses(scene, was_decided=decision is not None)
            news += events.news_of_quarantine(scene, statuses)
            scene = scene.with_statuses(statuses)
        outcome = Outcome(
            at=scene.now,
            entries=scene.entries,
            seen=list(self.observer.gpu_faults.news(before, broken)),
            happened=[(job, each) for job, verdict in verdicts.items() for each in verdict.news],
            decided=news,
            decision=decision,
            pauses=dict(find_pauses(before, verdicts)),
            waits=dict(find_waits(before, after)),
        )
        if not await self.effects.bring_about(
            outcome, wanted, scene=scene, effort=self._effort, alarm=self._alarm
        ):
            self.scheduler.decide_again()
            self._next_cycle = scene.now
            self._alarm.ring()
            return

        self._notices.take(before, after, news=[*outcome.happened, *news])
        for job, waited in find_cancelled_waits(self.scene, scene):
            self._metrics.waited(job, **waited._asdict())
        self.scene = scene
        if is_pod_gone:
            # The steps that waited for the end of this pod are safe now.
            self._alarm.ring()
        self._metrics.cycle(time.perf_counter() - began, decided=decision is not None)
        self._plan_next(scene)

    def _plan_next(self, scene: Scene) -> None:
        retries = [entry.status.retry_at for entry in scene.entries.values()]
        self._next_cycle = min(
            scene.now + self._pace.look_seconds,
            max(self.scheduler.wake_at, scene.now + self._pace.settle_seconds),
            *(at for at in retries if at > scene.now),
        )
        if scene.now >= self._next_show:
            self._next_show = scene.now + self._pace.look_seconds
            self._metrics.show(scene)
            self._notices.find_waits(scene)

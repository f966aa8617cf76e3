"""Records the outcome of a cycle, brings about what is desired, and reports it.

Called by :mod:`dljob.control.loop` at the end of each cycle. Records come before actions, so that the
next controller knows everything that this one may have begun.
"""

import time
from collections.abc import Callable, Mapping

from dljob.control.acting.applying import Actor
from dljob.control.acting.desired_pods import Desired
from dljob.control.acting.recording import Records
from dljob.control.acting.task_pool import Slots
from dljob.control.pacing import Alarm, BatchResult, BatchSize, Effort, Pace
from dljob.control.reporting import events
from dljob.control.reporting.reports import Outcome, Outcomes
from dljob.control.situation.ports import NotKept, NotKeptAlone, Platform
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.rules import News
from dljob.control.situation.scene import Scene
from dljob.core.model import JobId


class Effects:
    """Records, acts and reports; one for the life of a controller."""

    def __init__(
        self,
        platform: Platform,
        actor: Actor,
        *,
        records: Records,
        outcomes: Outcomes,
        quarantine: Quarantine,
        batch_size: BatchSize,
        pace: Pace,
        clock: Callable[[], float],
    ) -> None:
        self._platform = platform
        self.actor = actor
        self._records = records
        self.outcomes = outcomes
        self._quarantine = quarantine
        self._batch_size = batch_size
        self._pace = pace
        self._clock = clock

    async def bring_about(
        self,
        outcome: Outcome,
        desired: Mapping[JobId, Desired],
        *,
        scene: Scene,
        effort: Effort,
        alarm: Alarm,
    ) -> bool:
        """Record the scene, bring about what is desired and report; return False if a status was refused."""
        self.outcomes.note(outcome)
        pace, spent = self._pace, effort.seconds
        with effort.aside():
            began = time.perf_counter()
            # A launch that is still under way must not create a pod that this record unbooks.
            await self.actor.finish()
            since = time.perf_counter()
            self._batch_size.note_rest(since - began)
            if not await self._keep(scene):
                return False
            slots = Slots(pace.launches_at_once, self._cut_after(since, spent, alarm=alarm))
            await self.actor.carry_out(
                desired,
                scene,
                quarantine=self._quarantine,
                slots=slots,
                # Pods that still wait for a slot may be left by then.
                trailing=min(pace.trailing_launches, pace.launches_at_once),
            )
        self._batch_size.note(
            BatchResult(
                steps=outcome.steps,
                seconds=time.perf_counter() - since,
                effort=spent,
                is_hurried=alarm.is_urgent,
                left=slots.left,
            )
        )
        await self.outcomes.report()
        return True

    def _cut_after(self, since: float, effort: float, *, alarm: Alarm) -> Callable[[], bool]:
        """
        Return the test that ends a batch early: the batch has lasted longer than one for a waiting job,
        and now a job waits.

        A batch is never cut after one that was cut, so that its pods are not left again.
        """
        if not self._batch_size.is_long:
            return lambda: False
        enough = since + self._batch_size.hurried_seconds(effort)
        # Evaluated for each pod, because the alarm may ring while the cycle runs.
        return lambda: alarm.is_urgent and time.perf_counter() >= enough

    async def _keep(self, scene: Scene) -> bool:
        """Record the statuses; if some are refused, the next cycle reads everything again without these jobs."""
        unwritable = self._quarantine.unwritable
        try:
            await self._records.keep(scene, unwritable.offered)
        except NotKept:
            self._quarantine.forget_record()
            raise
        except NotKeptAlone as error:
            await self.leave_alone(error)
            return False
        back = News("Readmitted", "its status can be written again")
        await events.tell_all(self._platform, ((job, back) for job in unwritable.accept()))
        return True

    async def leave_alone(self, error: NotKeptAlone) -> None:
        """Leave jobs alone as long as their statuses cannot be recorded."""
        self._quarantine.forget_record()
        news = self._quarantine.unwritable.refuse(error.jobs, self._clock())
        await events.tell_all(
            self._platform,
            (
                (job, News("SetAside", f"is set aside: {why}", warning=True))
                for job, why in news.items()
            ),
        )

"""
A cycle's outcome is recorded, and then done: first the statuses, then the commands that follow from them.

Called by :mod:`dlcontrol.loop` at the end of each cycle. Nothing is done that is not recorded, so that the next
controller knows of all that this one may have begun.
"""

import time
from collections.abc import Callable, Sequence

from dlcontrol.acting.applying import Actor
from dlcontrol.acting.commands import Command
from dlcontrol.acting.recording import Records
from dlcontrol.acting.task_pool import Slots
from dlcontrol.pacing import Alarm, BatchResult, BatchSize, Effort, Pace
from dlcontrol.reporting import events
from dlcontrol.situation.ports import NotKept, NotKeptAlone, Platform
from dlcontrol.situation.quarantine import Quarantine
from dlcontrol.situation.rules import News
from dlcontrol.situation.scene import Scene


class Effects:
    """Records and acts, for as long as a controller leads."""

    def __init__(
        self,
        platform: Platform,
        actor: Actor,
        *,
        records: Records,
        quarantine: Quarantine,
        batch_size: BatchSize,
        pace: Pace,
        clock: Callable[[], float],
    ) -> None:
        self._platform = platform
        self._actor = actor
        self._records = records
        self._quarantine = quarantine
        self._batch_size = batch_size
        self._pace = pace
        self._clock = clock

    async def bring_about(
        self,
        commands: Sequence[Command],
        scene: Scene,
        *,
        steps: int,
        effort: Effort,
        alarm: Alarm,
    ) -> bool:
        """Record it, and then do it; tell whether it could be recorded."""
        pace, spent = self._pace, effort.seconds
        with effort.aside():
            began = time.perf_counter()
            # A launch that is still under way must not make a pod that this record unbooks.
            await self._actor.finish()
            since = time.perf_counter()
            self._batch_size.note_rest(since - began)
            if not await self._keep(scene):
                return False
            slots = Slots(pace.launches_at_once, self._cut_after(since, spent, alarm=alarm))
            await self._actor.carry_out(
                commands,
                scene,
                quarantine=self._quarantine,
                slots=slots,
                # Pods that still wait for a turn may be left by then.
                trailing=min(pace.trailing_launches, pace.launches_at_once),
            )
        self._batch_size.note(
            BatchResult(
                steps=steps,
                seconds=time.perf_counter() - since,
                effort=spent,
                is_hurried=alarm.is_urgent,
                left=slots.left,
            )
        )
        return True

    def _cut_after(self, since: float, effort: float, *, alarm: Alarm) -> Callable[[], bool]:
        """
        Return whether to leave the rest: the batch is longer than it would be for a waiting job,
        and now a job waits.

        It never happens twice in a row, so that what was left is not left again.
        """
        if not self._batch_size.is_long:
            return lambda: False
        enough = since + self._batch_size.hurried_seconds(effort)
        # Evaluated at each turn of a pod, when the alarm may have rung since the cycle began.
        return lambda: alarm.is_urgent and time.perf_counter() >= enough

    async def _keep(self, scene: Scene) -> bool:
        """Record it. If some jobs are refused, the next cycle reads everything again and leaves them out."""
        unwritable = self._quarantine.unwritable
        try:
            # Statuses that the platform refused before are offered again when their time has come.
            await self._records.keep(scene, unwritable.offered)
        except NotKept:
            self._quarantine.doubt()
            raise
        except NotKeptAlone as error:
            await self.leave_alone(error)
            return False
        back = News("Readmitted", "its status can be written again")
        await events.tell_all(self._platform, ((job, back) for job in unwritable.accept()))
        return True

    async def leave_alone(self, error: NotKeptAlone) -> None:
        """Do nothing about these jobs as long as nothing can be recorded of them."""
        self._quarantine.doubt()
        news = self._quarantine.unwritable.refuse(error.jobs, self._clock())
        await events.tell_all(
            self._platform,
            (
                (job, News("SetAside", f"is set aside: {why}", warning=True))
                for job, why in news.items()
            ),
        )

"""
A cycle's outcome is recorded, and then done: first the statuses, then the commands that follow from them.

Called by :mod:`dlcontrol.loop` at the end of each cycle. Nothing is done that is not recorded, so that the next
controller knows of all that this one may have begun.
"""

import time
from collections.abc import Callable, Sequence

from dlcontrol.acting.applying import Hands
from dlcontrol.acting.commands import Command
from dlcontrol.acting.recording import Records
from dlcontrol.acting.task_pool import Turns
from dlcontrol.pacing import Alarm, Bites, Effort, Pace, Taken
from dlcontrol.reporting import events
from dlcontrol.situation.ports import NotKept, NotKeptAlone, Platform
from dlcontrol.situation.quarantine import Asides
from dlcontrol.situation.rules import News
from dlcontrol.situation.scene import Scene


class Effects:
    """Records and acts, for as long as a controller leads."""

    def __init__(
        self,
        platform: Platform,
        hands: Hands,
        *,
        records: Records,
        asides: Asides,
        bites: Bites,
        pace: Pace,
        clock: Callable[[], float],
    ) -> None:
        self._platform = platform
        self._hands = hands
        self._records = records
        self._asides = asides
        self._bites = bites
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
            await self._hands.finish()
            since = time.perf_counter()
            self._bites.note_rest(since - began)
            if not await self._keep(scene):
                return False
            turns = Turns(pace.launches_at_once, self._cut_after(since, spent, alarm=alarm))
            await self._hands.carry_out(
                commands,
                scene,
                asides=self._asides,
                turns=turns,
                # Pods that still wait for a turn may be left by then.
                trailing=min(pace.trailing_launches, pace.launches_at_once),
            )
        self._bites.note(
            Taken(
                steps=steps,
                seconds=time.perf_counter() - since,
                effort=spent,
                is_hurried=alarm.is_urgent,
                left=turns.left,
            )
        )
        return True

    def _cut_after(self, since: float, effort: float, *, alarm: Alarm) -> Callable[[], bool]:
        """
        Return whether to leave the rest: the batch is longer than it would be for a waiting job,
        and now a job waits.

        It never happens twice in a row, so that what was left is not left again.
        """
        if not self._bites.is_long:
            return lambda: False
        enough = since + self._bites.hurried_seconds(effort)
        # Evaluated at each turn of a pod, when the alarm may have rung since the cycle began.
        return lambda: alarm.is_urgent and time.perf_counter() >= enough

    async def _keep(self, scene: Scene) -> bool:
        """Record it. If some jobs are refused, the next cycle reads everything again and leaves them out."""
        unwritable = self._asides.unwritable
        try:
            # Statuses that the platform refused before are offered again when their time has come.
            await self._records.keep(scene, unwritable.offered)
        except NotKept:
            self._asides.doubt()
            raise
        except NotKeptAlone as error:
            await self.leave_alone(error)
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

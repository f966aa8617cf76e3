"""
When a simulated controller may decide, and how far it may let a job grow at once.

:mod:`dljob.sim.engine.world` plays by these rules where a :class:`~dljob.sim.engine.settings.Setting` has them;
:mod:`dljob_lab.worlds` says which published evaluation has which. A rule that policies must obey is put
into what they see, so that every policy obeys it without knowing of it.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

from dljob.core.model import Job
from dljob.sim.engine.event_queue import RESOLUTION, EventQueue, Order


def next_round(now: float, round_s: float) -> float:
    """Return when the present round begins, if this is its beginning, else when the next one does."""
    if round_s <= 0.0:
        return now
    # The clock counts in microseconds, and a division must not make a round of one of them.
    return math.ceil((now - RESOLUTION) / round_s) * round_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How many GPUs a job may have, given the most on which it was profiled, that is, has trained."""

    factor: int = 2
    """The multiple of the GPUs that it was profiled on."""
    at_first: int = 1
    """The number before it has trained at all."""
    most: int = 64

    def limit(self, job: Job, profiled: int) -> Job:
        """
        Leave out the numbers of GPUs that the job may not have yet.

        Its smallest one and the one that it requests stay: a job that could run on none would never
        be profiled, and policies for rigid jobs know no other number than the request.
        """
        demand = job.gpus
        allowed = min(self.factor * profiled if profiled else self.at_first, self.most)
        options = tuple(
            count
            for count in demand.options
            if count <= allowed or count in (demand.options[0], demand.requested)
        )
        return (
            job
            if options == demand.options
            else replace(job, gpus=replace(demand, options=options))
        )


class Rounds:
    """When the next decision is made: after what has happened, in time, and at the beginning of a round."""

    def __init__(self, queue: EventQueue, *, round_s: float, period_s: float) -> None:
        self._queue = queue
        self._round_s = round_s
        self._period_s = period_s
        self._is_due = False
        self._round_at = -math.inf
        """The round to which a decision was put off last."""
        self._stamp = 0
        """Raised by each decision; what an earlier one wanted is of no interest to the policy any more."""
        self.fruitless = 0
        """How many decisions in a row were made since nothing happens any more but decisions."""

    def ask(self) -> None:
        """Something has happened that calls for a decision."""
        self._is_due = True

    def begin_instant(self) -> None:
        """Forget the calls of the last instant: a decision was made, or is put off to a round."""
        self._is_due = False

    def is_now(self) -> bool:
        """Return whether a decision is due and may be made now; one that may not is made in the next round."""
        if not self._is_due:
            return False
        begins = next_round(self._queue.now, self._round_s)
        if begins <= self._queue.now + RESOLUTION:
            return True
        if self._round_at < begins:
            self._round_at = begins
            self._queue.at(begins, Order.WAKE, event=self.ask)
        return False

    def note_decision(self, wake_at: float | None) -> None:
        """A decision was made, and its policy wants to be asked again at that time at the latest."""
        self._stamp += 1
        now = self._queue.now
        asked_for = math.inf if wake_at is None else max(wake_at, now + RESOLUTION)
        due_at = min(asked_for, now + self._period_s)
        if due_at < math.inf:
            self._queue.at(due_at, Order.WAKE, event=partial(self._wake, self._stamp))
        self.fruitless = self.fruitless + 1 if self._queue.only_wakes else 0

    def _wake(self, stamp: int) -> None:
        self._is_due = self._is_due or stamp == self._stamp

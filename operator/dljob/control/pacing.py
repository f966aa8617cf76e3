"""How often the loop runs a cycle, how long it waits, how much of a plan it carries out at a time, and
where a cycle that lasts long waits."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often the loop runs a cycle and decides. Times are in seconds."""

    period_seconds: float = 15.0
    """The longest time between two decisions; each uses what DLJob has learnt since the one
    before."""
    settle_seconds: float = 0.02
    """How long the loop waits after a change by a user for further changes, so that a burst of them
    leads to one decision."""
    longest_settle_seconds: float = 0.2
    """The longest that the loop waits for a burst to end."""
    look_seconds: float = 1.0
    """How often the loop checks progress, deadlines and timeouts."""
    record_seconds: float = 0.0
    """The shortest time after which the loop records a job of which only the progress and the GPU
    time have changed; 0: whenever it counts them, which is about every 30 seconds."""
    slow_seconds: float = 30.0
    """A cycle that lasts longer than this is logged once, with the places in the code where it waits."""
    stuck_seconds: float = 600.0
    """A cycle that does not end within this time hangs; the controller then gives up its lease, so
    that another one can lead."""
    warm_seconds: float = 30.0
    """How long the start of a new job waits for its spare interpreters."""
    rest_share: float = 3.0
    """After each cycle the loop rests for this many times the CPU time of the cycle; with 3 it uses
    at most a quarter of a core. Time in which it waits for a write or a pod counts as rest."""
    longest_rest_seconds: float = 0.5
    """The longest rest after a cycle, because jobs wait for the next decision."""
    most_steps: int = 0
    """The most steps of a decision that one cycle carries out before the next cycle begins; 0 sets
    no limit. Where each step costs a write to a server, a limit keeps a new job from waiting behind
    thousands of others."""
    bite_seconds: float = 2.0
    """The time budget for the steps of one cycle; the loop estimates from its last rate how many
    steps fit, because a server may be slow. If a cycle itself takes long, or no job has news, the
    budget is up to three times as long. Urgent news ends the cycle early, and the next one creates
    the remaining pods."""
    launches_at_once: int = 32
    """How many pods the loop prepares and creates at the same time; at least one."""
    trailing_launches: int = 0
    """How many pods may still be in creation when the next cycle begins, so that the server stays
    busy in the meantime."""


LONGEST_BITE: Final = 3.0
"""The factor by which a batch may last longer than usual; new jobs wait until it ends."""
UNHURRIED: Final = 4.0
"""The factor by which a batch lasts longer after a cycle of the same effort when no job waits for
the next decision."""
LEAST_STEPS: Final = 8
"""The fewest steps of a batch, however slow the server is, because each cycle has a cost of its
own."""
LAUNCH_SHARE: Final = 0.5
"""The share of a step's time that creating its pod takes; the rest is writing its record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """Which part of a decision one cycle has carried out."""

    steps: int
    seconds: float
    effort: float = 0.0
    """The CPU time of the cycle that made the decision."""
    is_hurried: bool = True
    """A job waited for the next decision while this part was carried out, as others will."""
    left: int = 0
    """How many pods the next cycle has to create, because this batch was cut short."""


class BatchSize:
    """Chooses how many steps of a decision one cycle carries out: a batch."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.most = pace.most_steps
        """The size of the next batch; 0 sets no limit."""
        self.is_long = False
        """The next batch is long because no job waits, so that urgent news may cut it short."""
        self._per_second: float | None = None
        """The rate of the last batch, in steps per second."""
        self._latest: BatchResult | None = None
        """The last batch, some pods of which may still be in creation."""
        self._owes = False
        """The batch before has left pods to create."""

    def hurried_seconds(self, effort: float) -> float:
        """Return the time budget of a batch after a cycle of this effort, when a job waits."""
        return self._in_bounds(self._pace.rest_share * effort)

    def note(self, result: BatchResult) -> None:
        """Take the rate of a batch into account."""
        if result.left or self._owes:
            # The rate of pods that an earlier batch has left says nothing about new steps.
            self._latest = None
        else:
            self._learn_speed(result)
            self._latest = result
        self._owes = bool(result.left)
        self._size_next(result)

    def note_rest(self, seconds: float) -> None:
        """Add the time that the pods of the last batch took after the next cycle had begun."""
        result, self._latest = self._latest, None
        if result is not None:
            result = replace(result, seconds=result.seconds + seconds)
            self._learn_speed(result)
            self._size_next(result)

    def _learn_speed(self, result: BatchResult) -> None:
        if result.steps and result.seconds > 0.0:
            self._per_second = result.steps / result.seconds

    def _size_next(self, result: BatchResult) -> None:
        if not self._pace.most_steps:
            return
        self.is_long = not result.is_hurried
        if self._per_second is None:
            return
        time_for_it = self.hurried_seconds(result.effort)
        if self.is_long:
            time_for_it = self._in_bounds(UNHURRIED * self._pace.rest_share * result.effort)
        # The next batch begins with the pods that this one has left.
        steps = int(self._per_second * time_for_it - LAUNCH_SHARE * result.left)
        self.most = min(self._pace.most_steps, max(LEAST_STEPS, steps))

    def _in_bounds(self, seconds: float) -> float:
        usual = self._pace.bite_seconds
        return min(max(usual, seconds), LONGEST_BITE * usual)


class Effort:
    """The CPU time of a cycle, without what other tasks use while the cycle waits for them."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since = time.thread_time()
        self.waited = 0.0
        """How long other tasks have run."""

    @property
    def seconds(self) -> float:
        """The CPU time of the cycle until now."""
        return self._before + time.thread_time() - self._since

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Do not count the time inside this block, in which other tasks run."""
        # thread_time() counts all tasks of this event loop, because they share one thread.
        self._before, began = self.seconds, time.perf_counter()
        try:
            yield
        finally:
            # Also after a write that failed, because the loop asks for its rest after each cycle.
            self._since = time.thread_time()
            self.waited += time.perf_counter() - began

    def rest(self, pace: Pace) -> float:
        """Return how long the loop has to rest, so that other tasks run."""
        due = pace.rest_share * self.seconds - self.waited
        return min(max(0.0, due), pace.longest_rest_seconds)


class Alarm:
    """Wakes the loop before its next cycle is due."""

    def __init__(self, pace: Pace, clock: Callable[[], float]) -> None:
        self._pace = pace
        self._clock = clock
        self._woken = asyncio.Event()
        self._is_burst = False
        self.is_urgent = False
        """A user or a job waits for the outcome of the next cycle."""

    def ring(self, *, burst: bool = False, urgent: bool = False) -> None:
        """Let the next cycle begin at once; after a ``burst`` the loop waits for further news first."""
        self._is_burst = self._is_burst or burst
        self.is_urgent = self.is_urgent or urgent
        self._woken.set()

    def begin_cycle(self) -> None:
        """Forget the news that this cycle sees."""
        self._woken.clear()
        self.is_urgent = False

    async def wait(self, until: float, *, settles: bool) -> None:
        """Return when it is time or there is news; unless it ``settles``, a burst is not waited for."""
        pause = max(0.0, until - self._clock())
        try:
            # Not wait_for(), which may swallow that we are to end if we are woken just then.
            async with asyncio.timeout(pause):
                await self._woken.wait()
        except TimeoutError:
            return
        latest = self._clock() + self._pace.longest_settle_seconds
        while self._is_burst and settles and self._clock() < latest:
            # A burst that goes on sets the flag again, and so prolongs this wait up to its limit.
            self._is_burst = False
            await asyncio.sleep(self._pace.settle_seconds)
        # The next cycle begins without another pause, so that no ring is lost in between.
        self._woken.clear()


@contextmanager
def warned_after(seconds: float) -> Iterator[None]:
    """Log one warning with the places where this task waits, if the block lasts longer."""
    task = asyncio.current_task()
    assert task is not None

    def warn() -> None:
        places = " > ".join(find_places(task))
        log.warning("a cycle has lasted for %g s so far; it waits at %s", seconds, places)

    warning = asyncio.get_running_loop().call_later(seconds, warn)
    try:
        yield
    finally:
        warning.cancel()


def find_places(task: asyncio.Task[Any]) -> list[str]:
    """Return the places where a task, and the task that it waits for, stand; the outermost first.

    ``Task.get_stack()`` returns only the outermost place of a task that waits.
    """
    places = []
    awaited: Any = task.get_coro()
    # A future, which ends the chain, has no frame.
    while frame := getattr(awaited, "cr_frame", None):
        file = "/".join(Path(frame.f_code.co_filename).parts[-3:])
        places.append(f"{file}:{frame.f_lineno} in {frame.f_code.co_qualname}")
        awaited = awaited.cr_await
    future = getattr(task, "_fut_waiter", None)
    # A future of gather() has children; of these the first that has not ended counts.
    for each in getattr(future, "_children", (future,)):
        if isinstance(each, asyncio.Task) and not each.done():
            return [*places, *find_places(each)]
    return places

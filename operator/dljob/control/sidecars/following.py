"""The controller's connections to the SideCars (docs/protocol.md): hundreds, on one event loop.

The loop (:mod:`dljob.control.loop`) names the pods with :meth:`SideCars.follow`, sets their commands
with :meth:`SideCars.declare`, and reads their states with :meth:`SideCars.contact`; none of these
calls waits. Each pod has two background tasks: one polls for news for ever, the other sends the
declared command until the SideCar accepts it. The tasks use separate connections, so a declaration
never waits for a poll. Both retry after each failure with a growing pause, and the success of one
ends the pause of the other. :mod:`dljob.control.sidecars.contacts` reads the answers,
:mod:`dljob.control.sidecars.dialing` sends the requests.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dljob.control.sidecars.contacts import (
    FINAL,
    Answer,
    ContactLog,
    Ticket,
    find_aspects,
    plausible,
    shown,
    was_leaving,
)
from dljob.control.sidecars.dialing import Credentials, DialSettings, Line, NotAccepted, Unreachable
from dljob.control.situation.dialer import NO_CONTACT, Contact, ForeignEpoch
from dljob.control.situation.ports import Address, PodKey
from dljob.core.primitives.backoff import wait_after
from dljob.core.primitives.rate_limit import RateLimit
from dljob_wire.kinds import LARGEST_WHOLE
from dljob_wire.messages import Refusal, Refused, State, Target


class Meter(Protocol):
    def polled(self) -> None:
        """Count a poll of a SideCar."""

    def told(self, seconds: float) -> None:
        """Count an answered declaration, with the time from sending it to the answer."""

    def failed(self) -> None:
        """Count a request without an answer to a SideCar that has answered before and is not leaving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The listener for news from SideCars, and the sources of time and randomness."""

    heard: Callable[[PodKey, bool], None]
    """Called for each changed contact; true if more than progress has changed."""
    epoch: int = LARGEST_WHOLE
    """The epoch of this leader.

    A report of a SideCar that obeys a later epoch raises a doubt only. A container must not end a
    controller: only the recorded leader counts.
    """
    installation: str = ""
    """The id of the installation of DLJob, sent with commands; empty if unknown."""
    meter: Meter
    clock: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random
    """Returns a random number from 0 to below 1."""


class Budget:
    """The requests, the changes and the bytes that one SideCar may cost."""

    def __init__(self, settings: DialSettings) -> None:
        self._polls = RateLimit(settings.polls_per_second, settings.polls_at_once)
        self._changes = RateLimit(settings.changes_per_second, settings.changes_at_once)
        self._bytes = RateLimit(settings.bytes_per_second, settings.bytes_at_once)
        self._received = 0
        """The number of bytes that were counted."""
        self._owed = 0.0
        """How long to wait before the next poll, because of the last answers."""

    def take_poll(self, now: float) -> float:
        """Count a poll; return how long to wait before it is sent."""
        owed, self._owed = self._owed, 0.0
        return max(self._polls.take(now), owed)

    def pay(self, now: float, *, received: int, is_change: bool) -> None:
        """Count the cost of an answer; ``received`` are the bytes of all answers so far."""
        more = received - self._received
        self._received = received
        owed = self._bytes.take(now, more) if more else 0.0
        if is_change:
            owed = max(owed, self._changes.take(now))
        self._owed = max(self._owed, owed)


log = logging.getLogger(__name__)

AT_ONCE = 64
"""The most short requests, which SideCars answer at once, that may run at the same time."""
STAMP_S = 3.0
"""How long a SideCar that obeys a former leader is not polled, unless its new command comes first.
"""


class Doubted(Exception):
    """The SideCar reported a state that only another controller could have caused."""

    def __init__(self, foreign: ForeignEpoch) -> None:
        super().__init__(f"it is not believed: {foreign.sentence}")
        self.foreign = foreign


class SideCars:
    """All SideCars of a controller; created on the event loop that runs their tasks."""

    def __init__(self, around: Surroundings, settings: DialSettings) -> None:
        self._around = around
        self._settings = settings
        self._credentials = (
            Credentials(
                settings.certificates, renewal_seconds=settings.renewal_seconds, now=time.monotonic
            )
            if settings.certificates
            else None
        )
        self._followers: dict[PodKey, _Follower] = {}
        self._crowd = _Crowd(lambda: settings.pace(len(self._followers)))
        self._endings: set[asyncio.Task[None]] = set()

    def follow(self, key: PodKey, address: Address) -> None:
        """Follow the SideCar of this pod from now on.

        A repeat with the same address changes nothing. Another address means another SideCar, whose
        state is still unknown.
        """
        present = self._followers.get(key)
        if present is not None and present.address == address:
            return
        self.forget(key)
        line = Line(address, self._settings, credentials=self._credentials)
        self._followers[key] = _Follower(
            key, address, line=line, settings=self._settings, around=self._around, crowd=self._crowd
        )

    def forget(self, key: PodKey) -> None:
        """Close the connections to this SideCar and stop polling it."""
        follower = self._followers.pop(key, None)
        if follower is None:
            return
        follower.cancel()
        ending = asyncio.get_running_loop().create_task(follower.end())
        # The event loop refers to its tasks weakly. The set keeps them, and close() waits for them.
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def declare(self, key: PodKey, target: Target) -> None:
        """Send this target until the SideCar accepts or finally refuses it.

        The target replaces the former one. A repeat changes nothing, nor does a target that is
        older than the last declared one or meant for another start of the container.
        """
        self._followers[key].declare(replace(target, installation=self._around.installation))

    def contact(self, key: PodKey) -> Contact:
        """Return the contact; empty if the SideCar is not followed."""
        follower = self._followers.get(key)
        return NO_CONTACT if follower is None else follower.known.contact

    def believe(self, left: State) -> State | None:
        """Return a state that a SideCar left behind; None if an answer with it would not count."""
        return None if _find_foreign(left, self._around) else plausible(left)

    async def close(self) -> None:
        """Forget all SideCars, and return once all their tasks have ended."""
        for key in list(self._followers):
            self.forget(key)
        while self._endings:
            await asyncio.wait(self._endings)


class _Crowd:
    """Limits how many SideCars a controller talks to at the same time.

    If the controller dialled thousands at once, every handshake would wait for all others until it
    timed out and started again. SideCars that do not answer have a limit of their own, so they do
    not delay the others.
    """

    def __init__(self, pace: Callable[[], float]) -> None:
        self.pace = pace
        """How long each SideCar may hold back mere progress."""
        self._answering = asyncio.Semaphore(AT_ONCE)
        self._silent = asyncio.Semaphore(AT_ONCE)

    def turn(self, contact: Contact) -> asyncio.Semaphore:
        """Return the semaphore to hold during a request that is answered at once."""
        return self._answering if contact.reachable else self._silent


class _Follower:
    """One SideCar: its known state and its two background tasks."""

    def __init__(
        self,
        key: PodKey,
        address: Address,
        *,
        line: Line,
        settings: DialSettings,
        around: Surroundings,
        crowd: _Crowd,
    ) -> None:
        self._crowd = crowd
        self.address = address
        self.known = ContactLog(around.clock())
        self._key = key
        self._line = line
        self._settings = settings
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._budget = Budget(settings)
        self._is_crowded = False
        self._stir = asyncio.Event()
        """Set for an instant when the SideCar can be reached again."""
        self._failures = 0
        """The number of failed polls in a row."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._telling: asyncio.Task[None] | None = None
        self._told = asyncio.Event()
        """Set after each attempt to send a command, failed or not."""
        self._refused: tuple[Target, float] | None = None
        """The command that the SideCar finally refused last, and the time until which it is not
        repeated.
        """
        self._listening = self._begin(self._listen())

    def declare(self, target: Target) -> None:
        if self._refused is not None and target == self._refused[0]:
            # The loop declares it at each cycle, and each refusal wakes the loop.
            if self._loop.time() < self._refused[1]:
                return
            self._refused = None
        before = self.known.contact
        is_due = self.known.declare(target)
        if self.known.contact is not before and self._telling is not None:
            # A newer target replaces the one that is being sent.
            self._telling.cancel()
        if is_due:
            self._telling = self._begin(self._tell(target))

    def cancel(self) -> None:
        """Cancel both tasks; the caller awaits their end."""
        for task in self._tasks:
            task.cancel()

    async def end(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._line.close()

    def _begin(self, activity: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(activity)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- asking for news

    async def _listen(self) -> None:
        while True:
            await asyncio.sleep(self._budget.take_poll(self._loop.time()))
            try:
                pause = await self._try_to_listen()
            except Exception:
                log.exception("cannot process the answer of the SideCar of %s", self._key)
                pause = self._settings.longest_pause_seconds
            if pause:
                await self._rest(pause)

    async def _try_to_listen(self) -> float:
        try:
            await self._ask()
        except (Unreachable, Doubted) as error:
            pause = self._pause_after(self._failures)
            self._failures += 1
            self._lose(error)
            return pause
        except NotAccepted as error:
            # A SideCar with its maximum of waiting clients still answers requests that do not wait.
            self._is_crowded = error.refusal.error is Refused.TOO_MANY
            if not self._is_crowded:
                self._lose(Unreachable(f"it does not answer us: {shown(error.refusal)}"))
            return self._settings.refused_pause_seconds
        self._failures = 0
        return 0.0

    async def _ask(self) -> None:
        """Poll once; wait for news only if the last poll succeeded."""
        contact, asked = self.known.contact, self.known.ask()
        waits = contact.reachable and not self._is_crowded
        self._is_crowded = False
        self._around.meter.polled()
        progress = self._crowd.pace()
        # Poll a SideCar without news no more often than one with news.
        wait = max(self._settings.wait_seconds, progress) if waits else 0.0
        async with contextlib.nullcontext() if waits else self._crowd.turn(contact):
            state = await self._line.read_state(contact.state, wait=wait, progress=progress)
        self._insist_on_truth(state)
        self._hear(state, asked)
        if not waits and state.target is not None and state.epoch < self._around.epoch:
            await self._leave_to_command()

    async def _leave_to_command(self) -> None:
        """Leave the connection to the command by which a new leader takes over the SideCar.

        The next poll would hold the connection until there is news, so the command would need a
        second connection. When a leader takes over thousands of SideCars, handshakes cost the most
        time.
        """
        # No task ran since _hear() woke the loop, so this cannot clear the event of the new
        # command.
        self._told.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STAMP_S):
                await self._told.wait()

    # --- saying what shall be

    async def _tell(self, target: Target) -> None:
        failures = 0
        while self.known.is_due(target):
            try:
                pause = await self._try_to_tell(target, failures)
            except Exception:
                log.exception("cannot send the command to the SideCar of %s", self._key)
                pause = self._settings.longest_pause_seconds
            failures += 1
            if self.known.is_due(target):
                await self._rest(pause)

    async def _try_to_tell(self, target: Target, failures: int) -> float:
        """Send the command once; return the pause before a necessary repeat."""
        try:
            await self._put(target)
        except (Unreachable, Doubted) as error:
            # A report that a container has ended says nothing about its successor.
            if self.known.is_due(target):
                self._lose(error)
        except NotAccepted as error:
            self._object(target, error.refusal)
            return self._settings.refused_pause_seconds
        return self._pause_after(failures)

    async def _put(self, target: Target) -> None:
        async with self._crowd.turn(self.known.contact):
            state, sent = await self._send(target)
        self._insist_on_truth(state)
        self._hear(state, sent)

    async def _send(self, target: Target) -> tuple[State, Ticket]:
        sent, began = self.known.send(), self._loop.time()
        try:
            state = await self._line.declare(target)
        except NotAccepted as error:
            self._around.meter.told(self._loop.time() - began)
            self._insist_on_truth(error.refusal)
            raise
        finally:
            self._told.set()
        self._around.meter.told(self._loop.time() - began)
        return state, sent

    def _object(self, target: Target, refusal: Refusal) -> None:
        log.info("%s refuses %s: %s", self._key, target.term, shown(refusal))
        before = self.known.contact
        self.known.refuse(target, refusal, self._around.clock())
        if refusal.error in FINAL:
            self._refused = (target, self._loop.time() + self._settings.refused_pause_seconds)
        self._tell_others(before, Answer.NOTHING)
        if refusal.error is Refused.OTHER_INCARNATION:
            # The incarnation that we poll is gone, and may never answer.
            self._listening.cancel()
            self._listening = self._begin(self._listen())

    # --- what becomes of it

    def _insist_on_truth(self, said: State | Refusal) -> None:
        """Reject the state of a SideCar that obeys another controller, and do not count it as
        reachable.
        """
        foreign = _find_foreign(said, self._around)
        if foreign is not None:
            raise Doubted(foreign)

    def _hear(self, state: State, asked: Ticket) -> None:
        before = self.known.contact
        heard = self.known.hear(plausible(state), asked=asked, now=self._around.clock())
        self._pay(is_change=heard is Answer.MATERIAL)
        self._tell_others(before, heard)

    def _pay(self, *, is_change: bool) -> None:
        received = self._line.received
        self._budget.pay(self._loop.time(), received=received, is_change=is_change)

    def _lose(self, error: "Unreachable | Doubted") -> None:
        self._pay(is_change=False)
        before, now = self.known.contact, self._around.clock()
        if isinstance(error, Doubted):
            self.known.lose(str(error), now, foreign=error.foreign)
        else:
            self.known.lose(str(error), now, is_outdated=error.is_outdated)
        # A SideCar that starts does not answer yet, and one that ends does not answer any more: both are healthy.
        if before.state is not None and not was_leaving(before):
            self._around.meter.failed()
        self._tell_others(before, Answer.NOTHING)

    def _tell_others(self, before: Contact, heard: Answer) -> None:
        now = self.known.contact
        if now.reachable and not before.reachable:
            log.info("the SideCar of %s answers", self._key)
            # set() wakes all present waiters; clear() at once makes later pauses last.
            self._stir.set()
            self._stir.clear()
        elif before.reachable and not now.reachable:
            word = "has ended" if was_leaving(before) else "is silent"
            log.info("the SideCar of %s %s: %s", self._key, word, now.problem)
        is_material = heard is Answer.MATERIAL or find_aspects(now) != find_aspects(before)
        if is_material or heard is Answer.PROGRESS:
            self._around.heard(self._key, is_material)

    # --- pauses

    def _pause_after(self, failures: int) -> float:
        shortest = self._settings.shortest_pause_seconds
        longest = wait_after(
            failures + 1,
            first_seconds=shortest,
            longest_seconds=self._settings.longest_pause_seconds,
        )
        # A random part spreads the retries of SideCars that failed together, as those of one node
        # do.
        return shortest + self._around.chance() * (longest - shortest)

    async def _rest(self, seconds: float) -> None:
        """Wait for this time, or until the SideCar can be reached again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stir.wait()


def _find_foreign(said: State | Refusal, around: Surroundings) -> ForeignEpoch | None:
    """Return whose command the SideCar claims to obey, if not this controller's or a former one's."""
    ours = around.installation
    is_foreign = bool(ours and said.installation) and said.installation != ours
    if is_foreign or said.epoch > around.epoch:
        return ForeignEpoch(said.epoch, said.installation if is_foreign else "")
    return None

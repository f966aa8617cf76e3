"""
The controller's side of the talk with the SideCars (docs/protocol.md): hundreds, on one event loop.

The loop (:mod:`dlcontrol.loop`) says with :meth:`SideCars.follow` which pods there are, with
:meth:`SideCars.declare` what each shall do, and reads with :meth:`SideCars.contact` what is known of
it; none of them waits. Behind them two small activities a pod do: one asks for news for ever, the
other says what shall be, until it is accepted. They use connections of their own, so that a
declaration never waits for news. Both come back after each failure, later each time, and the
success of one ends the pause of the other.

What an answer means is in :mod:`dlcontrol.sidecars.contacts`, how one is had in :mod:`dlcontrol.sidecars.dialing`.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dlcontrol.sidecars.contacts import (
    Acquaintance,
    Heard,
    Ticket,
    shown,
)
from dlcontrol.sidecars.dialing import (
    Credentials,
    DialSettings,
    Line,
    NotAccepted,
    Unreachable,
)
from dlcontrol.sidecars.plausible import plausible
from dlcontrol.situation.ports import Address, PodKey
from dlcontrol.situation.scene import NO_CONTACT, Contact, Doubt
from dlwire.kinds import LARGEST_WHOLE
from dlwire.messages import Refusal, Refused, State, Stop, Target

log = logging.getLogger(__name__)

AT_ONCE = 64
"""So many are asked or told at the same time what is answered at once."""


class Doubted(Exception):
    """It answered, and says what only another controller could have made so."""

    def __init__(self, doubt: Doubt) -> None:
        super().__init__(f"it is not believed: {doubt.sentence}")
        self.doubt = doubt


class Meter(Protocol):
    """Whoever counts, for the metrics."""

    def polled(self) -> None:
        """A SideCar was asked for news."""

    def told(self, seconds: float) -> None:
        """A declaration was answered, so long after it was sent."""

    def failed(self) -> None:
        """A request had no answer; the SideCar is dialled again."""


class NoMeter:
    """Counts nothing."""

    def polled(self) -> None:
        """See :class:`Meter`."""

    def told(self, seconds: float) -> None:
        """See :class:`Meter`."""

    def failed(self) -> None:
        """See :class:`Meter`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Whom the SideCars tell, and where time and chance come from."""

    heard: Callable[[PodKey, bool], None]
    """Another contact than before; true if that is more than progress."""
    epoch: int = LARGEST_WHOLE
    """
    In which we lead. What a SideCar says that obeys a later one is no news but a doubt.

    A container is a witness, and must not end a controller: who leads is asked where that is recorded.
    """
    installation: str = ""
    """The id of the installation of DLJob that commands; nothing says it if it is empty."""
    meter: Meter = NoMeter()
    clock: Callable[[], float] = time.time
    """What the times in a contact are told by."""
    chance: Callable[[], float] = random.random
    """From 0 to below 1."""


class SideCars:
    """All SideCars of a controller; to be made on the event loop that it lives on."""

    def __init__(self, around: Surroundings, settings: DialSettings) -> None:
        self._around = around
        self._settings = settings
        self._credentials = (
            Credentials(
                settings.certificates,
                renewal_seconds=settings.renewal_seconds,
                now=time.monotonic,
            )
            if settings.certificates
            else None
        )
        self._followers: dict[PodKey, _Follower] = {}
        self._crowd = _Crowd(lambda: settings.pace(len(self._followers)))
        self._endings: set[asyncio.Task[None]] = set()

    def follow(self, key: PodKey, address: Address) -> None:
        """
        Speak to the SideCar of this pod from now on.

        Again at the same address it changes nothing. Another address is another SideCar, of which
        nothing is known yet.
        """
        present = self._followers.get(key)
        if present is not None and present.address == address:
            return
        self.forget(key)
        line = Line(address, self._settings, self._credentials)
        self._followers[key] = _Follower(
            key, address, line, self._settings, self._around, crowd=self._crowd
        )

    def forget(self, key: PodKey) -> None:
        """Do not speak to it any more; nothing is told of it from now on."""
        follower = self._followers.pop(key, None)
        if follower is None:
            return
        follower.cancel()
        ending = asyncio.get_running_loop().create_task(follower.end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def declare(self, key: PodKey, target: Target) -> None:
        """
        Tell it this until it is accepted or refused for good; what was told before is given up.

        The same once more changes nothing, and neither does what is older than what was declared
        already, or meant for another start of the container.
        """
        self._followers[key].declare(replace(target, installation=self._around.installation))

    def contact(self, key: PodKey) -> Contact:
        """Say what is known of it; nothing, if it is not followed."""
        follower = self._followers.get(key)
        return NO_CONTACT if follower is None else follower.known.contact

    async def close(self) -> None:
        """Forget all of them, and return when nothing of it is left."""
        for key in list(self._followers):
            self.forget(key)
        while self._endings:
            await asyncio.wait(self._endings)


class _Crowd:
    """
    What all SideCars of a controller share: its time.

    Thousands that are dialled at once would all be too late: each handshake would wait for all the others
    until its limit was over, and be begun again. Those that do not answer have turns of their own, so that
    they keep no others waiting.
    """

    def __init__(self, pace: Callable[[], float]) -> None:
        self.pace = pace
        """How long each may keep mere progress to itself."""
        self._answering = asyncio.Semaphore(AT_ONCE)
        self._silent = asyncio.Semaphore(AT_ONCE)

    def turn(self, contact: Contact) -> asyncio.Semaphore:
        """Return what to hold while a question is asked that is answered at once."""
        return self._answering if contact.reachable else self._silent


class _Follower:
    """One SideCar: what is known of it, and the two activities."""

    def __init__(
        self,
        key: PodKey,
        address: Address,
        line: Line,
        settings: DialSettings,
        around: Surroundings,
        *,
        crowd: _Crowd,
    ) -> None:
        """Speak to one of a crowd."""
        self._crowd = crowd
        self.address = address
        self.known = Acquaintance(around.clock())
        self._key = key
        self._line = line
        self._settings = settings
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._polls = Allowance(settings.polls_per_second, settings.polls_at_once)
        self._changes = Allowance(settings.changes_per_second, settings.changes_at_once)
        self._bytes = Allowance(settings.bytes_per_second, settings.bytes_at_once)
        self._received = 0
        """How many bytes were counted."""
        self._owed = 0.0
        """How long to wait before it is asked again, because of what it has said."""
        self._is_crowded = False
        self._stir = asyncio.Event()
        """Set for an instant, when it can be reached again."""
        self._failures = 0
        """How often in a row it was asked in vain."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._telling: asyncio.Task[None] | None = None
        self._listening = self._begin(self._listen())

    def declare(self, target: Target) -> None:
        before = self.known.contact
        is_due = self.known.declare(target)
        if self.known.contact is not before and self._telling is not None:
            # Something newer shall be, so that the older need not be said any longer.
            self._telling.cancel()
        if is_due:
            self._telling = self._begin(self._tell(target))

    def cancel(self) -> None:
        """Do nothing more; to be ended afterwards."""
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
            owed, self._owed = self._owed, 0.0
            await asyncio.sleep(max(self._polls.take(self._loop.time()), owed))
            try:
                pause = await self._try_to_listen()
            except Exception:
                log.exception("cannot process the answer of the SideCar of %s", self._key)
                pause = self._settings.longest_pause_seconds
            if pause:
                await self._rest(pause)

    async def _try_to_listen(self) -> float:
        """Ask once; returns after which pause to ask again."""
        try:
            await self._ask()
        except (Unreachable, Doubted) as error:
            pause = self._pause_after(self._failures)
            self._failures += 1
            self._lose(error)
            return pause
        except NotAccepted as error:
            self._take_refusal(error.refusal)
            return self._settings.refused_pause_seconds
        self._failures = 0
        return 0.0

    async def _ask(self) -> None:
        """Ask once, and wait for news only where all is well."""
        contact, asked = self.known.contact, self.known.ask()
        waits = contact.reachable and not self._is_crowded
        self._is_crowded = False
        self._around.meter.polled()
        progress = self._crowd.pace()
        # One that has no news at all is not asked more often than one that has.
        wait = max(self._settings.wait_seconds, progress) if waits else 0.0
        async with contextlib.nullcontext() if waits else self._crowd.turn(contact):
            state = await self._line.read_state(contact.state, wait=wait, progress=progress)
        self._insist_on_truth(state)
        self._hear(state, asked)

    def _take_refusal(self, refusal: Refusal) -> None:
        # Others wait for its news already, more than it allows. Who does not wait is answered.
        self._is_crowded = refusal.error is Refused.TOO_MANY
        if not self._is_crowded:
            self._lose(Unreachable(f"it does not answer us: {shown(refusal)}"))

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
        """Say it once; returns after which pause to say it again, if that is necessary."""
        try:
            await self._put(target)
        except (Unreachable, Doubted) as error:
            # That a container has ended is no news of the one that came after it.
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
        self._around.meter.told(self._loop.time() - began)
        return state, sent

    def _object(self, target: Target, refusal: Refusal) -> None:
        log.info("%s refuses %s: %s", self._key, target.term, shown(refusal))
        before = self.known.contact
        self.known.refuse(target, refusal, self._around.clock())
        self._tell_others(before, Heard.NOTHING)
        if refusal.error is Refused.OTHER_INCARNATION:
            # Whoever we wait for news from is gone, and may never say so.
            self._ask_again()

    # --- what becomes of it

    def _insist_on_truth(self, said: State | Refusal) -> None:
        """Take nothing in of one that obeys another controller than us, nor count it as reachable."""
        ours = self._around.installation
        is_foreign = bool(ours and said.installation) and said.installation != ours
        if is_foreign or said.epoch > self._around.epoch:
            raise Doubted(Doubt(said.epoch, said.installation if is_foreign else ""))

    def _hear(self, state: State, asked: Ticket) -> None:
        before = self.known.contact
        heard = self.known.hear(plausible(state), asked=asked, now=self._around.clock())
        self._pay(is_change=heard is Heard.MATERIAL)
        self._tell_others(before, heard)

    def _pay(self, *, is_change: bool) -> None:
        """Count what its answer costs, so that one that floods is asked more seldom."""
        now, more = self._loop.time(), self._line.received - self._received
        self._received += more
        owed = self._bytes.take(now, more) if more else 0.0
        if is_change:
            owed = max(owed, self._changes.take(now))
        self._owed = max(self._owed, owed)

    def _lose(self, error: "Unreachable | Doubted") -> None:
        self._pay(is_change=False)
        before, now = self.known.contact, self._around.clock()
        if isinstance(error, Doubted):
            self.known.lose(str(error), now, doubt=error.doubt)
        else:
            self.known.lose(str(error), now, is_outdated=error.is_outdated)
        self._around.meter.failed()
        self._tell_others(before, Heard.NOTHING)

    def _tell_others(self, before: Contact, heard: Heard) -> None:
        now = self.known.contact
        if now.reachable and not before.reachable:
            log.info("the SideCar of %s answers", self._key)
            self._stir.set()
            self._stir.clear()
        elif before.reachable and not now.reachable:
            word = "has ended" if _was_leaving(before) else "is silent"
            log.info("the SideCar of %s %s: %s", self._key, word, now.problem)
        is_material = heard is Heard.MATERIAL or _aspects(now) != _aspects(before)
        if is_material or heard is Heard.PROGRESS:
            self._around.heard(self._key, is_material)

    def _ask_again(self) -> None:
        """Ask for news anew, whatever was waited for."""
        self._listening.cancel()
        self._listening = self._begin(self._listen())

    # --- pauses

    def _pause_after(self, failures: int) -> float:
        shortest = self._settings.shortest_pause_seconds
        longest = min(self._settings.longest_pause_seconds, shortest * 2.0 ** min(failures, 30))
        return shortest + self._around.chance() * (longest - shortest)

    async def _rest(self, seconds: float) -> None:
        """Wait so long, or until it can be reached again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stir.wait()


def _was_leaving(contact: Contact) -> bool:
    """Whether it was about to end, so that it is no surprise that nobody answers any more."""
    state, told = contact.state, contact.declared
    return state is not None and (state.leaving or (isinstance(told, Stop) and told.leave))


def _aspects(contact: Contact) -> tuple[object, ...]:
    """What of a contact is news at once, besides the state."""
    return contact.reachable, contact.problem, contact.declared, contact.doubt


class Allowance:
    """So many at once, and so many a second over a longer time."""

    def __init__(self, per_second: float, at_once: int) -> None:
        self._each = 1.0 / per_second
        self._ahead = self._each * at_once
        self._spent = float("-inf")
        """When all that was taken would have been given, one by one."""

    def take(self, now: float, count: float = 1.0) -> float:
        """Take one, or so many; returns how long to wait for it."""
        self._spent = max(self._spent, now - self._ahead) + self._each * count
        return max(0.0, self._spent - now)

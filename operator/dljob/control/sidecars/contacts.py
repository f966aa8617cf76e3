"""The controller's knowledge of one SideCar, from answers that may overtake each other.

:mod:`dljob.control.sidecars.following` polls the SideCar and calls this module, which does no I/O. The
result is a :class:`~dljob.control.situation.scene.Contact` that never goes back to an earlier state.
Within one incarnation the version orders the states. Values that change without a new version
(ages, the use of GPUs) count only from an answer to a request that was sent after the present state
had arrived. Incarnations are random and unordered, but one begins only after the other has ended.
So the answer to a request that was sent after the first answer of the present incarnation comes
from that incarnation or a later one. An answer to an earlier request may come from a former
incarnation; another request resolves that. A contact also remembers every command that may be on
its way: a newer declaration does not recall an earlier one, which may arrive and be accepted first.
"""

from dataclasses import replace
from enum import Enum
from typing import Final, NewType

from dljob.control.situation.dialer import Contact, ForeignEpoch
from dljob_wire.messages import Change, Progress, Refusal, Refused, Run, State, Stop, Target

Ticket = NewType("Ticket", int)
"""The number of an event in the order of this contact: a request sent, or an answer received."""

FINAL = frozenset(
    {
        Refused.OLDER,
        Refused.CONFLICT,
        Refused.OTHER_INCARNATION,
        Refused.OTHER_INSTALLATION,
        Refused.LEAVING,
    }
)
"""Refusals that are final: the SideCar will not accept the same command later either."""

EXPECTED = frozenset({Refused.OTHER_INCARNATION, Refused.LEAVING})
"""A harmless refusal: the SideCar is in a new incarnation, or soon will be."""

SLOWEST: Final = 1e-6
FASTEST: Final = 1e6
"""Iterations a second."""
LONGEST_S: Final = 1e7
"""A hundred days."""


class Answer(Enum):
    """The news in an answer."""

    NOTHING = "nothing"
    """The state is the known one or an earlier one."""
    PROGRESS = "progress"
    MATERIAL = "material"
    """More than the progress has changed."""
    UNCLEAR = "unclear"
    """The answer is of another incarnation, earlier or later: poll again."""


class ContactLog:
    """Collects what the controller knows about one SideCar. Times are those of the caller's clock."""

    def __init__(self, now: float) -> None:
        self.contact = Contact(since=now)
        self._tickets = 0
        self._met_at = Ticket(0)
        """The ticket of the first answer of the present incarnation."""
        self._heard_at = Ticket(0)
        """The ticket of the present state."""
        self._essence: State | None = None
        self._was_sent = False
        """The declared command may have left this machine."""
        self._silence = ""
        self._objection = ""

    # --- what it says

    def ask(self) -> Ticket:
        """Note that a request is about to be sent; the ticket goes with its answer."""
        self._tickets += 1
        return Ticket(self._tickets)

    def hear(self, state: State, *, asked: Ticket, now: float) -> Answer:
        """Take in a state from an answer that may be late."""
        heard = self._take(state, asked, now=now)
        self._reach(now)
        return heard

    def lose(
        self,
        why: str,
        now: float,
        *,
        is_outdated: bool = False,
        foreign: ForeignEpoch | None = None,
    ) -> None:
        """Note that no credible answer came.

        The certificate counts as expired until the next answer.
        """
        self._silence = why
        is_outdated = is_outdated or self.contact.outdated
        since = now if self.contact.reachable else self.contact.since
        self.contact = replace(
            self.contact,
            reachable=False,
            since=since,
            problem=why,
            outdated=is_outdated,
            foreign=foreign,
        )

    def _take(self, state: State, asked: Ticket, *, now: float) -> Answer:
        known = self.contact.state
        if known is None or state.incarnation != known.incarnation:
            if asked < self._met_at:
                return Answer.UNCLEAR
            self._meet(state, now)
            return Answer.MATERIAL
        if state.version < known.version:
            return Answer.NOTHING
        if state.version == known.version:
            if asked > self._heard_at:
                self._keep(state)
            return Answer.NOTHING
        self._keep(state)
        before, self._essence = self._essence, state.essence()
        return Answer.PROGRESS if self._essence == before else Answer.MATERIAL

    def _meet(self, state: State, now: float) -> None:
        """Begin a new incarnation, for which no command on its way was meant."""
        self.contact = replace(self.contact, first_seen=now, declared=None, overtaken=())
        self._was_sent = False
        self._objection = ""
        self._keep(state)
        self._essence = state.essence()
        self._met_at = self._heard_at

    def _keep(self, state: State) -> None:
        coming = tuple(run for run in self.contact.overtaken if run.term > state.term)
        self.contact = replace(self.contact, state=state, overtaken=coming)
        self._heard_at = self.ask()

    def _reach(self, now: float) -> None:
        self._silence = ""
        since = self.contact.since if self.contact.reachable else now
        self.contact = replace(
            self.contact,
            reachable=True,
            since=since,
            problem=self._objection,
            outdated=False,
            foreign=None,
        )

    # --- commands

    def declare(self, target: Target) -> bool:
        """Declare a command; return True if it has to be sent.

        A command is not sent if it or a newer one was declared already, or if it is meant for
        another incarnation than the present one, which would only refuse it.
        """
        old, state = self.contact.declared, self.contact.state
        if state is None or target.incarnation != state.incarnation:
            return False
        if old is not None and (target == old or target.term < old.term):
            return False
        self._objection = ""
        self.contact = replace(
            self.contact, declared=target, overtaken=self._overtaken_by_now(), problem=self._silence
        )
        self._was_sent = False
        return self.is_due(target)

    def _overtaken_by_now(self) -> tuple[Run, ...]:
        old, overtaken = self.contact.declared, self.contact.overtaken
        if not isinstance(old, Run) or not self._was_sent or old not in self.contact.unanswered:
            return overtaken
        # Runs with no other GPUs than this one add no uncertainty.
        others = (run for run in overtaken if not set(run.gpus) <= set(old.gpus))
        return (*others, old)

    def send(self) -> Ticket:
        """Note that the declared command is about to be sent, and may arrive from now on."""
        self._was_sent = True
        return self.ask()

    def is_due(self, target: Target) -> bool:
        """Return True if this is still the declared command and the SideCar has not accepted it yet."""
        state = self.contact.state
        return self.contact.declared is target and state is not None and state.target != target

    def refuse(self, target: Target, refusal: Refusal, now: float) -> None:
        """Note that the SideCar refuses its command."""
        if self.contact.declared is target:
            if refusal.error not in EXPECTED:
                self._objection = f"it refuses {target.term}: {shown(refusal)}"
            if refusal.error in FINAL:
                self.contact = replace(self.contact, declared=None)
        self._reach(now)


def shown(refusal: Refusal) -> str:
    """Return a refusal as one line."""
    where = f" at {refusal.path}" if refusal.path else ""
    remedy = f"; {refusal.remedy}" if refusal.remedy else ""
    return f"{refusal.error.value}{where}: {refusal.message}{remedy}"


def was_leaving(contact: Contact) -> bool:
    """Return True if the SideCar was about to end, so that its silence is no surprise."""
    state, told = contact.state, contact.declared
    return state is not None and (state.leaving or (isinstance(told, Stop) and told.leave))


def find_aspects(contact: Contact) -> tuple[object, ...]:
    """Return the parts of a contact, apart from the state, whose change is news at once."""
    return contact.reachable, contact.problem, contact.declared, contact.foreign


def plausible(state: State) -> State:
    """
    Return the state with possible figures only; the same object if nothing changes.

    The wire bounds each number so that it can be written and read; the reach of a training bounds figures that enter the
    profiles of other jobs. A speed beyond that counts as unknown, a time beyond it as the longest possible one.
    """
    progress, change = _plausible_progress(state.progress), _plausible_change(state.change)
    if progress is state.progress and change is state.change:
        return state
    return replace(state, progress=progress, change=change)


def _plausible_progress(progress: Progress) -> Progress:
    speed, idle = progress.iterations_per_second, min(progress.idle_seconds, LONGEST_S)
    if speed and not SLOWEST <= speed <= FASTEST:
        speed = 0.0
    if speed == progress.iterations_per_second and idle == progress.idle_seconds:
        return progress
    return replace(progress, iterations_per_second=speed, idle_seconds=idle)


def _plausible_change(change: Change | None) -> Change | None:
    if change is None:
        return None
    seconds = (change.checkpoint_seconds, change.stop_seconds, change.start_seconds)
    if max(seconds) <= LONGEST_S:
        return change
    saving, stop, start = (min(each, LONGEST_S) for each in seconds)
    return replace(change, checkpoint_seconds=saving, stop_seconds=stop, start_seconds=start)

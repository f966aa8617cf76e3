"""
The network between a controller and played SideCars, and the controller's client on it.

The client uses the real :class:`dljob.control.sidecars.contacts.ContactLog`. Requests and answers take
time, overtake each other, and arrive twice or never; those of a dead controller still arrive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dljob.control.sidecars.contacts import Answer, ContactLog, Ticket
from dljob.control.situation.dialer import NO_CONTACT, Contact
from dljob.control.situation.ports import Address, PodKey
from dljob_wire.messages import Refusal, Refused, State, Target
from tests.control.played import Leash, PlayedPod, World

RESEND_SECONDS = 2.0

Learn = Callable[[PodKey, State], None]
"""Takes each state that is new."""


@dataclass(eq=False)
class _Line:
    """A SideCar that the client follows."""

    key: PodKey
    address: Address
    known: ContactLog
    is_open: bool = True
    polls: int = 0
    parked: Ticket | None = None
    """A question that is answered when there is news."""


class PlayedDialer:
    """The client of one controller."""

    def __init__(
        self,
        world: World,
        epoch: int,
        leash: Leash,
        wake: Callable[[], None],
        learn: Learn = lambda key, state: None,
    ) -> None:
        self._world = world
        self._epoch = epoch
        self._leash = leash
        self._wake = wake
        self._learn = learn
        self._lines: dict[PodKey, _Line] = {}
        world.listeners.append(self._hear_of)

    def close(self) -> None:
        for line in self._lines.values():
            line.is_open = False
        if self._hear_of in self._world.listeners:
            self._world.listeners.remove(self._hear_of)

    # --- the interface of the loop

    def follow(self, key: PodKey, address: Address) -> None:
        self.forget(key)
        line = _Line(key, address, ContactLog(self._world.now))
        self._lines[key] = line
        self._poll(line)

    def forget(self, key: PodKey) -> None:
        line = self._lines.pop(key, None)
        if line is not None:
            line.is_open = False

    def contact(self, key: PodKey) -> Contact:
        line = self._lines.get(key)
        return NO_CONTACT if line is None else line.known.contact

    def believe(self, left: State) -> State | None:
        return left if left.epoch <= self._epoch else None

    def declare(self, key: PodKey, target: Target) -> None:
        self._leash.step(f"declare {key}")
        line = self._lines[key]
        before = line.known.contact.declared
        is_due = line.known.declare(target)
        if line.known.contact.declared is not before:
            self._world.witness.commands += 1
            self._world.note(
                f"[{self._epoch}] declares to {key}: {type(target).__name__}"
                f" {target.term} {getattr(target, 'leave', '')}"
            )
        if is_due:
            self._send(line, target)

    # --- declarations

    def _send(self, line: _Line, target: Target) -> None:
        if self._is_over(line) or not line.known.is_due(target):
            return
        sent = line.known.send()
        for _ in range(2 if self._is_odd() else 1):
            self._carry(lambda: self._arrive(line, target, sent))
        self._world.later(RESEND_SECONDS, 2 * RESEND_SECONDS, lambda: self._send(line, target))

    def _arrive(self, line: _Line, target: Target, sent: Ticket) -> None:
        """Deliver a target, even if its sender no longer leads."""
        pod = self._pod(line)
        if pod is None or pod.container is None:
            return
        container = pod.container
        refused = container.declare(target)
        if refused is None:
            state = container.state()
            self._carry(lambda: self._hear(line, state, sent))
        else:
            term = container.machine.term
            refusal = Refusal(
                refused, "no", container.incarnation, epoch=term.epoch, generation=term.generation
            )
            self._carry(lambda: self._object(line, target, refusal))

    def _object(self, line: _Line, target: Target, refusal: Refusal) -> None:
        if self._is_over(line):
            return
        line.known.refuse(target, refusal, self._world.now)
        if refusal.error is Refused.OTHER_INCARNATION:
            self._poll(line)
        self._wake()

    # --- questions

    def _poll(self, line: _Line) -> None:
        if self._is_over(line):
            return
        line.polls += 1
        number, asked = line.polls, line.known.ask()
        line.parked = None
        self._carry(lambda: self._ask(line, asked, number))
        self._expect_answer(line)

    def _expect_answer(self, line: _Line) -> None:
        number = line.polls

        def give_up() -> None:
            if number == line.polls and line.parked is None and not self._is_over(line):
                self._lose(line, "no answer")
                self._poll(line)

        self._world.later(2.0, 4.0, give_up)

    def _ask(self, line: _Line, asked: Ticket, number: int) -> None:
        pod = self._pod(line)
        if pod is None or pod.container is None or self._is_over(line) or number != line.polls:
            return
        known, container = line.known.contact.state, pod.container
        is_news = known is None or (known.incarnation, known.version) != (
            container.incarnation,
            container.version,
        )
        if not is_news and line.known.contact.reachable:
            line.parked = asked
            return
        self._answer(line, container.state(), asked)

    def _answer(self, line: _Line, state: State, asked: Ticket) -> None:
        number = line.polls

        def hear() -> None:
            self._hear(line, state, asked)
            if number == line.polls:
                self._poll(line)

        self._carry(hear)

    def _hear_of(self, pod: PlayedPod) -> None:
        """News of a pod answers a parked question, or closes its connection."""
        key = PodKey(pod.job, pod.node)
        line = self._lines.get(key)
        self._world.later(0.0, 0.1, self._wake)
        if line is None or line.parked is None or self._pod(line) is not pod:
            return
        asked, line.parked = line.parked, None
        if pod.node in self._world.silent:
            self._world.later(1.0, 3.0, lambda: self._poll(line))
        elif pod.container is None:
            self._lose(line, "the connection was closed")
            self._world.later(0.2, 1.0, lambda: self._poll(line))
        else:
            self._answer(line, pod.container.state(), asked)
            self._expect_answer(line)

    def notice_silence(self) -> None:
        """Let parked questions at a silent node time out."""
        for line in self._lines.values():
            if line.parked is not None and line.key.node in self._world.silent:
                self._world.later(1.0, 4.0, partial(self._poll, line))

    # --- answers

    def _hear(self, line: _Line, state: State, asked: Ticket) -> None:
        if self._is_over(line):
            return
        before = line.known.contact
        heard = line.known.hear(state, asked=asked, now=self._world.now)
        if heard is not Answer.NOTHING and line.known.contact.state is not None:
            self._learn(line.key, line.known.contact.state)
        if heard is Answer.UNCLEAR:
            self._poll(line)
        elif heard is Answer.MATERIAL or not before.reachable:
            self._wake()

    def _lose(self, line: _Line, why: str) -> None:
        line.known.lose(why, self._world.now)
        self._wake()

    # --- the network

    def _carry(self, arrive: Callable[[], None]) -> None:
        world = self._world
        if world.chance.random() < world.temper.loses:
            return
        if self._is_odd():
            world.later(*world.temper.dawdle_seconds, arrive)
        else:
            world.later(*world.temper.carry_seconds, arrive)

    def _is_odd(self) -> bool:
        return self._world.chance.random() < self._world.temper.dawdles

    def _pod(self, line: _Line) -> PlayedPod | None:
        if line.key.node in self._world.silent or line.key.node in self._world.lost_nodes:
            return None
        return self._world.pod_at(line.key, line.address)

    def _is_over(self, line: _Line) -> bool:
        return not line.is_open or self._leash.is_dead

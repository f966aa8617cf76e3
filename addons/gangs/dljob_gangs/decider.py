"""Decides about gangs, and keeps the state between two decisions.

Everything here runs on one event loop without an await, so that concurrent questions of
kube-scheduler are answered one after the other. Reservations are lost when the process ends, which
is harmless: the cluster shows the bound pods, and the rest is decided again.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dljob.kube.constraints.requirements import NodeTraits
from dljob.kube.names import Name
from dljob_gangs import deciding
from dljob_gangs.book import Book
from dljob_gangs.members import (
    Decision,
    GangName,
    Held,
    Member,
    Rules,
    Stage,
    Standing,
    State,
    Verdict,
)
from dljob_gangs.placing import Placing


@dataclass(frozen=True, slots=True)
class Admitted:
    """A pod may run on this node, and on no other."""

    node: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A pod may run nowhere yet."""

    why: str


class Since(NamedTuple):
    """A verdict, and the time since when it holds."""

    verdict: Verdict
    since: float


class Decider:
    """Answers kube-scheduler about one pod at a time, and decides again after changes."""

    def __init__(
        self, book: Book, rules: Rules, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.book = book
        self._rules = rules
        self._clock = clock
        self._decision = Decision(State(), {})
        self._decided_at: tuple[int, float] | None = None
        """The version of the book at the last decision, and the time of the next decision without a
        change.
        """
        self._feasible: dict[GangName, tuple[object, object, Placing]] = {}
        self.standings: dict[GangName, Since] = {}
        self.decisions = 0

    @property
    def held(self) -> Mapping[str, Held]:
        """The reservations by pod uid."""
        return self._decision.state.held

    @property
    def due(self) -> float:
        """The time of the next decision if nothing changes."""
        return self._decided_at[1] if self._decided_at is not None else self._clock()

    def update(self) -> None:
        """Decide again after a change, or when the time has come."""
        now = self._clock()
        if self._decided_at is not None:
            version, due = self._decided_at
            if version == self.book.version and now < due:
                return
        self._decide(now)

    def ask(self, name: Name, passed: list[str], *, tells_all: bool = True) -> Admitted | Refused:
        """Answer for a pod of a gang; kube-scheduler itself would pass these nodes.

        If ``tells_all`` is set, kube-scheduler has checked all nodes, so the other nodes are unfit.
        """
        wrong, member = self.book.wrong.get(name), self.book.members.get(name)
        if wrong is not None:
            return Refused(wrong.message)
        if member is None:
            return Refused("the pod has ended, or is being deleted")
        if tells_all and member.stage is Stage.PENDING:
            self._learn(member, passed)
        self.update()
        held = self.held.get(member.uid)
        if held is not None and held.node in passed:
            return Admitted(held.node)
        if held is not None:
            return Refused(
                f"room is kept for the pod on node {held.node}, which the scheduler does not let it use"
                " yet"
            )
        return Refused(self._decision.verdicts[member.gang].message)

    def _learn(self, member: Member, passed: list[str]) -> None:
        now, state = self._clock(), self._decision.state
        learnt = deciding.note_refusals(
            self.book.world(), state, member=member, passed=passed, now=now, rules=self._rules
        )
        if learnt.refusals != state.refusals:
            self._decision = self._decision._replace(state=learnt)
            self._decided_at = None

    def _decide(self, now: float) -> None:
        world = self.book.world()
        self.decisions += 1
        self._decision = deciding.decide(
            world, self._decision.state, now=now, rules=self._rules, feasibility=self._could_fit
        )
        self._decided_at = (self.book.version, self._next_deadline(now))
        for gang in self._feasible.keys() - world.gangs.keys():
            del self._feasible[gang]
        self.standings = {
            gang: self._since(gang, verdict, now=now)
            for gang, verdict in self._decision.verdicts.items()
        }

    def _since(self, gang: GangName, verdict: Verdict, *, now: float) -> Since:
        known = self.standings.get(gang)
        if known is not None and _is_said_alike(known.verdict, verdict):
            return known
        return Since(verdict, now)

    def _next_deadline(self, now: float) -> float:
        state = self._decision.state
        ends = [held.until for held in state.held.values()]
        ends += state.rests.values()
        ends += [refusal.until for refusal in state.refusals.values() if refusal.until > now]
        return min(ends, default=float("inf"))

    def _could_fit(
        self, members: tuple[Member, ...], machines: Mapping[str, NodeTraits]
    ) -> Placing:
        """Return whether a gang fits on empty nodes; the result is cached until the gang or the
        nodes change.
        """
        gang = members[0].gang if members else None
        known = self._feasible.get(gang) if gang is not None else None
        if known is not None and known[0] == members and known[1] is machines:
            return known[2]
        found = deciding.could_fit(members, machines)
        if gang is not None:
            self._feasible[gang] = (members, machines, found)
        return found


def _is_said_alike(one: Verdict, other: Verdict) -> bool:
    # The nodes of a reservation change with each pod that is bound, which Kubernetes reports.
    return one.standing is other.standing and (
        one.standing is Standing.RESERVED or one.message == other.message
    )

"""
Take turns where sizes are unknown and jobs outnumber GPUs: AFS's processor sharing.

:class:`TurnTaking` is what ``afs-p`` and ``afs-s`` have in common. Each job has a counter of the whole units of time that it was scheduled
for. "It allocates one GPU in the increasing order of the job counters in a non-preemptive manner
and evicts a job whenever it is executed for one unit of time" (AFS, section 3.3).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.model import JobState
from dljob.core.options import check, declare
from dljob.core.policies.common.ordering import Left, Line, fewest_needed
from dljob.core.queues import Block
from dljob_lab.policies.elastic.afs import places
from dljob_lab.policies.elastic.afs.sharing import Sharing, Terms

SLACK = 1e-9
"""By what share of a unit a turn may seem too short, because of how times are rounded."""

SHORTEST_S = 0.001
"""How soon a turn ends at the earliest, because of how times are rounded."""


class TurnState(NamedTuple):
    """The policy's memory from one decision to the next."""

    at: float
    scheduled: Mapping[int, float]
    """For how many seconds jobs had GPUs by then, by their place in the order of arrival."""


class Turn:
    """Finds the jobs whose turn it is at one decision."""

    def __init__(self, view: View, unit_s: float) -> None:
        self.view = view
        self.unit_s = unit_s
        old = view.state if isinstance(view.state, TurnState) else TurnState(view.now, {})
        passed = max(0.0, view.now - old.at)
        self.scheduled: dict[int, float] = {
            state.order: old.scheduled.get(state.order, 0.0) + passed
            for state in (*view.running, *view.beside)
        }
        self.evicted: set[int] = {
            state.order
            for state in view.running
            if self._units(old.scheduled.get(state.order, 0.0)) < self.units(state.order)
        }
        """Running jobs that have just had a unit of time."""
        self.waiting: list[JobState] = []
        """Jobs without GPUs that had some before."""
        for block in view.pending.blocks:
            # In a long queue most jobs had some GPUs before, and an event changes few blocks.
            there = block.ask(_by_order)
            for order in there.keys() & old.scheduled.keys():
                self.scheduled[order] = old.scheduled[order]
                self.waiting.append(there[order])

    @property
    def is_contended(self) -> bool:
        """Return whether not all jobs can have their least at once; only then counters matter."""
        needed = _add_leasts(self.view.running)
        needed += sum(block.ask(_add_leasts) for block in self.view.pending.blocks)
        return needed > self.view.cluster.total

    def units(self, order: int) -> int:
        """The counter of a job."""
        return self._units(self.scheduled.get(order, 0.0))

    def _units(self, seconds: float) -> int:
        return math.floor(seconds / self.unit_s + SLACK)

    def rank(self) -> Line:
        """Jobs that run and were not evicted first, then the others by their counters."""
        if not self.is_contended:
            return self._line_of_all
        return self._line

    def _line_of_all(self, left: Left) -> Iterator[JobState]:
        yield from self.view.running
        for state in self.view.pending:
            if state.least <= left.most:
                yield state

    def _line(self, left: Left) -> Iterator[JobState]:
        yield from (state for state in self.view.running if state.order not in self.evicted)
        if left.most == 0:
            return
        behind = [state for state in self.waiting if self.units(state.order) > 0]
        behind_orders = {state.order for state in behind}
        for block in self.view.pending.blocks:
            if block.ask(fewest_needed) <= left.most:
                yield from self._iter_new(block, behind_orders, left=left)
        # A job that runs comes before one that waits with the same counter: it need not restart.
        evicted = [state for state in self.view.running if state.order in self.evicted]
        fitting = [state for state in behind if state.least <= left.most]
        again = [(self.units(s.order), s.placement is None, s.order, s) for s in evicted + fitting]
        yield from (state for _, _, _, state in sorted(again, key=lambda entry: entry[:3]))

    def _iter_new(
        self, block: Block[JobState], behind: set[int], *, left: Left
    ) -> Iterator[JobState]:
        for state in block:
            if state.least <= left.most and state.order not in behind:
                yield state

    def remember(self, decision: Decision) -> Decision:
        """Return the decision with the memory of this policy, and when the next turn ends."""
        turns = TurnState(self.view.now, self.scheduled)
        if not self.is_contended:
            return replace(decision, state=turns)
        given = decision.shares.keys()
        started = self.view.pending.select(given).values()
        running = [state for state in self.view.running if state.id in given]
        ends = (
            (self.units(s.order) + 1) * self.unit_s - self.scheduled.get(s.order, 0.0)
            for s in (*running, *started)
        )
        wake_at = self.view.now + max(SHORTEST_S, min(ends, default=self.unit_s))
        return replace(decision, state=turns, wake_at=wake_at)


@dataclass(frozen=True, slots=True)
class TurnTaking(ABC):
    """Jobs take turns while they outnumber the GPUs; else each further GPU goes by the terms of the policy."""

    breaks: ClassVar[frozenset[Law]] = frozenset()

    unit_s: float = declare(7200.0, at_least=1.0)
    """How long a turn is while jobs outnumber GPUs; the paper's 2 h."""
    packing: bool = True
    """True if shares are factors or multiples of a machine's GPUs; it means nothing on one machine."""

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def open_sharing(self, view: View) -> Sharing:
        """Begin to share, with the speeds that the policy supposes."""

    @abstractmethod
    def make_terms(self, view: View) -> Terms:
        """Return the terms by which each further GPU is given."""

    def allocate(self, view: View) -> Decision:
        taking = Turn(view, self.unit_s)
        line = taking.rank()
        sharing = self.open_sharing(view)
        sharing.admit(line)
        sharing.hand_out(self.make_terms(view))
        sharing.regulate()
        return taking.remember(places.settle(sharing, line))


def _by_order(states: tuple[JobState, ...]) -> dict[int, JobState]:
    return {state.order: state for state in states}


def _add_leasts(states: tuple[JobState, ...]) -> int:
    return sum(state.least for state in states)

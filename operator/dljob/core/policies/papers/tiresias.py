"""Tiresias-L: least attained service first, in a few queues."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import ClassVar, NamedTuple

from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import JobId, JobState
from dljob.core.options import check, declare
from dljob.core.policies.common import ordering

_order = attrgetter("order")


class Entry(NamedTuple):
    """A job in a queue, identified by its place in the order of arrival, which never changes."""

    order: int
    least: int
    """The fewest GPUs that it can run on."""


class Queue(NamedTuple):
    """A queue: those that run, then those that wait."""

    running: tuple[Entry, ...] = ()
    waiting: tuple[Entry, ...] = ()


class Queues(NamedTuple):
    """The policy's memory from one decision to the next."""

    levels: tuple[Queue, ...]
    pending: tuple[int, ...]
    """The jobs that it left without GPUs, by which it sees that nothing happened but arrivals."""


@dataclass(frozen=True, slots=True)
class Tiresias:
    """
    Jobs that had the fewest GPU-seconds so far come first; nothing is known of how long they take.

    Tiresias (Gu et al., NSDI '19), section 3.3: attained service is cut into a few queues, served
    in turn; within one, jobs come in order and who does not fit is skipped. A job that has
    attained the threshold of its queue goes to the end of the next.

    The paper leaves open what its authors' simulator does, and so does this policy, because the
    published figures were made with it: within a queue those that run come before those that wait,
    so that no job loses its GPUs to one of its own queue unless it does not fit any more behind one
    that runs; a job that is stopped waits before those that waited already. A look is taken at
    every decision, and once more when a running job is thought to cross its threshold. For a job
    with several GPUs that look comes late, because its seconds of training are taken for
    GPU-seconds there; with ``exact`` it comes in time. Promotion of starved jobs is off, as in the
    paper's evaluation.
    """

    name: ClassVar[str] = "tiresias"
    paper: ClassVar[str] = "Tiresias (NSDI '19) 3.3 (Tiresias-L)"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    thresholds: tuple[float, ...] = declare((3250.0, 7200.0), above=0.0)
    """Where one queue ends and the next begins, in GPU-seconds attained."""
    exact: bool = False
    """True if to look when a job really crosses a threshold, and not when published figures do."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        line = _Line(view, self.thresholds)
        decision = ordering.preempt(view, line.offer)
        queues = line.settle(decision.shares)
        looks = [
            (bound - attained) / gpus if self.exact else (bound - attained / gpus) // gpus
            for bound, queue in zip(self.thresholds, queues.levels, strict=False)
            for attained, gpus in line.iter_attained(queue.running, decision.shares)
        ]
        # Never at once again, regardless of rounding.
        wake_at = view.now + max(1.0, min(looks)) if looks else None
        return replace(decision, wake_at=wake_at, state=queues)


def _list_orders(states: Iterable[JobState]) -> tuple[int, ...]:
    return tuple(map(_order, states))


class _Line:
    """All jobs in the order of the queues, at one decision."""

    def __init__(self, view: View, thresholds: Sequence[float]) -> None:
        self.view = view
        self.running = {state.order: state for state in view.running}
        self.beside = {state.order for state in view.beside}
        """Jobs that keep their GPUs in any case: they keep their places in the queues as well."""
        blocks = [block.ask(_list_orders) for block in view.pending.blocks]
        self.pending = tuple(chain.from_iterable(blocks))
        self.levels = [_Level() for _ in range(len(thresholds) + 1)]
        self.offered: dict[int, tuple[_Level, Entry]] = {}
        """The jobs that waited in their queue and were asked for, in order."""
        old = view.state
        if not isinstance(old, Queues) or len(old.levels) != len(self.levels):
            old = Queues(tuple(Queue() for _ in self.levels), ())
        for state in self._recall(old):
            level = self.levels[bisect_right(thresholds, state.service_at(view.now))]
            part = level.waiting if state.placement is None else level.running
            part.append(Entry(state.order, state.least))
        self._demote(thresholds)

    def find(self, entry: Entry) -> JobState:
        """The present state of the job."""
        return self.running.get(entry.order) or self.view.pending.find(entry.order)

    def _recall(self, old: Queues) -> Sequence[JobState]:
        """Go on from the old queues, and return the jobs that are not in them."""
        before = {entry.order for queue in old.levels for entry in queue.running}
        arrived = self.pending[len(old.pending) :]
        there = self.running.keys() | self.beside
        expected = (
            self.pending[: len(old.pending)] == old.pending
            and there <= before
            and before.isdisjoint(arrived)
        )
        for level, queue in zip(self.levels, old.levels, strict=True):
            level.running = [entry for entry in queue.running if entry.order in there]
            level.waiting = list(queue.waiting)
        if expected:
            # The usual case, without a pass over the thousands of waiting jobs.
            return [self.view.pending.find(order) for order in arrived]
        return self._reconcile(old)

    def _reconcile(self, old: Queues) -> Sequence[JobState]:
        """Heed that jobs were taken away, or came back, without our doing."""
        pending = set(self.pending)
        present = pending | self.running.keys() | self.beside
        known: set[int] = set()
        for level, queue in zip(self.levels, old.levels, strict=True):
            stopped = [entry for entry in queue.running if entry.order in pending]
            level.waiting = stopped + [entry for entry in queue.waiting if entry.order in present]
            known.update(entry.order for entry in level.running + level.waiting)
        states = (*self.view.running, *self.view.pending)
        return sorted((state for state in states if state.order not in known), key=_order)

    def _demote(self, thresholds: Sequence[float]) -> None:
        """Move those that have attained the threshold of their queue to the end of the next."""
        now = self.view.now
        # From below, so that no job falls through two queues in one decision.
        for index, bound in reversed(list(enumerate(thresholds))):
            level = self.levels[index]
            due = [
                entry
                for entry in self._shown(level.running)
                if self.running[entry.order].service_at(now) >= bound
            ]
            if due:
                level.running = [entry for entry in level.running if entry not in due]
                self.levels[index + 1].waiting.extend(sorted(due))

    def _shown(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Leave out the jobs that this decision is not about."""
        return (entry for entry in entries if entry.order not in self.beside)

    def offer(self, left: ordering.Left) -> Iterator[JobState]:
        """All jobs in order, but for those that need more than is left."""
        for level in self.levels:
            for entry in self._shown(level.running):
                yield self.running[entry.order]
            for entry in self._shown(level.waiting):
                if entry.least <= left.most or entry.order in self.running:
                    self.offered[entry.order] = level, entry
                    yield self.find(entry)

    def settle(self, shares: Mapping[JobId, Share]) -> Queues:
        """Put those that have GPUs from now on before the others of their queue."""
        for level in self.levels:
            stopped = [
                entry
                for entry in self._shown(level.running)
                if self.running[entry.order].id not in shares
            ]
            if stopped:
                level.running = [entry for entry in level.running if entry not in stopped]
                level.waiting[:0] = stopped
        for level, entry in self.offered.values():
            if self.find(entry).id in shares:
                level.waiting.remove(entry)
                level.running.append(entry)
        pending = list(self.pending)
        for state in self.view.running:
            if state.id not in shares:
                insort(pending, state.order)
        for _, entry in self.offered.values():
            if entry.order not in self.running and self.find(entry).id in shares:
                del pending[bisect_left(pending, entry.order)]
        levels = (Queue(tuple(level.running), tuple(level.waiting)) for level in self.levels)
        return Queues(tuple(levels), tuple(pending))

    def iter_attained(
        self, entries: Iterable[Entry], shares: Mapping[JobId, Share]
    ) -> Iterator[tuple[float, int]]:
        """Return how many GPU-seconds these jobs have had, and how many GPUs they have from now on."""
        for entry in self._shown(entries):
            state = self.find(entry)
            yield state.service_at(self.view.now), shares[state.id].gpus


class _Level:
    """A queue while it is worked on."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running: list[Entry] = []
        self.waiting: list[Entry] = []

"""
Jobs in order of arrival, as a value that costs little to change and caches results.

Thousands of jobs may wait while a decision concerns three. A :class:`Queue` keeps them in blocks;
the queue of the next instant shares all blocks with the one before it but those that changed, and
results that were once computed from a block – whether all its jobs have the same reason for waiting, the
fewest GPUs that any of them needs – stay with the block. So a decision looks at blocks, not jobs.

The builders of snapshots keep such queues; the core and its policies only read them, as sequences
of jobs.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Protocol, TypeVar, overload

T = TypeVar("T")
S = TypeVar("S", bound="Ordered")
Name = TypeVar("Name", bound=str)

BLOCK_SIZE = 64
"""A block is split when it has twice as many; small enough to be rebuilt at every event."""

FEW = 16
"""Up to this many jobs are searched block by block; for more, one pass over all is cheaper."""


class Ordered(Protocol):
    """The properties of a job that a queue needs."""

    @property
    def order(self) -> int:
        """Its place in the order of arrival."""

    @property
    def id(self) -> str:
        """Its name."""


_first = attrgetter("first")
_order = attrgetter("order")


class Block(Sequence[S]):
    """A few jobs in a row. Never changes."""

    __slots__ = ("__weakref__", "_known", "first", "states")

    def __init__(self, states: tuple[S, ...]) -> None:
        self.states = states
        self.first = states[0].order
        self._known: dict[Callable[[tuple[S, ...]], object], object] = {}

    def ask(self, question: Callable[[tuple[S, ...]], T]) -> T:
        """Answer a question about the block's jobs that has one answer for ever; ask it once."""
        known = self._known
        if question not in known:
            known[question] = question(self.states)
        return known[question]  # type: ignore[return-value]

    def __iter__(self) -> Iterator[S]:
        return iter(self.states)

    def __len__(self) -> int:
        return len(self.states)

    @overload
    def __getitem__(self, index: int) -> S: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[S, ...]: ...
    def __getitem__(self, index: int | slice) -> S | tuple[S, ...]:
        return self.states[index]


def _names(states: tuple[Ordered, ...]) -> frozenset[str]:
    return frozenset(state.id for state in states)


class Queue(Sequence[S]):
    """Jobs in order of arrival."""

    __slots__ = ("_all", "_length", "blocks")

    def __init__(self, blocks: tuple[Block[S], ...] = ()) -> None:
        self.blocks = blocks
        self._length = sum(len(block.states) for block in blocks)
        self._all: tuple[S, ...] | None = None

    @classmethod
    def of(cls, states: Iterable[S]) -> "Queue[S]":
        """Build a queue of jobs in any order."""
        ordered = tuple(sorted(states, key=_order))
        starts = range(0, len(ordered), BLOCK_SIZE)
        return cls(tuple(Block(ordered[start : start + BLOCK_SIZE]) for start in starts))

    def put(self, state: S) -> "Queue[S]":
        """The queue with this job in its place; the job's older state is replaced."""
        if not self.blocks:
            return Queue((Block((state,)),))
        at = max(0, bisect_right(self.blocks, state.order, key=_first) - 1)
        states = self.blocks[at].states
        place = bisect_right(states, state.order, key=_order)
        there = place > 0 and states[place - 1].order == state.order
        if there and states[place - 1].id != state.id:
            raise ValueError(f"{state.id} has the place of {states[place - 1].id} in the queue")
        changed = (*states[: place - there], state, *states[place:])
        if len(changed) < 2 * BLOCK_SIZE:
            return self._replace(at, (Block(changed),))
        half = len(changed) // 2
        return self._replace(at, (Block(changed[:half]), Block(changed[half:])))

    def drop(self, state: S) -> "Queue[S]":
        """The queue without this job, which must be in it."""
        at = bisect_right(self.blocks, state.order, key=_first) - 1
        states = self.blocks[at].states
        place = bisect_right(states, state.order, key=_order) - 1
        if place < 0 or states[place].order != state.order:
            raise ValueError(f"{state.id} is not in the queue")
        left = (*states[:place], *states[place + 1 :])
        return self._replace(at, (Block(left),) if left else ())

    def _replace(self, at: int, blocks: tuple[Block[S], ...]) -> "Queue[S]":
        return Queue((*self.blocks[:at], *blocks, *self.blocks[at + 1 :]))

    def find(self, order: int) -> S:
        """The job at that place in the order of arrival, which must be in the queue."""
        states = self.blocks[bisect_right(self.blocks, order, key=_first) - 1].states
        return states[bisect_right(states, order, key=_order) - 1]

    def select(self, names: Collection[Name]) -> dict[Name, S]:
        """The named jobs that are in the queue, in its order."""
        if not names:
            return {}
        blocks: Iterable[Block[S]] = self.blocks
        if len(names) <= FEW:
            blocks = [b for b in blocks if not b.ask(_names).isdisjoint(names)]
        return {state.id: state for b in blocks for state in b if state.id in names}  # type: ignore[misc]

    def __iter__(self) -> Iterator[S]:
        return chain.from_iterable(block.states for block in self.blocks)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> S: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[S, ...]: ...
    def __getitem__(self, index: int | slice) -> S | tuple[S, ...]:
        if self._all is None:
            self._all = tuple(self)
        return self._all[index]

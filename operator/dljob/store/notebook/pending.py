"""The writes that are queued for the store, bounded and in order.

If the queue is full, the oldest rows of the record are dropped first, because no decision depends
on them, then the oldest observations, because later ones are better. For the tables only the latest
state is queued.

Not thread-safe; the notebook holds a lock.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dljob.core.profiles import JobType, Observation
from dljob.store.rows import RecordRow
from dljob.store.store import Ticket
from dljob.store.tables import GpuRow, JobRow


@dataclass(frozen=True, slots=True)
class Fold:
    kind: JobType
    observations: tuple[Observation, ...]
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Record:
    rows: tuple[RecordRow, ...]


@dataclass(frozen=True, slots=True)
class ShowGpus:
    rows: tuple[GpuRow, ...]


@dataclass(frozen=True, slots=True)
class ShowJobs:
    rows: tuple[JobRow, ...]


@dataclass(frozen=True, slots=True)
class KeepState:
    """The state of a policy, as JSON."""

    policy: str
    state: object


Write = Fold | Record | ShowGpus | ShowJobs | KeepState


class Dropped(NamedTuple):
    """Counts of dropped writes."""

    entries: int = 0
    observations: int = 0


class _Numbered(NamedTuple):
    number: int
    observation: Observation


class PendingWrites:
    """The queued writes and the write in progress."""

    def __init__(self, *, writer: str, most: int, most_at_once: int) -> None:
        self._writer = writer
        self._most = most
        self._most_at_once = most_at_once
        self._numbered = 0
        self._tickets = 0
        self._observations: dict[JobType, deque[_Numbered]] = {}
        self._rows: deque[RecordRow] = deque()
        self._latest: dict[type[Write], Write] = {}
        """The tables and the policy state, for which only the latest version is written."""
        self._turn = 0
        self.under_way: Write | None = None
        self._repeated: Ticket | None = None
        """The ticket of the write in progress, set after its first attempt."""
        self.dropped = Dropped()

    # --- coming in

    def observe(self, kind: JobType, observation: Observation) -> None:
        self._numbered += 1
        line = self._observations.setdefault(kind, deque())
        line.append(_Numbered(self._numbered, observation))
        self._make_room()

    def record(self, rows: Sequence[RecordRow]) -> None:
        self._rows.extend(rows)
        self._make_room()

    def show_gpus(self, rows: tuple[GpuRow, ...]) -> None:
        self._latest[ShowGpus] = ShowGpus(rows)

    def show_jobs(self, rows: tuple[JobRow, ...]) -> None:
        self._latest[ShowJobs] = ShowJobs(rows)

    def keep_state(self, policy: str, state: object) -> None:
        self._latest[KeepState] = KeepState(policy, state)

    def _make_room(self) -> None:
        while len(self) > self._most:
            if self._rows:
                self._rows.popleft()
                self.dropped = self.dropped._replace(entries=self.dropped.entries + 1)
            elif self._observations:
                self._pop_observations(self._oldest(), 1)
                observations = self.dropped.observations + 1
                self.dropped = self.dropped._replace(observations=observations)
            else:
                return

    def _oldest(self) -> JobType:
        return min(self._observations, key=lambda kind: self._observations[kind][0].number)

    def _pop_observations(self, kind: JobType, most: int) -> tuple[Observation, ...]:
        line = self._observations[kind]
        popped = tuple(line.popleft().observation for _ in range(min(most, len(line))))
        if not line:
            del self._observations[kind]
        return popped

    # --- going out

    def take(self) -> Write | None:
        """Take the next write, alternating between kinds; ``None`` if the queue is empty."""
        assert self.under_way is None
        takers: tuple[Callable[[], Write | None], ...] = (
            self._take_fold,
            self._take_record,
            *(partial(self._latest.pop, kind, None) for kind in (ShowGpus, ShowJobs, KeepState)),
        )
        for _ in takers:
            take = takers[self._turn % len(takers)]
            self._turn += 1
            self.under_way = take()
            if self.under_way is not None:
                break
        return self.under_way

    def _take_fold(self) -> Fold | None:
        if not self._observations:
            return None
        kind = self._oldest()
        self._tickets += 1
        observations = self._pop_observations(kind, self._most_at_once)
        return Fold(kind, observations, Ticket(self._writer, self._tickets))

    def _take_record(self) -> Record | None:
        count = min(self._most_at_once, len(self._rows))
        return Record(tuple(self._rows.popleft() for _ in range(count))) if count else None

    def next_ticket(self, write: Fold, revision: int) -> Ticket:
        """Return the ticket for the next attempt; a retry keeps the ``revision`` of the first
        attempt.
        """
        ticket = self._repeated or write.ticket
        self._repeated = ticket.tried(revision)
        return ticket

    def finish(self) -> None:
        self.under_way = self._repeated = None

    def give_up(self) -> None:
        """Drop the write in progress."""
        lost = _count(self.under_way)
        self.dropped = Dropped(*map(sum, zip(self.dropped, lost, strict=True)))
        self.under_way = self._repeated = None

    # --- looking at it

    def waiting(self, kind: JobType) -> tuple[Observation, ...]:
        """Return the queued observations of a type, without those in progress."""
        return tuple(each.observation for each in self._observations.get(kind, ()))

    def count_waiting(self, kind: JobType) -> int:
        return len(self._observations.get(kind, ()))

    @property
    def is_empty(self) -> bool:
        return not (self.under_way or self._observations or self._rows or self._latest)

    def __len__(self) -> int:
        """Return the number of queued observations and entries, including those in progress."""
        waiting = len(self._rows) + sum(map(len, self._observations.values()))
        return waiting + sum(_count(self.under_way))


def _count(write: Write | None) -> Dropped:
    """Count the entries and observations of a write."""
    match write:
        case Fold():
            return Dropped(0, len(write.observations))
        case Record():
            return Dropped(len(write.rows))
        case _:
            # The next state replaces this one.
            return Dropped()

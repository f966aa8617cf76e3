"""
The writes that wait for the store: bounded, in order, and never twice.

:mod:`dlstore.notebook.notebook` fills it from the loop and empties it into a store. When it is full, the
oldest rows of the timeline and entries of the history go first, because nothing is decided by them, and then the oldest
observations, because later ones say the same and better. Of the tables only the latest state waits.

Not guarded against threads; the notebook is.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dlcore.profiles import JobType, Observation
from dlstore.history import HistoryEntry
from dlstore.store import Ticket
from dlstore.tables import GpuRow, JobRow, TimelineRow


@dataclass(frozen=True, slots=True)
class Fold:
    """Observations to fold into the profile of a type."""

    kind: JobType
    observations: tuple[Observation, ...]
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Record:
    """Entries for the history."""

    entries: tuple[HistoryEntry, ...]


@dataclass(frozen=True, slots=True)
class AddTimeline:
    rows: tuple[TimelineRow, ...]


@dataclass(frozen=True, slots=True)
class ShowGpus:
    rows: tuple[GpuRow, ...]


@dataclass(frozen=True, slots=True)
class ShowJobs:
    rows: tuple[JobRow, ...]


@dataclass(frozen=True, slots=True)
class KeepState:
    """The state of a policy, as a value that JSON can hold."""

    policy: str
    state: object


Write = Fold | Record | AddTimeline | ShowGpus | ShowJobs | KeepState


class Dropped(NamedTuple):
    """How much was given up for want of room, or because no store can hold it."""

    entries: int = 0
    observations: int = 0


class _Numbered(NamedTuple):
    number: int
    observation: Observation


class PendingWrites:
    """Everything that is to be written, taken out in pieces, of which one is under way."""

    def __init__(self, *, writer: str, most: int, most_at_once: int) -> None:
        self._writer = writer
        self._most = most
        self._most_at_once = most_at_once
        self._numbered = 0
        self._tickets = 0
        self._observations: dict[JobType, deque[_Numbered]] = {}
        self._entries: deque[HistoryEntry] = deque()
        self._timeline: deque[TimelineRow] = deque()
        self._latest: dict[type[Write], Write] = {}
        """The tables and the state of the policy, of which only the latest is worth a write."""
        self._turn = 0
        self.under_way: Write | None = None
        """The write that was taken and is not finished yet."""
        self._repeated: Ticket | None = None
        """The ticket of the change that is under way, once it was tried."""
        self.dropped = Dropped()

    # --- coming in

    def observe(self, kind: JobType, observation: Observation) -> None:
        self._numbered += 1
        line = self._observations.setdefault(kind, deque())
        line.append(_Numbered(self._numbered, observation))
        self._make_room()

    def record(self, entries: Sequence[HistoryEntry]) -> None:
        self._entries.extend(entries)
        self._make_room()

    def add_timeline(self, rows: Sequence[TimelineRow]) -> None:
        self._timeline.extend(rows)
        self._make_room()

    def show_gpus(self, rows: tuple[GpuRow, ...]) -> None:
        self._latest[ShowGpus] = ShowGpus(rows)

    def show_jobs(self, rows: tuple[JobRow, ...]) -> None:
        self._latest[ShowJobs] = ShowJobs(rows)

    def keep_state(self, policy: str, state: object) -> None:
        self._latest[KeepState] = KeepState(policy, state)

    def _make_room(self) -> None:
        while len(self) > self._most:
            # The timeline is the least loss, because people read the history first.
            if entries := self._timeline or self._entries:
                entries.popleft()
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
        """Take the next piece, each kind in its turn; ``None`` if there is nothing to write."""
        assert self.under_way is None
        takers: tuple[Callable[[], Write | None], ...] = (
            self._take_fold,
            self._take_record,
            self._take_timeline,
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
        count = min(self._most_at_once, len(self._entries))
        return Record(tuple(self._entries.popleft() for _ in range(count))) if count else None

    def _take_timeline(self) -> AddTimeline | None:
        count = min(self._most_at_once, len(self._timeline))
        rows = tuple(self._timeline.popleft() for _ in range(count))
        return AddTimeline(rows) if rows else None

    def next_ticket(self, write: Fold, revision: int) -> Ticket:
        """Return the ticket for one more try; that of a repeat says which ``revision`` the first try knew."""
        ticket = self._repeated or write.ticket
        self._repeated = ticket.tried(revision)
        return ticket

    def finish(self) -> None:
        """Note that the write under way has succeeded."""
        self.under_way = self._repeated = None

    def give_up(self) -> None:
        """Drop the write under way, and count its loss."""
        lost = _count(self.under_way)
        self.dropped = Dropped(*map(sum, zip(self.dropped, lost, strict=True)))
        self.under_way = self._repeated = None

    # --- looking at it

    def waiting(self, kind: JobType) -> tuple[Observation, ...]:
        """The observations of a type that the store does not have, but for those under way."""
        return tuple(each.observation for each in self._observations.get(kind, ()))

    def count_waiting(self, kind: JobType) -> int:
        return len(self._observations.get(kind, ()))

    @property
    def is_empty(self) -> bool:
        return not (
            self.under_way or self._observations or self._entries or self._timeline or self._latest
        )

    def __len__(self) -> int:
        """How many observations and entries wait, those under way included."""
        waiting = len(self._entries) + len(self._timeline)
        waiting += sum(map(len, self._observations.values()))
        return waiting + sum(_count(self.under_way))


def _count(write: Write | None) -> Dropped:
    """Count the entries and observations that would be lost with a write."""
    match write:
        case Fold():
            return Dropped(0, len(write.observations))
        case Record():
            return Dropped(len(write.entries))
        case AddTimeline():
            return Dropped(len(write.rows))
        case _:
            # The next one says the same and more, so that nothing is lost with it.
            return Dropped()

"""
The notebook in front of a store, so that the loop never waits for the store.

The loop reads profiles from memory and hands writes over. A thread carries them to the store in batches, and reads the
changes of other processes. While the store is unavailable (the server is away, another program locks the file, the disk
is full), scheduling goes on: an observation counts at once, writes wait up to a bound, and the thread tries again at
growing intervals.
"""

import json
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from statistics import median
from threading import Condition, Thread
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

from dljob.core.model import JobId
from dljob.core.primitives.backoff import wait_after
from dljob.core.profiles import Costs, CostSeen, CostTerm, JobType, Observation, Profile, fold
from dljob.store.rows import RecordRow
from dljob.store.store import (
    FREE,
    Store,
    StoredProfile,
    StoreError,
    StoreUnusableError,
    Ticket,
    fold_all,
    fold_into,
)
from dljob.store.tables import GpuRow, JobRow

log = logging.getLogger(__name__)

KNOWN_SECONDS: Final = 2.0
"""How long a controller waits for the contents of the store before it begins without them."""
LONG_SECONDS = 1.0
"""A failure that takes longer is reported at once; a single shorter one, such as a failover, is not."""
MOST_AT_ONCE: Final = 256
"""The most observations, and the most rows, between two reads of other processes' changes."""
MOST_RECENT: Final = 1000
"""The rows in memory, of the history and of the rest, which readers get while the store is unavailable."""

ENDED: Final = JobType.of_one_job("")
"""Has the costs of jobs that have ended and had a type of their own; no job has an empty name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookSettings:
    most_waiting: int = 10_000
    """The most observations and rows that wait for the store; more are dropped."""
    first_retry_seconds: float = 0.2
    longest_retry_seconds: float = 15.0
    """The longest retry delay; the delay doubles up to this, less a random part."""
    refresh_seconds: float = 30.0
    """The time between two reads of other processes' changes."""


class Dropped(NamedTuple):
    """Counts of dropped writes."""

    entries: int = 0
    observations: int = 0


class NotebookState(NamedTuple):
    connected: bool
    waiting: int
    dropped: Dropped
    failures: int
    """The number of failed operations."""
    error: str
    """Why the store is unavailable, without secrets; empty while the store answers."""


class _Task(NamedTuple):
    """An operation of the store, which the thread repeats until it succeeds."""

    do: Callable[[], None]
    entries: int = 0
    observations: int = 0


@dataclass(slots=True)
class _Health:
    is_there: bool = False
    failures: int = 0
    error: str = ""
    away_since: float | None = None
    """When an outage was reported, until its end."""
    dropped_before: int = 0


class Notebook:
    """
    Profiles, history and tables, which the loop reads and writes without waiting.

    Every method may be called from any thread. Only :meth:`open`, :meth:`flush`, :meth:`close`, :meth:`history` and
    :meth:`rows` take time.
    """

    def __init__(
        self,
        store: Store,
        *,
        defaults: Costs = FREE,
        settings: NotebookSettings = NotebookSettings(),
    ) -> None:
        """``defaults`` are the costs until measured ones are known."""
        self._store = store
        self._defaults = defaults
        self._settings = settings
        self._changed = Condition()
        """The lock of all below, which is never held during an operation of the store."""
        self._profiles: dict[JobType, Profile] = {}
        self._view: Mapping[JobType, Profile] | None = None
        self._revisions: dict[JobType, int] = {}
        """The known revisions of the store. Only the thread changes them."""
        self._policy_states: Mapping[str, str] | None = None
        """The states of policies at the start, as JSON; ``None`` until the store was read."""
        self._history: deque[RecordRow] = deque(maxlen=MOST_RECENT)
        self._others: deque[RecordRow] = deque(maxlen=MOST_RECENT)
        # Writes that wait for the store.
        self._observations: deque[tuple[JobType, Observation]] = deque()
        self._rows: deque[RecordRow] = deque()
        self._latest: dict[str, Callable[[], None]] = {}
        """The writes of tables and of the states of policies, of which only the latest counts."""
        self._shown: dict[str, tuple[object, ...]] = {}
        self._under_way: deque[_Task] = deque()
        self._tickets = map(partial(Ticket, uuid4().hex), count(1))
        self._dropped = Dropped()
        self._health = _Health()
        self._refresh_at = time.monotonic()
        self._end_at: float | None = None
        # A daemon, so that an operation that hangs does not delay the end of the process.
        self._thread = Thread(target=self._run, name="notebook", daemon=True)

    def open(self, *, wait_seconds: float = KNOWN_SECONDS) -> Self:
        """Start the thread, and wait at most ``wait_seconds`` for the contents of the store."""
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._policy_states is not None, wait_seconds)
        return self

    def flush(self, limit_seconds: float) -> bool:
        """Wait up to the limit until everything is written; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._has_writes, limit_seconds)

    def close(self, limit_seconds: float) -> int:
        """Write what waits up to the limit, and end; return the number of writes that were lost."""
        with self._changing():
            self._end_at = time.monotonic() + limit_seconds
        if self._thread.ident is None:
            self._store.close()
        else:
            self._thread.join(limit_seconds)
        return self.state().waiting

    def state(self) -> NotebookState:
        with self._changed:
            return NotebookState(
                connected=self._health.is_there,
                waiting=self._waiting,
                dropped=self._dropped,
                failures=self._health.failures,
                error=self._health.error,
            )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock, drop what is too much, then wake threads that wait."""
        with self._changed:
            yield
            # No decision depends on rows, and later observations are better.
            while self._waiting > self._settings.most_waiting and (
                self._rows or self._observations
            ):
                lost = Dropped(entries=1) if self._rows else Dropped(observations=1)
                self._drop(lost)
                (self._rows or self._observations).popleft()
            self._changed.notify_all()

    def _drop(self, lost: Dropped) -> None:
        entries, observations = self._dropped
        self._dropped = Dropped(entries + lost.entries, observations + lost.observations)

    @property
    def _waiting(self) -> int:
        under_way = sum(task.entries + task.observations for task in self._under_way)
        return len(self._rows) + len(self._observations) + under_way

    @property
    def _has_writes(self) -> bool:
        return bool(self._under_way or self._rows or self._observations or self._latest)

    # --- profiles

    def profiles(self) -> Mapping[JobType, Profile]:
        """Return all known profiles; a new mapping after each change."""
        with self._changed:
            if self._view is None:
                self._view = dict(self._profiles)
            return self._view

    def observe(self, kind: JobType, observations: Iterable[Observation]) -> None:
        """Learn from observations at once, and write them unless the type is of one job."""
        if not kind.model:
            raise ValueError("jobs without a model have no profile to share")
        with self._changing():
            for observation in observations:
                if self._learn(kind, observation) and not kind.is_of_one_job:
                    self._observations.append((kind, observation))

    def adopt(self, profiles: Iterable[Profile]) -> None:
        """Take over in memory what a former controller knew of unknown types."""
        with self._changed:
            for profile in profiles:
                if profile.type not in self._profiles:
                    self._know(profile)

    def forget(self, kind: JobType) -> None:
        """Forget the type of one job, which has ended, except the costs of its changes, from which the usual ones follow."""
        assert kind.is_of_one_job, kind
        with self._changed:
            known = self._profiles.pop(kind, None)
            self._view = None
            for term, samples in known.cost_samples.items() if known is not None else ():
                self._learn(ENDED, CostSeen(CostTerm(term), median(samples)))

    def _learn(self, kind: JobType, observation: Observation) -> bool:
        """Fold in an observation; return whether the profile changed."""
        known = self._profiles.get(kind) or Profile(kind)
        folded = fold(known, observation, defaults=self._defaults)
        if folded is not known:
            self._know(folded)
        return folded is not known

    def _know(self, profile: Profile) -> None:
        self._profiles[profile.type] = profile
        self._view = None

    def _take_over(self, kind: JobType, stored: Profile | None) -> None:
        """Know of a type what the store has and what waits for the store."""
        base, known = stored or Profile(kind), self._profiles.get(kind)
        waiting = [seen for each, seen in self._observations if each == kind]
        current = fold_all(base, waiting, defaults=self._defaults)
        if stored is None and current is base:
            self._profiles.pop(kind, None)
            self._view = None
        elif known is None or not known.says_the_same_as(current):
            # Else the same object stays, because predictions are cached by identity.
            self._know(current)

    # --- the record

    def record(self, rows: Sequence[RecordRow]) -> None:
        """Record rows; a row with a known id replaces the former row."""
        if not rows:
            return
        with self._changing():
            self._rows.extend(rows)
            for row in rows:
                (self._history if row.is_history else self._others).append(row)

    def history(self, job: JobId | None = None, *, limit: int = 100) -> tuple[RecordRow, ...]:
        """
        Read the latest entries about a job, or all jobs, newest first.

        This asks the store, so it is not for the loop. Without the store it returns only the entries of this process.
        """
        stored: tuple[RecordRow, ...] = ()
        if self._health.is_there:
            try:
                stored = self._store.history(job, limit=limit)
            except StoreError as error:
                log.debug("the history is read from memory: %s", error)
        with self._changed:
            recent = [row for row in self._history if job in (None, row.job)]
        return tuple(reversed(_ordered(stored, recent)))[:limit]

    def rows(self) -> tuple[RecordRow, ...]:
        """Read the whole record from the store, oldest first. Slow, so not for the loop."""
        stored = self._store.rows()
        with self._changed:
            recent = (*self._others, *self._history)
        return tuple(_ordered(stored, recent))

    # --- what only counts in its latest form

    def show_gpus(self, rows: Sequence[GpuRow]) -> None:
        """Replace the table of GPUs."""
        self._show("gpus", tuple(rows), self._store.replace_gpus)

    def show_jobs(self, rows: Sequence[JobRow]) -> None:
        """Replace the table of jobs."""
        self._show("jobs", tuple(rows), self._store.replace_jobs)

    def _show(self, table: str, rows: tuple[object, ...], replace: Callable[[Any], None]) -> None:
        with self._changing():
            if self._shown.get(table) != rows:
                self._shown[table] = rows
                self._latest[table] = partial(replace, rows)

    def keep_policy_state(self, policy: str, state: object) -> None:
        """Write the state of a policy if the state is a dict.

        A dict holds only JSON and is never changed in place. Any other state stays in memory only.
        """
        if isinstance(state, dict):
            with self._changing():
                self._latest[f"policy {policy}"] = lambda: self._store.keep_policy_state(
                    policy, json.dumps(state)
                )

    def policy_state(self, policy: str) -> object:
        """Return the stored state of a policy from the start of this process; ``None`` if there was none."""
        with self._changed:
            document = (self._policy_states or {}).get(policy)
        try:
            return json.loads(document) if document is not None else None
        except ValueError:
            log.warning(
                "the stored state of the policy %s cannot be read; the policy starts without it",
                policy,
            )
            return None

    # --- the thread

    def _run(self) -> None:
        failures = 0
        while self._rest(failures):
            began = time.monotonic()
            try:
                self._work()
            except StoreError as error:
                failures += 1
                self._note_failure(error, failures, seconds=time.monotonic() - began)
            except Exception:
                # A write that always fails must not block others.
                log.exception("a write to the store is given up")
                with self._changing():
                    lost = self._under_way.popleft()
                    self._drop(Dropped(lost.entries, lost.observations))
            else:
                failures = 0
                self._note_success()
        self._store.close()

    def _rest(self, failures: int) -> bool:
        """Wait until there is something to do; return whether there is, and time for it."""
        first = self._settings.first_retry_seconds
        pause = self._refresh_at - time.monotonic()
        if failures:
            longest = self._settings.longest_retry_seconds
            pause = wait_after(failures, first_seconds=first, longest_seconds=longest)
            pause *= random.uniform(0.5, 1.0)
        with self._changed:
            self._changed.wait_for(
                lambda: self._end_at is not None or (not failures and self._has_writes), pause
            )
            if self._end_at is None:
                return True
            left = self._end_at - time.monotonic()
            if not self._has_writes:
                return False
        if failures:
            # Attempts follow each other quickly while the notebook closes.
            time.sleep(max(0.0, min(left, first)))
        return left > 0.0

    def _work(self) -> None:
        """Do what is under way and, before it, what waits; the thread calls this again after an error."""
        with self._changed:
            self._under_way = self._under_way or deque(self._take())
        while self._under_way and (self._end_at is None or time.monotonic() < self._end_at):
            self._under_way[0].do()
            with self._changing():
                self._under_way.popleft()

    def _take(self) -> Iterator[_Task]:
        """Take some of all kinds of waiting writes; at the end others' changes are read if it is time."""
        kinds: dict[JobType, list[Observation]] = {}
        for _ in range(min(MOST_AT_ONCE, len(self._observations))):
            kind, seen = self._observations.popleft()
            kinds.setdefault(kind, []).append(seen)
        for kind, observations in kinds.items():
            ticket = next(self._tickets).tried(self._revisions.get(kind, 0))
            yield _Task(
                partial(self._fold, kind, observations=observations, ticket=ticket),
                observations=len(observations),
            )
        rows = [self._rows.popleft() for _ in range(min(MOST_AT_ONCE, len(self._rows)))]
        if rows:
            yield _Task(partial(self._store.record, rows), entries=len(rows))
        while self._latest:
            yield _Task(self._latest.pop(next(iter(self._latest))))
        now = time.monotonic()
        if now >= self._refresh_at and not self._observations and self._end_at is None:
            self._refresh_at = now + self._settings.refresh_seconds
            yield _Task(self._refresh)

    def _fold(self, kind: JobType, *, observations: Sequence[Observation], ticket: Ticket) -> None:
        stored = fold_into(
            self._store, kind, observations=observations, defaults=self._defaults, ticket=ticket
        )
        with self._changed:
            known = self._revisions.get(kind, 0)
            self._revisions[kind] = stored.revision
            if stored.revision not in (known, known + 1):
                # Another process has changed it, too.
                self._take_over(kind, stored.profile)

    def _refresh(self) -> None:
        """Read the changes of other processes; the first time, read everything."""
        there = self._store.revisions()
        known = self._revisions
        changed = [kind for kind, revision in there.items() if known.get(kind) != revision]
        found = self._store.profiles(changed) if changed else {}
        states = self._policy_states
        if states is None:
            states = self._store.policy_states()
        with self._changing():
            self._policy_states = states
            for kind in changed:
                # A user may have removed a type between the two reads.
                stored = found.get(kind) or StoredProfile(None, there[kind])
                known[kind] = stored.revision
                self._take_over(kind, stored.profile)
            for kind in known.keys() - there.keys():
                del known[kind]
                self._take_over(kind, None)

    def _note_failure(self, error: StoreError, in_a_row: int, *, seconds: float) -> None:
        is_long = in_a_row > 1 or seconds >= LONG_SECONDS or isinstance(error, StoreUnusableError)
        with self._changed:
            health = self._health
            health.failures += 1
            health.error = str(error)
            is_news = is_long and health.away_since is None
            if is_news:
                health.is_there = False
                health.away_since = time.monotonic()
        if is_news:
            log.warning(
                "the store is unavailable: %s (scheduling continues from memory; up to %s observations and decisions wait"
                " for it)",
                error,
                f"{self._settings.most_waiting:,}",
            )

    def _note_success(self) -> None:
        with self._changed:
            health = self._health
            health.is_there, health.error = True, ""
            since, health.away_since = health.away_since, None
            lost = sum(self._dropped) - health.dropped_before
            health.dropped_before = sum(self._dropped)
            waiting = self._waiting
        if since is not None:
            log.info(
                "the store %s is back after %.0f s; %s writes wait for it, and %s were given up",
                self._store.address,
                time.monotonic() - since,
                f"{waiting:,}",
                f"{lost:,}",
            )


def _ordered(stored: Iterable[RecordRow], recent: Iterable[RecordRow]) -> list[RecordRow]:
    """Return both, oldest first; of rows with one id the recent one, which may wait for the store."""
    rows = {row.id: row for row in chain(stored, recent)}
    return sorted(rows.values(), key=lambda row: row.when)

"""
What the loop writes into and never waits for: a notebook in front of a store.

A thread of its own brings what is written into the store, and what others wrote there back. While
the store is away (a server down, a file locked, a disk full) everything goes on: what is known
stays known, writes wait up to a bound (:mod:`dlstore.notebook.pending`), the store is tried again at
growing intervals, and all this is told once, and once more when it is back.
"""

import json
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Condition, Event, Thread
from typing import NamedTuple, assert_never
from uuid import uuid4

from dlcore.model import JobId
from dlcore.profiles import Costs, JobType, Observation, Profile
from dlstore.notebook.availability import Availability, Notice
from dlstore.notebook.knowledge import Knowledge
from dlstore.notebook.pending import (
    AddTimeline,
    Dropped,
    Fold,
    KeepState,
    PendingWrites,
    Record,
    ShowGpus,
    ShowJobs,
    Write,
)
from dlstore.store import (
    FREE,
    Store,
    Stored,
    StoreError,
    fold_into,
)
from dlstore.tables import GpuRow, HistoryEntry, JobRow
from dlstore.timeline import TimelineRow

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookSettings:
    """How much may wait, and how often the store is tried. Seconds."""

    most_waiting: int = 10_000
    """So many observations and entries of the history wait for a store that is away."""
    most_at_once: int = 256
    first_retry_seconds: float = 0.2
    longest_retry_seconds: float = 15.0
    """Between two tries the time doubles up to this; a random part of it keeps many apart."""
    refresh_seconds: float = 30.0
    """So often is looked whether others have changed profiles, and whether the store is there."""
    entries_in_memory: int = 1000
    """So much of the history can be told while the store is away."""


USUAL = NotebookSettings()


class NotebookState(NamedTuple):
    """For the metrics."""

    connected: bool
    waiting: int
    dropped: Dropped
    failures: int
    """How often the store failed since the notebook was opened."""
    error: str
    """Why it is away, without secrets; empty while it is there."""


class Notebook:
    """
    Profiles, history and tables, for the loop to read and write at once.

    Every method may be called from any thread. Only :meth:`open`, :meth:`flush`, :meth:`close` and
    :meth:`history` take time, and none of them more than it says.
    """

    def __init__(
        self,
        store: Store,
        *,
        tell: Callable[[Notice], None],
        defaults: Costs = FREE,
        settings: NotebookSettings = USUAL,
        chance: random.Random | None = None,
    ) -> None:
        self._store = store
        self._tell = tell
        self._defaults = defaults
        self._settings = settings
        self._chance = chance or random.Random()
        self._changed = Condition()
        """Held while anything below is read or written, and never while the store works."""
        self._pending = PendingWrites(
            writer=uuid4().hex, most=settings.most_waiting, most_at_once=settings.most_at_once
        )
        self._knowledge = Knowledge(defaults, self._pending.waiting)
        self._recent: deque[HistoryEntry] = deque(maxlen=settings.entries_in_memory)
        self._recent_timeline: deque[TimelineRow] = deque(maxlen=settings.entries_in_memory)
        self._shown: dict[type, Sequence[object]] = {}
        self._availability = Availability(store.address, settings.most_waiting)
        self._refresh_at = time.monotonic()
        self._is_loaded = False
        self._policy_states: Mapping[str, str] = {}
        self._end_at: float | None = None
        self._closing = Event()
        self._thread = Thread(target=self._run, name="notebook", daemon=True)

    def open(self, *, wait_seconds: float) -> None:
        """Begin; waits so long for what the store knows already, and goes on without it."""
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._is_loaded, wait_seconds)

    # --- profiles

    def profiles(self) -> Mapping[JobType, Profile]:
        """All that is known of types of jobs; another object whenever something was learnt."""
        with self._changed:
            return self._knowledge.profiles()

    def observe(self, kind: JobType, observations: Iterable[Observation]) -> None:
        """Learn from these, at once, and keep what was learnt, unless it is about one job only."""
        if not kind.model:
            raise ValueError("jobs without a model have no profile to share")
        with self._changed:
            for observation in observations:
                if self._knowledge.learn(kind, observation) and not kind.is_of_one_job:
                    self._pending.observe(kind, observation)
            self._changed.notify_all()

    def forget(self, kind: JobType) -> None:
        """Know nothing any more of the type of one job, which is over."""
        assert kind.is_of_one_job, kind
        with self._changed:
            self._knowledge.forget(kind)

    # --- the history

    def record(self, entries: Sequence[HistoryEntry]) -> None:
        """Keep these; one with a known id takes the place of the former one."""
        with self._changed:
            self._recent.extend(entries)
            self._pending.record(entries)
            self._changed.notify_all()

    def history(self, job: JobId | None = None, *, limit: int = 100) -> tuple[HistoryEntry, ...]:
        """
        Read the latest entries about a job, or all jobs, newest first.

        Asks the store, so it is not for the loop. While that is away, only what this process has
        recorded is told.
        """
        stored: tuple[HistoryEntry, ...] = ()
        if self._availability.is_there:
            try:
                stored = self._store.history(job, limit=limit)
            except StoreError as error:
                log.debug("the history is read from memory: %s", error)
        with self._changed:
            recent = [entry for entry in self._recent if job in (None, entry.job)]
        entries = {entry.id: entry for entry in (*stored, *recent)}
        latest = sorted(entries.values(), key=lambda entry: entry.when, reverse=True)
        return tuple(latest[:limit])

    # --- the timeline

    def add_timeline(self, rows: Sequence[TimelineRow]) -> None:
        """Keep these; one with a known id takes the place of the former one."""
        if not rows:
            return
        with self._changed:
            self._recent_timeline.extend(rows)
            self._pending.add_timeline(rows)
            self._changed.notify_all()

    def timeline(self) -> tuple[TimelineRow, ...]:
        """Read all of the timeline from the store, oldest first, so that it is not for the loop."""
        stored = self._store.timeline()
        with self._changed:
            recent = tuple(self._recent_timeline)
        rows = {row.id: row for row in (*stored, *recent)}
        return tuple(sorted(rows.values(), key=lambda row: (row.at, row.id)))

    # --- the tables

    def show_gpus(self, rows: Sequence[GpuRow]) -> None:
        """Let these be the table of GPUs."""
        with self._changed:
            if self._is_news(GpuRow, rows):
                self._pending.show_gpus(tuple(rows))
                self._changed.notify_all()

    def show_jobs(self, rows: Sequence[JobRow]) -> None:
        """Let these be the table of jobs."""
        with self._changed:
            if self._is_news(JobRow, rows):
                self._pending.show_jobs(tuple(rows))
                self._changed.notify_all()

    def _is_news(self, kind: type, rows: Sequence[object]) -> bool:
        rows = tuple(rows)
        if self._shown.get(kind) == rows:
            return False
        self._shown[kind] = rows
        return True

    # --- what policies remember

    def keep_policy_state(self, policy: str, state: object) -> None:
        """
        Keep what a policy remembers, over a restart too, if it is a dict.

        Such a state is made of values that JSON can hold, and never changes in place. Any other
        one is remembered by the loop, for as long as that lives.
        """
        if not isinstance(state, dict):
            return
        with self._changed:
            self._pending.keep_state(policy, state)
            self._changed.notify_all()

    def policy_state(self, policy: str) -> object:
        """What the policy remembered when the store was opened; ``None`` if that is nothing."""
        with self._changed:
            document = self._policy_states.get(policy)
        try:
            return json.loads(document) if document is not None else None
        except ValueError:
            log.warning(
                "the stored state of the policy %s cannot be read; the policy starts without it",
                policy,
            )
            return None

    # --- how it is

    def state(self) -> NotebookState:
        with self._changed:
            return NotebookState(
                connected=self._availability.is_there,
                waiting=len(self._pending),
                dropped=self._pending.dropped,
                failures=self._availability.failures,
                error=self._availability.error,
            )

    def flush(self, limit_seconds: float) -> bool:
        """Wait until everything is written, but no longer than that; tell whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending.is_empty, limit_seconds)

    def close(self, limit_seconds: float) -> int:
        """Write what waits, but no longer than that, and end; return how much was not written."""
        with self._changed:
            self._end_at = time.monotonic() + limit_seconds
            self._closing.set()
            self._changed.notify_all()
        if self._thread.ident is None:
            self._store.close()
        else:
            self._thread.join(limit_seconds)
        with self._changed:
            return len(self._pending)

    # --- the thread that writes

    def _run(self) -> None:
        while (task := self._next_task()) is not None and self._do(task):
            pass
        self._store.close()

    def _next_task(self) -> Callable[[], None] | None:
        """Wait for something to do; ``None`` when it is time to end."""
        with self._changed:
            while True:
                now = time.monotonic()
                if now >= self._refresh_at and not self._closing.is_set():
                    self._refresh_at = now + self._settings.refresh_seconds
                    return self._refresh
                write = self._pending.take()
                if write is not None:
                    return lambda: self._perform(write)
                if self._closing.is_set():
                    return None
                self._changed.wait(self._refresh_at - now)

    def _do(self, task: Callable[[], None]) -> bool:
        """Try until the store has done it; tell whether there is time for more."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                task()
            except StoreError as error:
                failures += 1
                self._note_failure(error, failures, time.monotonic() - began)
            except Exception:
                # One write that cannot be done never holds up the others.
                log.exception("a write to the store is given up")
                with self._changed:
                    self._pending.give_up()
                    self._changed.notify_all()
                return True
            else:
                self._note_success()
                return True
            if not self._rest(failures):
                return False

    def _rest(self, failures: int) -> bool:
        """Wait before the next try; tell whether there is time for one."""
        longest = self._settings.longest_retry_seconds
        pause = min(longest, self._settings.first_retry_seconds * 2.0 ** min(failures - 1, 30))
        pause *= self._chance.uniform(0.5, 1.0)
        self._closing.wait(pause)
        if self._end_at is None:
            return True
        left = self._end_at - time.monotonic()
        time.sleep(max(0.0, min(left, self._settings.first_retry_seconds)))
        return left > 0.0

    def _perform(self, write: Write) -> None:
        match write:
            case Fold():
                self._fold(write)
            case Record():
                self._store.record(write.entries)
            case AddTimeline():
                self._store.add_timeline(write.rows)
            case ShowGpus():
                self._store.replace_gpus(write.rows)
            case ShowJobs():
                self._store.replace_jobs(write.rows)
            case KeepState():
                self._store.keep_policy_state(write.policy, json.dumps(write.state))
            case _:
                assert_never(write)
        with self._changed:
            self._pending.finish()
            self._changed.notify_all()

    def _fold(self, write: Fold) -> None:
        expected = self._knowledge.expect(write.kind, write.observations)
        stored = fold_into(
            self._store,
            write.kind,
            write.observations,
            defaults=self._defaults,
            ticket=self._pending.next_ticket(write, self._knowledge.revision(write.kind)),
        )
        with self._changed:
            self._knowledge.confirm(write.kind, expected, stored)

    def _refresh(self) -> None:
        """Take in what others have changed; at first that is everything."""
        there = self._store.revisions()
        with self._changed:
            known = self._knowledge.revisions()
        changed = [kind for kind, revision in there.items() if known.get(kind) != revision]
        found = self._store.profiles(changed) if changed else {}
        states = None if self._is_loaded else self._store.policy_states()
        with self._changed:
            if states is not None:
                self._policy_states = states
            for kind in changed:
                self._knowledge.reload(kind, found.get(kind) or Stored(None, there[kind]))
            self._knowledge.forget_all_but(there)
            self._is_loaded = True
            self._changed.notify_all()

    # --- away and back

    def _note_failure(self, error: StoreError, failures: int, seconds: float) -> None:
        with self._changed:
            notice = self._availability.fail(error, failures, seconds)
        self._announce(notice)

    def _note_success(self) -> None:
        with self._changed:
            notice = self._availability.succeed(len(self._pending), self._pending.dropped)
        self._announce(notice)

    def _announce(self, notice: Notice | None) -> None:
        if notice is not None:
            try:
                self._tell(notice)
            except Exception:
                log.exception("nobody could be told: %s", notice.message)

"""A notebook in front of a store, so the loop never waits for the store.

A thread writes to the store and reads the changes of other processes. While the store is
unavailable, scheduling continues: profiles stay in memory, writes are queued up to a bound
(:mod:`dljob.store.notebook.pending`), and the thread retries at growing intervals.
"""

import json
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import uuid4

from dljob.core.model import JobId
from dljob.core.profiles import Costs, JobType, Observation, Profile
from dljob.store.notebook.availability import AvailabilityChange
from dljob.store.notebook.knowledge import Knowledge
from dljob.store.notebook.pending import Dropped, PendingWrites
from dljob.store.notebook.store_thread import USUAL, Contents, NotebookSettings, StoreThread
from dljob.store.rows import RecordRow
from dljob.store.store import FREE, Store, StoreError
from dljob.store.tables import GpuRow, JobRow

log = logging.getLogger(__name__)


class NotebookState(NamedTuple):
    connected: bool
    waiting: int
    dropped: Dropped
    failures: int
    """The number of failed operations."""
    error: str
    """Why the store is unavailable, without secrets; empty while the store answers."""


class _Recent:
    """The recent rows of this process, which readers see before the store has them."""

    def __init__(self, most: int) -> None:
        self._history: deque[RecordRow] = deque(maxlen=most)
        self._others: deque[RecordRow] = deque(maxlen=most)

    def record(self, rows: Iterable[RecordRow]) -> None:
        for row in rows:
            (self._history if row.is_history else self._others).append(row)

    def complete_history(self, stored: Iterable[RecordRow], job: JobId | None) -> list[RecordRow]:
        """Return the stored and the recent history of a job, or of all jobs, newest first."""
        recent = (row for row in self._history if job in (None, row.job))
        rows = {row.id: row for row in (*stored, *recent)}
        return sorted(rows.values(), key=lambda row: row.when, reverse=True)

    def complete(self, stored: Iterable[RecordRow]) -> list[RecordRow]:
        """Return all stored and recent rows, oldest first."""
        rows = {row.id: row for row in (*stored, *self._others, *self._history)}
        return sorted(rows.values(), key=lambda row: row.when)


class Notebook:
    """
    Profiles, history and tables, which the loop reads and writes without waiting.

    Every method may be called from any thread. Only :meth:`open`, :meth:`flush`, :meth:`close`, :meth:`history` and
    :meth:`timeline` take time. :class:`~dljob.store.notebook.store_thread.StoreThread` does the work.
    """

    def __init__(
        self,
        store: Store,
        *,
        notify: Callable[[AvailabilityChange], None],
        defaults: Costs = FREE,
        settings: NotebookSettings = USUAL,
        chance: random.Random | None = None,
    ) -> None:
        self._store = store
        pending = PendingWrites(
            writer=uuid4().hex, most=settings.most_waiting, most_at_once=settings.most_at_once
        )
        self._contents = Contents(pending=pending, knowledge=Knowledge(defaults, pending.waiting))
        self._recent = _Recent(settings.entries_in_memory)
        self._shown: dict[type, Sequence[object]] = {}
        self._thread = StoreThread(
            store,
            self._contents,
            notify=notify,
            defaults=defaults,
            settings=settings,
            chance=chance or random.Random(),
        )

    def open(self, *, wait_seconds: float) -> None:
        """Start the thread, and wait at most ``wait_seconds`` for the contents of the store."""
        self._thread.start()
        with self._contents.changed:
            self._contents.changed.wait_for(lambda: self._contents.is_loaded, wait_seconds)

    # --- profiles

    def profiles(self) -> Mapping[JobType, Profile]:
        """Return all known profiles; a new mapping after each change."""
        with self._contents.changed:
            return self._contents.knowledge.profiles()

    def observe(self, kind: JobType, observations: Iterable[Observation]) -> None:
        """Learn from observations at once, and write them unless the type is of one job."""
        if not kind.model:
            raise ValueError("jobs without a model have no profile to share")
        with self._contents.changing():
            for observation in observations:
                if self._contents.knowledge.learn(kind, observation) and not kind.is_of_one_job:
                    self._contents.pending.observe(kind, observation)

    def adopt(self, profiles: Iterable[Profile]) -> None:
        """Take over in memory what a former controller knew of unknown types."""
        with self._contents.changing():
            for profile in profiles:
                self._contents.knowledge.adopt(profile)

    def forget(self, kind: JobType) -> None:
        """Forget the type of one job, which has ended."""
        assert kind.is_of_one_job, kind
        with self._contents.changed:
            self._contents.knowledge.forget(kind)

    # --- the record

    def record(self, rows: Sequence[RecordRow]) -> None:
        """Record rows; a row with a known id replaces the former row."""
        if not rows:
            return
        with self._contents.changing():
            self._recent.record(rows)
            self._contents.pending.record(rows)

    def history(self, job: JobId | None = None, *, limit: int = 100) -> tuple[RecordRow, ...]:
        """
        Read the latest entries about a job, or all jobs, newest first.

        This asks the store, so it is not for the loop. Without the store it returns only the entries of this process.
        """
        # Do not hold the lock here, because the loop would wait for it.
        stored: tuple[RecordRow, ...] = ()
        if self._thread.availability.is_there:
            try:
                stored = self._store.history(job, limit=limit)
            except StoreError as error:
                log.debug("the history is read from memory: %s", error)
        with self._contents.changed:
            return tuple(self._recent.complete_history(stored, job)[:limit])

    def rows(self) -> tuple[RecordRow, ...]:
        """Read the whole record from the store, oldest first. Slow, so not for the loop."""
        # Do not hold the lock, as above; a row that is written in between is in both, and counts
        # once.
        stored = self._store.rows()
        with self._contents.changed:
            return tuple(self._recent.complete(stored))

    # --- the tables

    def show_gpus(self, rows: Sequence[GpuRow]) -> None:
        """Replace the table of GPUs."""
        with self._contents.changing():
            if self._remember_shown(GpuRow, rows):
                self._contents.pending.show_gpus(tuple(rows))

    def show_jobs(self, rows: Sequence[JobRow]) -> None:
        """Replace the table of jobs."""
        with self._contents.changing():
            if self._remember_shown(JobRow, rows):
                self._contents.pending.show_jobs(tuple(rows))

    def _remember_shown(self, kind: type, rows: Sequence[object]) -> bool:
        """Remember the rows of a table; return whether they changed."""
        rows = tuple(rows)
        if self._shown.get(kind) == rows:
            return False
        self._shown[kind] = rows
        return True

    # --- what policies remember

    def keep_policy_state(self, policy: str, state: object) -> None:
        """Write the state of a policy if the state is a dict.

        A dict holds only JSON and is never changed in place. Any other state stays in memory only.
        """
        if not isinstance(state, dict):
            return
        with self._contents.changing():
            self._contents.pending.keep_state(policy, state)

    def policy_state(self, policy: str) -> object:
        """Return the stored state of a policy from the start of this process; ``None`` if there was none."""
        with self._contents.changed:
            document = self._contents.policy_states.get(policy)
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
        with self._contents.changed:
            return NotebookState(
                connected=self._thread.availability.is_there,
                waiting=len(self._contents.pending),
                dropped=self._contents.pending.dropped,
                failures=self._thread.availability.failures,
                error=self._thread.availability.error,
            )

    def flush(self, limit_seconds: float) -> bool:
        """Wait up to the limit until everything is written; return whether it is."""
        with self._contents.changed:
            return self._contents.changed.wait_for(
                lambda: self._contents.pending.is_empty, limit_seconds
            )

    def close(self, limit_seconds: float) -> int:
        """Write the queue up to the limit, and end; return the number of writes that were lost."""
        self._thread.close(limit_seconds)
        with self._contents.changed:
            return len(self._contents.pending)

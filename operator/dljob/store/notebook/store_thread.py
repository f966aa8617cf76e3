"""The thread of a notebook, which makes queued writes and reads the changes of other processes.

The thread shares only :class:`Contents` with callers, and holds its lock only to read or change the
contents, so callers never wait for the store.
"""

import json
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Event, Thread
from typing import assert_never

from dljob.core.primitives.backoff import wait_after
from dljob.core.profiles import Costs
from dljob.store.notebook.availability import Availability, AvailabilityChange
from dljob.store.notebook.knowledge import Knowledge
from dljob.store.notebook.pending import (
    Fold,
    KeepState,
    PendingWrites,
    Record,
    ShowGpus,
    ShowJobs,
    Write,
)
from dljob.store.store import Store, StoredProfile, StoreError, fold_into

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookSettings:
    most_waiting: int = 10_000
    """The most observations and entries that are queued for the store; more are dropped."""
    most_at_once: int = 256
    first_retry_seconds: float = 0.2
    longest_retry_seconds: float = 15.0
    """The longest retry delay; the delay doubles up to this, less a random part."""
    refresh_seconds: float = 30.0
    """The time between two reads of other processes' changes."""
    entries_in_memory: int = 1000
    """The history entries that readers get while the store is unavailable."""


USUAL = NotebookSettings()


@dataclass(slots=True, kw_only=True)
class Contents:
    """The memory of a notebook, for callers and the thread."""

    pending: PendingWrites
    knowledge: Knowledge
    policy_states: Mapping[str, str] = field(default_factory=dict)
    """The states of policies at the start, as JSON."""
    is_loaded: bool = False
    changed: Condition = field(default_factory=Condition)
    """The lock, which is never held during an operation of the store."""

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock, then wake waiting threads."""
        with self.changed:
            yield
            self.changed.notify_all()


class _Retries:
    """When the thread tries the store again."""

    def __init__(self, settings: NotebookSettings, chance: random.Random) -> None:
        self._settings = settings
        self._chance = chance
        self._end_at: float | None = None
        self._closing = Event()

    @property
    def is_closing(self) -> bool:
        return self._closing.is_set()

    @property
    def is_over(self) -> bool:
        """Return whether the time for closing is over."""
        return self._end_at is not None and time.monotonic() >= self._end_at

    def close(self, limit_seconds: float) -> None:
        """End the present pause; there is no attempt after ``limit_seconds``."""
        self._end_at = time.monotonic() + limit_seconds
        # Set the limit first, because rest() reads the limit as soon as this wakes it.
        self._closing.set()

    def rest(self, failures: int) -> bool:
        """Wait before the next attempt; returns whether there is time for one."""
        pause = wait_after(
            failures,
            first_seconds=self._settings.first_retry_seconds,
            longest_seconds=self._settings.longest_retry_seconds,
        )
        pause *= self._chance.uniform(0.5, 1.0)
        # close() ends this pause.
        self._closing.wait(pause)
        if self._end_at is None:
            return True
        # Attempts follow each other quickly while the notebook closes.
        left = self._end_at - time.monotonic()
        time.sleep(max(0.0, min(left, self._settings.first_retry_seconds)))
        return left > 0.0


class StoreThread:
    def __init__(
        self,
        store: Store,
        contents: Contents,
        *,
        notify: Callable[[AvailabilityChange], None],
        defaults: Costs,
        settings: NotebookSettings,
        chance: random.Random,
    ) -> None:
        self.availability = Availability(store.address, settings.most_waiting)
        """Read while holding the lock of the contents."""
        self._store = store
        self._contents = contents
        self._notify = notify
        self._defaults = defaults
        self._refresh_seconds = settings.refresh_seconds
        self._retries = _Retries(settings, chance)
        self._refresh_at = time.monotonic()
        # A daemon, so that an operation that hangs does not delay the end of the process.
        self._thread = Thread(target=self._run, name="notebook", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, limit_seconds: float) -> None:
        """Make the queued writes for at most ``limit_seconds``, and end."""
        # Hold the lock, so the thread cannot miss the change between its check and its wait.
        with self._contents.changing():
            self._retries.close(limit_seconds)
        if self._thread.ident is None:
            # The thread was never started, so close the store here.
            self._store.close()
        else:
            self._thread.join(limit_seconds)

    def _run(self) -> None:
        while (task := self._next_task()) is not None and self._do(task):
            pass
        self._store.close()

    def _next_task(self) -> Callable[[], None] | None:
        """Wait for a task; returns ``None`` at the end."""
        with self._contents.changed:
            while True:
                if self._retries.is_over:
                    # The caller of close() has counted the remaining writes.
                    return None
                now = time.monotonic()
                # Read first, so a long queue of writes does not delay reads.
                if now >= self._refresh_at and not self._retries.is_closing:
                    self._refresh_at = now + self._refresh_seconds
                    return self._refresh
                write = self._contents.pending.take()
                if write is not None:
                    return lambda: self._perform(write)
                if self._retries.is_closing:
                    return None
                self._contents.changed.wait(self._refresh_at - now)

    def _do(self, task: Callable[[], None]) -> bool:
        """Repeat a task until it succeeds; returns whether there is time for more."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                task()
            except StoreError as error:
                failures += 1
                self._note_failure(error, failures, seconds=time.monotonic() - began)
            except Exception:
                # A write that always fails must not block others.
                log.exception("a write to the store is given up")
                with self._contents.changing():
                    self._contents.pending.give_up()
                return True
            else:
                self._note_success()
                return True
            if not self._retries.rest(failures):
                return False

    def _perform(self, write: Write) -> None:
        match write:
            case Fold():
                self._fold(write)
            case Record():
                self._store.record(write.rows)
            case ShowGpus():
                self._store.replace_gpus(write.rows)
            case ShowJobs():
                self._store.replace_jobs(write.rows)
            case KeepState():
                self._store.keep_policy_state(write.policy, json.dumps(write.state))
            case _:
                assert_never(write)
        with self._contents.changing():
            self._contents.pending.finish()

    def _fold(self, write: Fold) -> None:
        # No lock is needed, because only this thread changes stored profiles and tickets.
        expected = self._contents.knowledge.expect(write.kind, write.observations)
        stored = fold_into(
            self._store,
            write.kind,
            observations=write.observations,
            defaults=self._defaults,
            ticket=self._contents.pending.next_ticket(
                write, self._contents.knowledge.revision(write.kind)
            ),
        )
        with self._contents.changed:
            self._contents.knowledge.confirm(write.kind, expected, stored=stored)

    def _refresh(self) -> None:
        """Read the changes of other processes; the first time, read everything."""
        there = self._store.revisions()
        with self._contents.changed:
            known = self._contents.knowledge.revisions()
        changed = [kind for kind, revision in there.items() if known.get(kind) != revision]
        found = self._store.profiles(changed) if changed else {}
        states = None if self._contents.is_loaded else self._store.policy_states()
        with self._contents.changing():
            if states is not None:
                self._contents.policy_states = states
            for kind in changed:
                # A type may have been removed between the two reads.
                self._contents.knowledge.reload(
                    kind, found.get(kind) or StoredProfile(None, there[kind])
                )
            self._contents.knowledge.forget_all_but(there)
            self._contents.is_loaded = True

    # --- away and back

    def _note_failure(self, error: StoreError, failures: int, *, seconds: float) -> None:
        with self._contents.changed:
            change = self.availability.fail(error, failures, seconds=seconds)
        self._announce(change)

    def _note_success(self) -> None:
        with self._contents.changed:
            change = self.availability.succeed(
                len(self._contents.pending), self._contents.pending.dropped
            )
        self._announce(change)

    def _announce(self, change: AvailabilityChange | None) -> None:
        if change is not None:
            try:
                self._notify(change)
            except Exception:
                log.exception("no event could be written: %s", change.message)

"""A store in memory only, which fails on request: for tests of the code that uses a store."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock

from dlcore.model import JobId
from dlcore.profiles import JobType
from dlstore.history import HistoryEntry
from dlstore.store import USUAL_BOUNDS, Bounds, Change, StoredProfile, StoreError, Ticket
from dlstore.tables import SAMPLE, GpuRow, JobRow, TimelineRow, from_record, to_record


class MemoryStore:
    """
    Keeps everything in memory, and passes the suite of all stores.

    ``failing`` is asked before every call, by the name of the method, and may return an error to
    raise. ``failing_after`` is the same after the call was carried out, as when an answer is lost.
    """

    def __init__(self, bounds: Bounds = USUAL_BOUNDS) -> None:
        self._bounds = bounds
        self._lock = RLock()
        self._profiles: dict[JobType, StoredProfile] = {}
        self._history: dict[str, HistoryEntry] = {}
        self._gpus: tuple[GpuRow, ...] = ()
        self._jobs: tuple[JobRow, ...] = ()
        self._policy_states: dict[str, str] = {}
        self._timeline: dict[str, TimelineRow] = {}
        self.failing: Callable[[str], StoreError | None] = lambda _: None
        self.failing_after: Callable[[str], StoreError | None] = lambda _: None
        self.calls: list[str] = []
        self.is_closed = False

    address = "memory"

    def _ask(self, name: str) -> None:
        self.calls.append(name)
        error = self.failing(name)
        if error is not None:
            raise error

    def _answer(self, name: str) -> None:
        error = self.failing_after(name)
        if error is not None:
            raise error

    def profiles(self, types: Iterable[JobType] | None = None) -> Mapping[JobType, StoredProfile]:
        self._ask("profiles")
        with self._lock:
            wanted = self._profiles.keys() if types is None else types
            found = {kind: self._profiles.get(kind, StoredProfile(None)) for kind in wanted}
            return {kind: stored for kind, stored in found.items() if stored.profile is not None}

    def revisions(self) -> Mapping[JobType, int]:
        self._ask("revisions")
        with self._lock:
            stored = self._profiles.items()
            return {kind: each.revision for kind, each in stored if each.profile is not None}

    def change(self, kind: JobType, change: Change, ticket: Ticket | None = None) -> StoredProfile:
        self._ask("change")
        with self._lock:
            old = self._profiles.get(kind, StoredProfile(None))
            new = old.changed(change, ticket)
            if new is not old:
                self._profiles[kind] = new
        self._answer("change")
        return new

    def record(self, entries: Sequence[HistoryEntry]) -> None:
        self._ask("record")
        with self._lock:
            kept = (from_record(HistoryEntry, to_record(entry)) for entry in entries)
            self._history |= {entry.id: entry for entry in kept}
            for job in {entry.job for entry in entries}:
                self._forget(self.history(job, limit=len(self._history)), which="each")
            self._forget(self.history(limit=len(self._history)), which="all")
        self._answer("record")

    def _forget(self, newest_first: Sequence[HistoryEntry], *, which: str) -> None:
        most = self._bounds.entries_per_job if which == "each" else self._bounds.entries
        for entry in newest_first[most:]:
            del self._history[entry.id]

    def history(self, job: JobId | None = None, *, limit: int = 100) -> tuple[HistoryEntry, ...]:
        self._ask("history")
        with self._lock:
            entries = [entry for entry in self._history.values() if job in (None, entry.job)]
        return tuple(sorted(entries, key=lambda entry: entry.when, reverse=True)[:limit])

    def add_timeline(self, rows: Sequence[TimelineRow]) -> None:
        self._ask("add_timeline")
        with self._lock:
            self._timeline |= {row.id: row for row in rows}
            there = sorted(self._timeline.values(), key=lambda row: (row.at, row.id))
            samples = [row for row in there if row.kind == SAMPLE]
            moments = [row for row in there if row.kind != SAMPLE]
            kept = (*samples[-self._bounds.samples :], *moments[-self._bounds.moments :])
            self._timeline = {row.id: row for row in kept}
        self._answer("add_timeline")

    def timeline(self) -> tuple[TimelineRow, ...]:
        self._ask("timeline")
        with self._lock:
            return tuple(sorted(self._timeline.values(), key=lambda row: (row.at, row.id)))

    def replace_gpus(self, rows: Sequence[GpuRow]) -> None:
        self._ask("replace_gpus")
        self._gpus = tuple(sorted(rows, key=lambda row: row.key))

    def replace_jobs(self, rows: Sequence[JobRow]) -> None:
        self._ask("replace_jobs")
        self._jobs = tuple(sorted(rows, key=lambda row: row.key))

    def gpus(self) -> tuple[GpuRow, ...]:
        self._ask("gpus")
        return self._gpus

    def jobs(self) -> tuple[JobRow, ...]:
        self._ask("jobs")
        return self._jobs

    def keep_policy_state(self, policy: str, document: str) -> None:
        self._ask("keep_policy_state")
        self._policy_states[policy] = document

    def policy_states(self) -> Mapping[str, str]:
        self._ask("policy_states")
        return dict(self._policy_states)

    def close(self) -> None:
        self.is_closed = True

"""A store in memory that fails on request, for tests of the code that uses a store."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock

from dljob.core.model import JobId
from dljob.core.profiles import JobType
from dljob.store.rows import SAMPLE, RecordRow
from dljob.store.store import USUAL_BOUNDS, Bounds, Change, StoredProfile, StoreError, Ticket
from dljob.store.tables import GpuRow, JobRow


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
        self._gpus: tuple[GpuRow, ...] = ()
        self._jobs: tuple[JobRow, ...] = ()
        self._policy_states: dict[str, str] = {}
        self._rows: dict[str, RecordRow] = {}
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

    def record(self, rows: Sequence[RecordRow]) -> None:
        self._ask("record")
        with self._lock:
            self._rows |= {row.id: row for row in rows}
            history = [row for row in self.rows() if row.is_history]
            samples = [row for row in self.rows() if row.kind == SAMPLE]
            moments = [row for row in self.rows() if row not in history and row not in samples]
            jobs: dict[str, list[RecordRow]] = {}
            for row in history:
                jobs.setdefault(row.job, []).append(row)
            bounds = self._bounds
            latest = [row for each in jobs.values() for row in each[-bounds.entries_per_job :]]
            latest = sorted(latest, key=lambda row: row.when)[-bounds.entries :]
            kept = (*latest, *samples[-bounds.samples :], *moments[-bounds.moments :])
            self._rows = {row.id: row for row in kept if row.at >= bounds.oldest}
        self._answer("record")

    def history(self, job: JobId | None = None, *, limit: int = 100) -> tuple[RecordRow, ...]:
        self._ask("history")
        with self._lock:
            found = [row for row in self.rows() if row.is_history and job in (None, row.job)]
        return tuple(reversed(found))[:limit]

    def rows(self) -> tuple[RecordRow, ...]:
        with self._lock:
            return tuple(sorted(self._rows.values(), key=lambda row: row.when))

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

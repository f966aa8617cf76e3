"""
The interface of a store, which keeps what a controller learns beyond the controller's life.

A store keeps profiles of types of jobs, the history, and the tables of GPUs and jobs (:mod:`dljob.store.tables`). There are
two: a file of SQLite (:mod:`dljob.store.sqlite.store`), and a server with MongoDB's protocol (:mod:`dljob.store.mongo.store`). The
loop uses a store through :mod:`dljob.store.notebook`, and so never waits for it.

Several processes may use one store. They change a profile by :meth:`~Store.change`, which loses no concurrent change. With
a :class:`Ticket` a caller that does not know whether its change was made can repeat the change.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, Protocol

from dljob.core import profiles
from dljob.core.documents import profilefile
from dljob.core.model import JobId
from dljob.core.profiles import Costs, JobType, Observation, Profile
from dljob.store.rows import RecordRow, prune_every
from dljob.store.tables import GpuRow, JobRow

log = logging.getLogger(__name__)

DAY_S = 86_400.0


class StoreError(Exception):
    """
    An operation of the store failed.

    ``str()`` is one line without secrets: ``ADDRESS: problem; remedy``.
    """

    def __init__(self, address: str, message: str, remedy: str) -> None:
        super().__init__(address, message, remedy)
        self.address = address
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.address}: {self.message}; {self.remedy}"
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class StoreUnavailableError(StoreError):
    """The operation may succeed later: the server does not answer, the file is locked, the disk is full."""


class StoreUnusableError(StoreError):
    """A person has to repair the store: a damaged file, a newer schema, a wrong address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much history is kept; the oldest is removed first."""

    entries_per_job: int = 200
    entries: int = 20_000
    moments: int = 60_000
    """All rows except progress rows."""
    samples: int = 20_000
    """Progress rows."""
    days: float = 0.0
    """Older rows are removed, too; 0: no limit of age."""

    @property
    def oldest(self) -> float:
        """The time before which rows are removed."""
        return time.time() - DAY_S * self.days if self.days else 0.0

    @property
    def prune_every(self) -> int:
        """The number of new rows after which a store prunes the oldest rows."""
        return prune_every(min(self.entries, self.moments, self.samples))


USUAL_BOUNDS = Bounds()
FREE = Costs()
"""The costs until measured ones are known."""


class Ticket(NamedTuple):
    """The unique name of a change, which is made only once."""

    writer: str
    """A unique name of the process."""
    number: int
    """The number of the writer's change."""
    tried_at: int | None = None
    """The revision that the writer knew at its first attempt; ``None`` before. Not stored."""

    def tried(self, revision: int) -> "Ticket":
        """Note the revision of the first attempt."""
        return self if self.tried_at is not None else self._replace(tried_at=revision)

    @classmethod
    def read_all(cls, text: object) -> "tuple[Ticket, ...]":
        """Read the result of :meth:`write_all`; empty if it is unreadable."""
        try:
            return tuple(cls(str(writer), int(number)) for writer, number in json.loads(str(text)))
        except (TypeError, ValueError):
            return ()

    @staticmethod
    def write_all(tickets: "Sequence[Ticket]") -> str:
        return json.dumps([(ticket.writer, ticket.number) for ticket in tickets])


MOST_TICKETS = 16
"""The number of tickets that are kept with each profile: the latest one of each writer."""


class StoredProfile(NamedTuple):
    profile: Profile | None
    """``None`` if it is unknown or forgotten."""
    revision: int = 0
    tickets: tuple[Ticket, ...] = ()
    """The latest ticket of each writer, the latest writer last."""

    def has(self, ticket: Ticket) -> bool:
        """Return whether the change was made."""
        return any(t.writer == ticket.writer and t.number >= ticket.number for t in self.tickets)

    def may_have_forgotten(self, ticket: Ticket) -> bool:
        """Return whether the change may have been made but its ticket dropped since.

        A ticket stays for at least MOST_TICKETS revisions.
        """
        is_complete = len(self.tickets) < MOST_TICKETS
        is_known = any(each.writer == ticket.writer for each in self.tickets)
        if ticket.tried_at is None or is_complete or is_known:
            return False
        return self.revision - ticket.tried_at > MOST_TICKETS

    def changed(self, change: "Change", ticket: Ticket | None) -> "StoredProfile":
        """Apply a change; return the same object if nothing changes.

        Skip a change that may have been made: losing an observation is better than counting it
        twice.
        """
        if ticket is not None and (self.has(ticket) or self.may_have_forgotten(ticket)):
            return self
        profile = change(self.profile)
        if profile is self.profile:
            return self
        tickets = self.tickets
        if ticket is not None:
            others = (each for each in tickets if each.writer != ticket.writer)
            made = Ticket(ticket.writer, ticket.number)
            tickets = (*others, made)[-MOST_TICKETS:]
        return StoredProfile(profile, self.revision + 1, tickets)


Change = Callable[[Profile | None], Profile | None]
"""Returns the new profile of a type. It may be called several times."""


class Store(Protocol):
    """
    A store. Each method may be called from any thread, and raises :class:`StoreError` after a bounded time if it fails.
    """

    @property
    def address(self) -> str:
        """The address without credentials."""

    def profiles(self, types: Iterable[JobType] | None = None) -> Mapping[JobType, StoredProfile]:
        """Read the profiles of these types, or all, without forgotten ones."""

    def revisions(self) -> Mapping[JobType, int]:
        """Read the revisions of all profiles."""

    def change(self, kind: JobType, change: Change, ticket: Ticket | None = None) -> StoredProfile:
        """
        Change a profile atomically; returns the new one.

        No change is made twice under one ticket. ``change`` returns its argument to change nothing, and ``None`` to forget
        the profile.
        """

    def record(self, rows: Sequence[RecordRow]) -> None:
        """Add rows to the record; a row with a known ``id`` replaces the former row."""

    def history(self, job: JobId | None = None, *, limit: int = 100) -> tuple[RecordRow, ...]:
        """Read the latest decisions and incidents of a job, or of all jobs, newest first."""

    def rows(self) -> tuple[RecordRow, ...]:
        """Read the whole record, oldest first."""

    def replace_gpus(self, rows: Sequence[GpuRow]) -> None:
        """Replace the table of GPUs; cheap if nothing has changed."""

    def replace_jobs(self, rows: Sequence[JobRow]) -> None:
        """Replace the table of jobs; cheap if nothing has changed."""

    def gpus(self) -> tuple[GpuRow, ...]:
        """Read the table of GPUs, by node and number."""

    def jobs(self) -> tuple[JobRow, ...]:
        """Read the table of jobs, by name."""

    def keep_policy_state(self, policy: str, document: str) -> None:
        """Replace the state of a policy."""

    def policy_states(self) -> Mapping[str, str]:
        """Read the states of policies by name."""

    def close(self) -> None:
        """Close connections and files."""


def fold_into(
    store: Store,
    kind: JobType,
    *,
    observations: Sequence[Observation],
    defaults: Costs = FREE,
    ticket: Ticket | None = None,
) -> StoredProfile:
    """Fold observations into the stored profile of a type."""

    def fold(known: Profile | None) -> Profile | None:
        before = known or Profile(kind)
        folded = fold_all(before, observations, defaults=defaults)
        return known if folded is before else folded

    return store.change(kind, fold, ticket)


def fold_all(profile: Profile, observations: Iterable[Observation], *, defaults: Costs) -> Profile:
    return reduce(
        lambda known, seen: profiles.fold(known, seen, defaults=defaults), observations, profile
    )


class ProfileDocuments:
    """
    The parsed documents of profiles. Each is parsed again only after it has changed.

    A document that cannot be read is logged and ignored.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._known: dict[JobType, tuple[object, Profile | None]] = {}

    def read(self, kind: JobType, raw: object) -> Profile | None:
        """Return the profile in a document: JSON as text, or as values."""
        known = self._known.get(kind)
        if known is None or known[0] != raw:
            known = raw, self._parse(kind, raw)
            self._known[kind] = known
        return known[1]

    def remember(self, kind: JobType, raw: object, *, profile: Profile | None) -> None:
        """Cache the profile of a document that is being written."""
        self._known[kind] = raw, profile

    def _parse(self, kind: JobType, raw: object) -> Profile | None:
        try:
            document = json.loads(raw) if isinstance(raw, str) else raw
            profile = profilefile.parse(document, source=self._address)
        except (ValueError, profilefile.ProfileFileError) as error:
            log.warning("the profile of %s is damaged and will be learnt again: %s", kind, error)
            return None
        if profile.type != kind:
            where = self._address
            log.warning("%s: the entry of %s holds the profile of %s", where, kind, profile.type)
            return None
        return profile

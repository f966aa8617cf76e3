"""
The interface of a store, which keeps the controller's memory beyond its own life.

A store keeps the profiles of types of jobs, the history, and the tables of GPUs and jobs
(:mod:`dlstore.tables`). Two do: one file of SQLite (:mod:`dlstore.sqlite.store`), and a server
that speaks as MongoDB does (:mod:`dlstore.mongo.store`); :mod:`dlstore.opening` chooses. The
loop never waits for a store: between them stands :mod:`dlstore.notebook.notebook`.

Several processes may use one store at once. They change a profile only by :meth:`~Store.change`,
which reads, computes and writes without losing what others write meanwhile. A change may bear a
:class:`Ticket`, so that a caller that does not know whether a change was made simply makes it again.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, Protocol

from dlcore import profiles
from dlcore.documents import profilefile
from dlcore.model import JobId
from dlcore.profiles import Costs, JobType, Observation, Profile
from dlstore.history import HistoryEntry
from dlstore.tables import GpuRow, JobRow, TimelineRow

log = logging.getLogger(__name__)


class StoreError(Exception):
    """
    The store did not do what it was asked.

    ``str()`` is one line without secrets: ``ADDRESS: what is wrong; remedy``.
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
    """It may do so later: the server does not answer, the file is locked, the disk is full."""


class StoreUnusableError(StoreError):
    """It fails until a person mends it: a damaged file, a newer schema, a wrong address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much history is kept; of more, the oldest is forgotten."""

    entries_per_job: int = 200
    entries: int = 20_000
    moments: int = 60_000
    """Rows of the timeline, but for those of progress."""
    samples: int = 20_000
    """Rows of the timeline that say how far a job is."""


USUAL_BOUNDS = Bounds()
FREE = Costs()
"""The costs in force until measured ones are known."""


class Ticket(NamedTuple):
    """The name of one change, under which it is made only once."""

    writer: str
    """The writer: another name in every process."""
    number: int
    """Rises from change to change of a writer."""
    tried_at: int | None = None
    """The revision that its writer knew when it tried first to make the change; ``None`` before that. Not stored."""

    def tried(self, revision: int) -> "Ticket":
        """Note that the change may have been made after this revision, unless an earlier one is noted."""
        return self if self.tried_at is not None else self._replace(tried_at=revision)

    @classmethod
    def read_all(cls, text: object) -> "tuple[Ticket, ...]":
        """Read what :meth:`write_all` wrote; none, if it is unreadable."""
        try:
            return tuple(cls(str(writer), int(number)) for writer, number in json.loads(str(text)))
        except (TypeError, ValueError):
            return ()

    @staticmethod
    def write_all(tickets: "Sequence[Ticket]") -> str:
        return json.dumps([(ticket.writer, ticket.number) for ticket in tickets])


MOST_TICKETS = 16
"""The number of writers whose latest tickets are kept with each profile."""


class StoredProfile(NamedTuple):
    """A profile as a store has it."""

    profile: Profile | None
    """``None`` when nothing is known, or it was forgotten."""
    revision: int = 0
    """Rises with every change, forgetting included."""
    tickets: tuple[Ticket, ...] = ()
    """The latest of each writer, the latest writer last."""

    def has(self, ticket: Ticket) -> bool:
        """Tell whether that change was made already."""
        return any(t.writer == ticket.writer and t.number >= ticket.number for t in self.tickets)

    def may_have_forgotten(self, ticket: Ticket) -> bool:
        """
        Tell whether that change may have been made, and its ticket have given way to later ones.

        A ticket stays for as many revisions as there are tickets, and longer unless each revision is of another writer.
        """
        is_complete = len(self.tickets) < MOST_TICKETS
        is_known = any(each.writer == ticket.writer for each in self.tickets)
        if ticket.tried_at is None or is_complete or is_known:
            return False
        return self.revision - ticket.tried_at > MOST_TICKETS

    def changed(self, change: "Change", ticket: Ticket | None) -> "StoredProfile":
        """
        Compute what a change makes of it; the same object, if it makes no difference.

        A change that may have been made already is left out, because one observation less harms a
        profile less than one that counts twice.
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
"""From what is known of a type to what shall be. It may be called several times."""


class Store(Protocol):
    """
    The contract of all stores. Each method may be called from any thread, and raises
    :class:`StoreError` after a bounded time if the store cannot do it.
    """

    @property
    def address(self) -> str:
        """Its name for people, without credentials."""

    def profiles(self, types: Iterable[JobType] | None = None) -> Mapping[JobType, StoredProfile]:
        """Read the profiles of these types, or all; what was forgotten is not among them."""

    def revisions(self) -> Mapping[JobType, int]:
        """Tell the revision of every profile, which is cheaper than reading them."""

    def change(self, kind: JobType, change: Change, ticket: Ticket | None = None) -> StoredProfile:
        """
        Change a profile, based on what is known at that instant; return what is known then.

        No change by another process is lost, nor made twice under one ticket. ``change`` returns
        the profile that it was given to leave it alone, and ``None`` to forget it.
        """

    def record(self, entries: Sequence[HistoryEntry]) -> None:
        """Add to the history; an entry with a known ``id`` takes the place of the former one."""

    def history(self, job: JobId | None = None, *, limit: int = 100) -> tuple[HistoryEntry, ...]:
        """Read the latest entries about a job, or all jobs, newest first."""

    def add_timeline(self, rows: Sequence[TimelineRow]) -> None:
        """Add to the timeline; a row with a known ``id`` takes the place of the former one."""

    def timeline(self) -> tuple[TimelineRow, ...]:
        """Read all of the timeline, oldest first."""

    def replace_gpus(self, rows: Sequence[GpuRow]) -> None:
        """Let these be the table of GPUs. Costs next to nothing if they are already."""

    def replace_jobs(self, rows: Sequence[JobRow]) -> None:
        """Let these be the table of jobs. Costs next to nothing if they are already."""

    def gpus(self) -> tuple[GpuRow, ...]:
        """Read the table of GPUs, by node and number."""

    def jobs(self) -> tuple[JobRow, ...]:
        """Read the table of jobs, by name."""

    def keep_policy_state(self, policy: str, document: str) -> None:
        """Let this be the state of a policy, in place of the former one."""

    def policy_states(self) -> Mapping[str, str]:
        """Read the states of policies that were kept, by their names."""

    def close(self) -> None:
        """Release what it holds; it is not used afterwards."""


def fold_into(
    store: Store,
    kind: JobType,
    *,
    observations: Sequence[Observation],
    defaults: Costs = FREE,
    ticket: Ticket | None = None,
) -> StoredProfile:
    """Fold observations into the profile of a type, wherever others left it."""

    def fold(known: Profile | None) -> Profile | None:
        before = known or Profile(kind)
        folded = fold_all(before, observations, defaults=defaults)
        return known if folded is before else folded

    return store.change(kind, fold, ticket)


def fold_all(profile: Profile, observations: Iterable[Observation], *, defaults: Costs) -> Profile:
    """Fold observations into a profile, one after the other."""
    return reduce(
        lambda known, seen: profiles.fold(known, seen, defaults=defaults), observations, profile
    )


class ProfileDocuments:
    """
    The documents of profiles that a store has, read no oftener than they change.

    One that was edited badly is no reason to do without all the others: it is reported, and
    counts as nothing.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._known: dict[JobType, tuple[object, Profile | None]] = {}

    def read(self, kind: JobType, raw: object) -> Profile | None:
        """Read the document filed under a type: JSON as text, or as values."""
        known = self._known.get(kind)
        if known is None or known[0] != raw:
            known = raw, self._parse(kind, raw)
            self._known[kind] = known
        return known[1]

    def remember(self, kind: JobType, raw: object, *, profile: Profile | None) -> None:
        """Take note of what is being written, which need not be read again."""
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

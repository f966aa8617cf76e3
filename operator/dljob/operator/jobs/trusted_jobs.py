"""
The jobs with the statuses that this leader trusts: its own record replaces the writes of other programs.

Every part of an operator that acts on the status of a job reads it here.
"""

from collections.abc import Callable, Iterator

from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import Jobs, Specs
from dljob.operator.jobs.epochs import Epochs, Term


class TrustedJobs:
    """One for the life of a leader."""

    def __init__(
        self, mirrors: Mirrors, specs: Specs, *, term: Term, warn: Callable[[Json, str, str], None]
    ) -> None:
        """``warn`` writes an Event about a job."""
        self._mirrors = mirrors
        self.term = term
        self.records = Jobs(specs, term.clock)
        self.epochs = Epochs(term, warn=warn)

    def is_doubted(self, document: Json) -> bool:
        """True if the status of a job names a later leader, or another program has written it."""
        return self.epochs.is_later(document) or self.records.is_foreign(document)

    def trusted(self, document: Json) -> Json:
        """Return a job as this leader recorded it last, where its status is doubted."""
        return self.records.as_recorded(document) if self.is_doubted(document) else document

    def get(self, name: Name) -> Json | None:
        document = self._mirrors.jobs.get(name)
        return None if document is None else self.trusted(document)

    def __iter__(self) -> Iterator[Json]:
        return map(self.trusted, self._mirrors.jobs.objects.values())

    def forget(self, name: Name) -> None:
        """Forget a job that is gone."""
        self.records.forget(name)
        self.epochs.forget(name)

"""The requests of the pods of each unfinished job, and the nodes that can reach their volumes."""

from collections.abc import Callable, Iterable

from dljob.core.model import JobId
from dljob.kube.constraints.other_pods import OtherObjects
from dljob.kube.names import Name
from dljob.operator.nodes.requests import Asks, Reach, read_reach


class JobRequests:
    """Keeps the requests by job, and follows the claims that they name."""

    def __init__(self, others: OtherObjects, asks_of: Callable[[Name], Asks | None]) -> None:
        self._others = others
        self._asks_of = asks_of
        """Returns the requests of a job's pods once they are known."""
        self._asks: dict[JobId, Asks] = {}
        self._users: dict[tuple[str, str], set[JobId]] = {}
        """The jobs of each claim."""
        # A live view of the keys.
        others.claimed = self._users.keys()
        others.moved.clear()

    @property
    def jobs(self) -> Iterable[JobId]:
        """The jobs with known requests."""
        return self._asks.keys()

    def get(self, job: JobId) -> Asks | None:
        return self._asks.get(job)

    def update(self, job: JobId, name: Name) -> Asks | None:
        """Read the requests of a job again; the former ones count until there are new ones."""
        asks = self._asks_of(name) or self._asks.get(job)
        if asks is not None:
            self._replace(job, asks)
        return asks

    def forget(self, job: JobId) -> None:
        """Forget a job that gets no more pods."""
        if job in self._asks:
            self._replace(job, None)

    def _replace(self, job: JobId, asks: Asks | None) -> None:
        before = self._asks.get(job)
        if asks is before:
            return
        for claim in set(before.claims) if before is not None else ():
            self._users[claim].discard(job)
            if not self._users[claim]:
                del self._users[claim]
        if asks is None:
            del self._asks[job]
            return
        self._asks[job] = asks
        for claim in asks.claims:
            self._users.setdefault(claim, set()).add(job)

    def take_moved(self) -> set[JobId]:
        """Return the jobs with a claim that was bound or moved since the last call."""
        moved = self._others.moved
        jobs = {job for claim in moved for job in self._users.get(claim, ())}
        moved.clear()
        return jobs

    def is_bound(self, job: JobId) -> bool:
        """True if every claim of a job has its volume."""
        asks = self._asks.get(job)
        return asks is not None and self._others.bound.issuperset(asks.claims)

    def reaches(self, asks: Asks) -> Iterable[Reach]:
        """Yield for each claimed volume from where it can be reached."""
        for claim in asks.claims:
            volume = self._others.claims.get(claim)
            yield read_reach(claim, volume, terms=self._others.volumes.get(volume or ""))

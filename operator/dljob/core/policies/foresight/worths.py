"""The worth of a GPU to each job after a decision, for the reasons that people read."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from dljob.core.model import JobId
from dljob.core.policies.foresight.bids import Bid
from dljob.core.policies.foresight.choosing import list_options

ALL = 1 << 30
"""More GPUs than any cluster has: no option is left out for want of them."""


class Worths(Mapping[JobId, float]):
    """
    The worth of a GPU by job: what it was exchanged at, what it is worth where it is, or would be.

    Worths of jobs that nothing changes for are found on demand, because thousands may wait
    and a user asks about few. All are counted after the cost of the change that they would take.
    """

    def __init__(
        self, changed: Mapping[JobId, float], bids: Iterable[Bid], *, horizon: float
    ) -> None:
        self._changed = changed
        self._bids = bids
        self._horizon = horizon

    @cached_property
    def _by_job(self) -> Mapping[JobId, Bid]:
        return {bid.state.id: bid for bid in self._bids}

    def __getitem__(self, job: JobId) -> float:
        known = self._changed.get(job)
        if known is not None:
            return known
        bid = self._by_job[job]
        return self._find_kept(bid) if bid.held else self._find_wanted(bid)

    def __iter__(self) -> Iterator[JobId]:
        yield from self._by_job

    def __len__(self) -> int:
        return len(self._by_job)

    def _find_kept(self, bid: Bid) -> float:
        """The least loss of the job with each GPU that it gave up."""
        options = list_options(bid, ALL, horizon=self._horizon)
        kept = next((option for option in options if option[0] == bid.held), None)
        if kept is None:
            return 0.0
        _, most, all_worth = kept
        fewer = ((weight, worth) for _, weight, worth in options if weight < most)
        losses = ((all_worth - worth) / (most - weight) for weight, worth in fewer)
        return max(0.0, min(losses, default=0.0))

    def _find_wanted(self, bid: Bid) -> float:
        """The worth of each GPU of its smallest share to a job that waits."""
        options = list_options(bid, ALL, horizon=self._horizon)
        wanted = ((weight, worth) for gpus, weight, worth in options if gpus)
        weight, worth = next(wanted, (1, 0.0))
        return max(0.0, worth / weight)

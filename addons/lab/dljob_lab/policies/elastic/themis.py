"""Themis: GPUs on leases, auctioned among the jobs whose finish-time fairness is worst."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dljob.core.assuming import Assumes
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import Cause, CauseCode, JobId
from dljob.core.options import check, declare
from dljob_lab.policies.common import knapsack
from dljob_lab.policies.common.sharing import (
    BY_CLAIMS,
    SHORTEST_SECONDS,
    Claim,
    Claims,
    read_claims,
    settle,
)
from dljob_lab.policies.common.speed_curves import make_curve

_NEXT_LEASE = Cause(CauseCode.NEXT_LEASE)

UNSERVED = 1e6
"""How unfair it is to get nothing. The paper has no bound; this one is worse than any share."""


class Leases(NamedTuple):
    """Until when each job has its GPUs for sure."""

    ends: Mapping[JobId, float]


class Bid(NamedTuple):
    """A job that may get GPUs, and its finish-time fairness."""

    claim: Claim
    options: tuple[int, ...]
    """The numbers of GPUs of its curve up to its request."""
    alone: float
    """How many seconds it would have trained in all, alone on what it requested."""
    waited: float
    """How many seconds ago it was submitted."""

    def rho(self, gpus: int) -> float:
        """Finish-time fairness with ``gpus`` GPUs from now on."""
        return (self.waited + self.claim.remaining(gpus)) / self.alone

    @property
    def rank(self) -> tuple[float, int, int]:
        """The worst first; of equals those of higher priority, then those that came first."""
        state = self.claim.state
        return (-self.rho(self.options[-1]), -state.job.priority, state.order)


@dataclass(frozen=True, slots=True)
class Themis:
    """
    GPUs are leased, and what is free or has run out goes to the jobs that are treated worst.

    Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling" (NSDI 2020): the finish-time
    fairness rho of a job is its time from submission to its end in the shared cluster over the time that
    it takes alone. GPUs whose lease has ended, and free ones, are offered to the 1 - ``f`` of the
    jobs without a lease whose rho is worst. They bid with their rho on each number of GPUs up to
    the requested one, and the auction maximises the product of 1 / rho over the bidders
    (exactly, :func:`dljob_lab.policies.common.knapsack.solve`). GPUs that it leaves go to the others, worst first.

    Where the paper leaves room:

    - Alone a job has what it requests, the most that its curve allows of that. The paper's share of one
      over the number of jobs is a factor that all have in common, and changes neither order nor
      auction.
    - What a bidder gets nothing for is bounded by a constant, so that as many bidders as possible are
      served first.
    - The paper withholds a part of each allocation as a payment, because its bidders might lie. Ours
      cannot, for the bids are the scheduler's own predictions; none is withheld.
    - Leftovers go by rho and not at random; in the end also to leased jobs that have less than they
      requested, so that no GPU idles that a job could use. A job has one lease for all its GPUs; it is
      not renewed by such growth.
    - Jobs are asked about when they come, end or reach the end of a lease, not at fixed times. While
      no job has less than it requested, leases end unnoticed.
    - Where a type of GPU matters, each type is auctioned among its own jobs.
    """

    name: ClassVar[str] = "themis"
    paper: ClassVar[str] = "Themis (NSDI '20) 3 to 5"
    needs: ClassVar[str] = "speeds by number of GPUs, iterations"
    assumes: ClassVar[Assumes] = BY_CLAIMS
    breaks: ClassVar[frozenset[Law]] = frozenset()

    lease: float = declare(1200.0, at_least=1.0)
    """How many seconds a job has its GPUs for sure; 20 minutes in the paper."""
    f: float = declare(0.8, at_least=0.0, below=1.0)
    """The share of the jobs that is left out of an auction, those that are treated best."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Auction what is free, type by type, and lease it."""
        old = view.state.ends if isinstance(view.state, Leases) else {}
        leased = {job: end for job, end in old.items() if end > view.now}
        claims = read_claims(view)
        wants: dict[JobId, int] = {}
        for kind, several in claims.by_type.items():
            wants.update(self._auction(several, claims.gpus[kind], leased=leased, now=view.now))
        decision = settle(view, claims, wants=wants)
        # A share without a place is no lease.
        new = {job for job, share in decision.shares.items() if share.nodes is not None}
        held = {claim.state.id for claim in claims if claim.held}
        ends = {
            job: leased.get(job, view.now + self.lease)
            for job in decision.shares
            if job in new or job in held
        }
        ends |= {each.id: leased[each.id] for each in view.beside if each.id in leased}
        waits = _is_any_short(view, claims, shares=decision.shares)
        wake_at = min(ends.values(), default=None) if waits else None
        wait = _NEXT_LEASE if ends else decision.wait
        return replace(decision, wait=wait, state=Leases(ends), wake_at=wake_at)

    def _auction(
        self, claims: Sequence[Claim], gpus: int, *, leased: Mapping[JobId, float], now: float
    ) -> dict[JobId, int]:
        """Let those with a lease have what they have, and the others what they win."""
        holders = [each for each in claims if each.held and each.state.id in leased]
        wants = {claim.state.id: claim.held for claim in holders}
        free = max(0, gpus - sum(wants.values()))
        free_bids = _rank_bids((each for each in claims if each.state.id not in wants), now)
        bidders = free_bids[: math.ceil((1.0 - self.f) * len(free_bids))]
        won = zip(bidders, find_winners(bidders, free), strict=True)
        wants |= {bid.claim.state.id: n for bid, n in won if n}
        left = _give_rest(free_bids, wants, gpus=gpus - sum(wants.values()))
        if left > 0:
            # Mostly nothing is left for them, and they are the most.
            _give_rest(_rank_bids(holders, now), wants, gpus=left)
        return wants


def _rank_bids(claims: Iterable[Claim], now: float) -> list[Bid]:
    """The worst first."""
    return sorted((_make_bid(claim, now) for claim in claims), key=_rank)


def _rank(bid: Bid) -> tuple[float, int, int]:
    return bid.rank


def _make_bid(claim: Claim, now: float) -> Bid:
    state, curve = claim.state, claim.curve
    requested = max(state.job.gpus.requested, curve.least)
    options = curve.options_to(requested)
    left, done = state.remaining_at(now), state.iterations_at(now)
    remaining = claim.remaining(options[-1])
    # Of a job of unknown length, what is left is supposed; then what is done does not count.
    alone = remaining * (1.0 + done / left) if 0.0 < left < math.inf else remaining
    return Bid(claim, options, alone, max(SHORTEST_SECONDS, now - state.job.submitted_at))


def find_winners(bidders: Sequence[Bid], gpus: int) -> list[int]:
    """Return how many GPUs each gets, so that the product of 1 / rho is greatest: the sum of logarithms."""
    curves, prices = [], []
    for bid in bidders:
        gains = [math.log(UNSERVED / min(UNSERVED / 2.0, bid.rho(n))) for n in bid.options]
        curves.append(make_curve(bid.options, gains))
        prices.append(max(gains))
    return knapsack.solve(curves, prices, gpus=gpus)


def _give_rest(bids: list[Bid], wants: dict[JobId, int], *, gpus: int) -> int:
    """Raise these in this order to the number that they requested; return how many GPUs are left."""
    for bid in bids:
        if gpus <= 0:
            break
        has = wants.get(bid.claim.state.id, 0)
        more = max((n for n in bid.options if has < n <= has + gpus), default=has)
        if more > has:
            wants[bid.claim.state.id] = more
            gpus -= more - has
    return gpus


def _is_any_short(view: View, claims: Claims, *, shares: Mapping[JobId, Share]) -> bool:
    """Return whether some job has less than it requested, so that the end of a lease matters to it."""
    if len(shares) < len(view.running) + len(view.pending):
        return True
    return any(shares[c.state.id].gpus < c.state.job.gpus.requested for c in claims)

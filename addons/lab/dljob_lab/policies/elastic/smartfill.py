"""Constant prices: the least total flow time of jobs that are all there."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from dljob.core.assuming import Assumes
from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.model import JobId
from dljob.core.options import check, declare
from dljob_lab.policies.common import pricing
from dljob_lab.policies.common.sharing import (
    BY_CLAIMS,
    Claim,
    read_claims,
    settle_at_prices,
    weigh,
)


@dataclass(frozen=True, slots=True)
class SmartFill:
    """
    GPUs go where the price of a job's speed x the speed that they add is greatest.

    The prices are those of :func:`dljob_lab.policies.common.pricing.find_prices` for the present jobs,
    found again at every decision. For concave speeds and whole GPUs, and as long as nothing arrives,
    that is the schedule with the least total weighted flow time among those that end the jobs in the
    order supposed.

    Where the paper leaves room: the order in which jobs end is supposed to be that of remaining
    time x the root of the speed-up, the time being the geometric mean of those on one GPU and at the
    peak: of these two the first is right on a full cluster and the second on an idle one. Curves are
    replaced by their concave hulls, up to the peak. A job of one step more priority weighs ``base``
    times as much. The prices ignore the cost of a change, and which nodes are free.
    """

    name: ClassVar[str] = "smartfill"
    paper: ClassVar[str] = "SmartFill (arXiv 2509.01811), constant prices"
    needs: ClassVar[str] = "speeds by number of GPUs, iterations"
    assumes: ClassVar[Assumes] = BY_CLAIMS
    breaks: ClassVar[frozenset[Law]] = frozenset()

    base: float = declare(2.0, at_least=1.0, at_most=1000.0)
    """How many times as much a job counts as one whose priority is one lower."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Price all jobs and share each type of GPU out at these prices."""
        claims = read_claims(view)
        priced: dict[JobId, pricing.Priced] = {}
        for kind, several in claims.by_type.items():
            priced.update(self._share_out(several, claims.gpus[kind]))
        return settle_at_prices(view, claims, priced=priced)

    def _share_out(self, claims: list[Claim], gpus: int) -> Iterator[tuple[JobId, pricing.Priced]]:
        weights = [weigh(claim.state, self.base) for claim in claims]
        # Of two that take as long, the one that weighs more ends first.
        keys = [
            math.sqrt(claim.span * claim.alone) / weight
            for claim, weight in zip(claims, weights, strict=True)
        ]
        order = sorted(range(len(claims)), key=lambda i: (keys[i], claims[i].state.order))
        ranked = [claims[i] for i in order]
        curves = [claim.curve for claim in ranked]
        hulls = [curve.steps for curve in curves]
        prices = pricing.find_prices(hulls, [weights[i] for i in order], gpus=gpus)
        counts = pricing.fill(curves, prices, gpus=gpus)
        for claim, price, count in zip(ranked, prices, counts, strict=True):
            yield claim.state.id, pricing.Priced(claim.curve, price, count)

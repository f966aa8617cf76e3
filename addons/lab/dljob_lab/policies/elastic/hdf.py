"""Highest density first, softened: what a GPU adds to a job counts more the nearer the job's end."""

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
class HighestDensityFirst:
    """
    GPUs go one after the other to the job with the most marginal speed x remaining time**-beta.

    With beta 1 that is the density of the job, speed gained for each second left; with 0 it
    maximises the sum of speed-ups, regardless of the sizes of jobs. Under load about 0.3 is best.

    Where the rule leaves room: both are measured against one GPU, or against the beginning of the
    hull of a job that needs more, because speeds in iterations cannot be compared between models
    as soon as beta is not 1. The rule takes steps of concave hulls up to the peak. A job of one
    step more priority counts ``base`` times as much.
    """

    name: ClassVar[str] = "hdf"
    paper: ClassVar[str] = "highest density first, with an exponent"
    needs: ClassVar[str] = "speeds by number of GPUs, iterations"
    assumes: ClassVar[Assumes] = BY_CLAIMS
    breaks: ClassVar[frozenset[Law]] = frozenset()

    beta: float = declare(0.3, at_least=0.0, at_most=4.0)
    """How much the time left matters."""
    base: float = declare(2.0, at_least=1.0, at_most=1000.0)
    """How many times as much a job counts as one whose priority is one lower."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Share each type of GPU out by density."""
        claims = read_claims(view)
        priced: dict[JobId, pricing.Priced] = {}
        for kind, several in claims.by_type.items():
            # Of two that are worth the same, the one that came first.
            several.sort(key=lambda claim: claim.state.order)
            prices = [self._price(claim) for claim in several]
            counts = pricing.fill([c.curve for c in several], prices, gpus=claims.gpus[kind])
            for claim, price, count in zip(several, prices, counts, strict=True):
                priced[claim.state.id] = pricing.Priced(claim.curve, price, count)
        return settle_at_prices(view, claims, priced=priced)

    def _price(self, claim: Claim) -> float:
        """The price of a unit of the job's speed; speeds of a curve are shares of its peak."""
        weight = weigh(claim.state, self.base)
        return float(weight * claim.alone**-self.beta / claim.curve.steps[0].gain)

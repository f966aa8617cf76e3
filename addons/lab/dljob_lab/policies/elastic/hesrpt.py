"""heSRPT: the closed form of the best shares for jobs whose speed is a power of their GPUs."""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dljob.core.assuming import Assumes
from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.model import JobId
from dljob.core.options import check, declare
from dljob.core.policies.common.ordering import BEHIND, keep_all
from dljob_lab.policies.common.sharing import BY_CLAIMS, Claim, read_claims, settle
from dljob_lab.policies.common.speed_curves import Curve

LEAST_EXPONENT, MOST_EXPONENT = 0.05, 0.95
"""Between which the fitted exponent is kept: at 1 the closed form has a pole."""

USUAL_EXPONENT = 0.5
"""Where no job has two options, so that nothing can be fitted."""

MOST_ROUNDS, CLOSE = 8, 1e-3
"""How often the exponent is fitted again, unless it has come so close to itself."""

_ROUNDING = 1e-9


class Known(NamedTuple):
    """Among which jobs what was shared out."""

    jobs: frozenset[JobId]
    gpus: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Hesrpt:
    """
    Of m jobs, the i-th largest has the share (i/m)**c - ((i-1)/m)**c of all GPUs, c = 1 / (1 - p).

    That is optimal for jobs that are all present and whose speed on k GPUs is k**p, with the same p
    for all (Berg, Vesilo and Harchol-Balter, "heSRPT", arXiv 1903.09346, theorem 3): the shorter a
    job the more it gets, and none gets nothing.

    Where the paper leaves room:

    - **p** is the mean, over the jobs of one type of GPU, of the exponents that fit their curves
      best, each by least squares of logarithms, between 0.05 and 0.95. Curves are steep at first and
      flat near their peaks; so each is fitted only as far as the largest share goes that the closed
      form gives with that p, which is found by halving the way. An option sets p instead.
    - **Sizes** are remaining times on one GPU; of a job that needs more, as its concave hull begins.
      Jobs of higher priority count as smaller than all of lower priority.
    - **Whole options**: from the smallest job to the largest, each has the largest option that its
      share and what the jobs before it could not use add up to. So the GPUs that rounding frees go
      to the next larger jobs, and the sum is never more than the cluster has. GPUs that are left at the end,
      because jobs are past their peaks, go to the smallest first, an option at a time.
    - **When**: only when a job has come or gone, or GPUs have. In the paper shares stay the same between,
      because the order of sizes does. Whole options do not let jobs shrink in proportion, and were
      shares found again at each change of that order, restarts would never end.
    """

    name: ClassVar[str] = "hesrpt"
    paper: ClassVar[str] = "heSRPT (arXiv 1903.09346), theorem 3"
    needs: ClassVar[str] = "speeds by number of GPUs, iterations"
    assumes: ClassVar[Assumes] = BY_CLAIMS
    breaks: ClassVar[frozenset[Law]] = frozenset()

    p: float = declare(0.0, at_least=0.0, below=1.0)
    """The exponent of all speeds; 0: it is fitted to their curves."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Share each type of GPU out by the closed form, if it is not as the last time."""
        jobs = frozenset(state.id for states in (view.running, view.pending) for state in states)
        known = Known(jobs, tuple(view.cluster.totals.items()))
        if known == view.state:
            return Decision(keep_all(view.running), wait=BEHIND, state=known)
        claims = read_claims(view)
        wants: dict[JobId, int] = {}
        for kind, several in claims.by_type.items():
            ranked = sorted(several, key=_size)
            gpus = claims.gpus[kind]
            shares = find_shares(len(ranked), self.p or fit_exponent(ranked, gpus))
            counts = round_shares(ranked, shares, gpus=gpus)
            wants.update((c.state.id, n) for c, n in zip(ranked, counts, strict=True) if n)
        return replace(settle(view, claims, wants=wants), state=known)


def _size(claim: Claim) -> tuple[int, float, int]:
    return (-claim.state.job.priority, claim.alone, claim.state.order)


def fit_exponent(claims: Sequence[Claim], gpus: int) -> float:
    """The one p that stands for the curves of all these jobs."""
    alike: dict[int, tuple[Curve, int]] = {}
    for claim in claims:
        _, count = alike.get(id(claim.curve), (claim.curve, 0))
        alike[id(claim.curve)] = claim.curve, count + 1
    if not alike:
        return USUAL_EXPONENT
    p = _average_exponents(alike.values(), gpus / len(claims))
    for _ in range(MOST_ROUNDS):
        widest = gpus * find_largest_share(len(claims), p)
        fitted = _average_exponents(alike.values(), widest)
        if abs(fitted - p) < CLOSE:
            break
        p = (p + fitted) / 2.0
    return p


def _average_exponents(alike: Iterable[tuple[Curve, int]], most: float) -> float:
    fitted = [(p, n) for curve, n in alike if (p := curve.fit_exponent(most)) is not None]
    if not fitted:
        return USUAL_EXPONENT
    mean = sum(p * n for p, n in fitted) / sum(n for _, n in fitted)
    return min(MOST_EXPONENT, max(LEAST_EXPONENT, mean))


def find_largest_share(jobs: int, exponent: float) -> float:
    """The share of the smallest of ``jobs`` jobs."""
    return float(1.0 - ((jobs - 1) / jobs) ** (1.0 / (1.0 - exponent)))


def find_shares(jobs: int, exponent: float) -> list[float]:
    """The shares of ``jobs`` jobs, from the smallest job, which has the largest share, to the largest."""
    c = 1.0 / (1.0 - exponent)
    ranks = [(rank / max(1, jobs)) ** c for rank in range(jobs, -1, -1)]
    return [upper - lower for upper, lower in itertools.pairwise(ranks)]


def round_shares(claims: Sequence[Claim], shares: Sequence[float], *, gpus: int) -> list[int]:
    """Make whole options of shares, from the smallest job to the largest."""
    counts: list[int] = []
    due = 0.0
    for claim, share in zip(claims, shares, strict=True):
        due += share * gpus
        options = claim.curve.options
        fits = bisect_right(options, due + _ROUNDING)
        counts.append(options[fits - 1] if fits else 0)
        due -= counts[-1]
    left = gpus - sum(counts)
    grown = True
    while grown and left > 0:
        grown = False
        for i, claim in enumerate(claims):
            higher = next((o for o in claim.curve.options if o > counts[i]), None)
            if higher is not None and higher - counts[i] <= left:
                left -= higher - counts[i]
                counts[i], grown = higher, True
            if left == 0:
                break
    return counts

"""Lyra's elastic phase: the least of each job first, then a knapsack over what more GPUs would save."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from dljob.core.assuming import Assumes
from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.model import JobId
from dljob.core.options import check
from dljob_lab.policies.common import knapsack
from dljob_lab.policies.common.sharing import BY_CLAIMS, Claim, read_claims, settle
from dljob_lab.policies.common.speed_curves import Curve, make_curve


@dataclass(frozen=True, slots=True)
class Lyra:
    """
    Admit jobs with their least by remaining time, then share what is left by the time that it saves.

    Li et al., "Lyra: Elastic Scheduling for Deep Learning Clusters" (EuroSys 2023), section 5: jobs
    come in the order of the time that they need yet on the least that they can run on; one that does
    not fit is passed. Of what is left, (job, e GPUs more) saves the job rem(least) - rem(least + e)
    seconds, and the choices that save most together are found exactly
    (:func:`dljob_lab.policies.common.knapsack.solve`; beyond its limit, greedily).

    Where the paper leaves room: running and waiting jobs are in one order, so that a short job stops
    a long one. The paper's own cluster stops a job only when borrowed servers are called back; with
    ``preempts=false`` running jobs come before all that wait, and are only made smaller. Jobs of
    higher priority come first; in the knapsack all count alike. The paper decides periodically and
    this policy at every event. The paper's base demand is what the user of an elastic job asks for, and
    here the least that the job can run on. Where jobs could do with a single GPU, that lets all of them
    in with one each, and the longest get nearly all the rest, because they save most seconds; with
    ``requested=true`` jobs come in with the number that they requested.
    """

    name: ClassVar[str] = "lyra"
    paper: ClassVar[str] = "Lyra (EuroSys '23) 5, elastic phase"
    needs: ClassVar[str] = "speeds by number of GPUs, iterations"
    assumes: ClassVar[Assumes] = BY_CLAIMS
    breaks: ClassVar[frozenset[Law]] = frozenset()

    preempts: bool = True
    """True if a job that needs less time yet takes the place of a running one."""
    requested: bool = False
    """True if a job comes in with the number that it requested, and not with the least that it can run on."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Admit, then share out, for each type of GPU."""
        claims = read_claims(view)
        wants: dict[JobId, int] = {}
        for kind, several in claims.by_type.items():
            based = map(_base_on_request, several) if self.requested else several
            admitted, left = self._admit(based, claims.gpus[kind])
            more = find_more(admitted, left)
            wants.update(
                (claim.state.id, claim.curve.least + extra)
                for claim, extra in zip(admitted, more, strict=True)
            )
        return settle(view, claims, wants=wants)

    def _admit(self, claims: Iterable[Claim], gpus: int) -> tuple[list[Claim], int]:
        """Give the least to those that come first; return them, and how many GPUs are left."""
        admitted: list[Claim] = []
        for claim in sorted(claims, key=self._rank):
            least = claim.curve.least
            if least <= gpus or (claim.held and not self.preempts):
                admitted.append(claim)
                gpus -= least
        return admitted, max(0, gpus)

    def _rank(self, claim: Claim) -> tuple[bool, int, float, int]:
        state = claim.state
        waits = not self.preempts and not claim.held
        return (waits, -state.job.priority, claim.remaining(claim.curve.least), state.order)


def _base_on_request(claim: Claim) -> Claim:
    """The same job, as if it could run on no less than it requested."""
    return claim._replace(curve=_cut(claim.curve, claim.state.job.gpus.requested))


# Few kinds of jobs are many jobs, and what is concluded from a curve stays with it.
@lru_cache(maxsize=4096)
def _cut(curve: Curve, gpus: int) -> Curve:
    """The part of the curve from its largest option up to ``gpus`` on."""
    first = max(0, len(curve.options_to(gpus)) - 1)
    return make_curve(curve.options[first:], curve.speeds[first:])


def find_more(claims: list[Claim], gpus: int) -> list[int]:
    """Return how many GPUs beyond its least each job gets."""
    savings: dict[int, Curve | None] = {}
    elastic: list[tuple[int, Curve, float]] = []
    for i, claim in enumerate(claims):
        curve = claim.curve
        if id(curve) not in savings:
            savings[id(curve)] = _make_savings(curve)
        saving = savings[id(curve)]
        if saving is not None:
            # At its peak the curve is 1, which stands for this saving.
            elastic.append((i, saving, claim.remaining(curve.least) - claim.span))
    more = [0] * len(claims)
    if gpus > 0 and elastic:
        found = knapsack.solve([c for _, c, _ in elastic], [s for _, _, s in elastic], gpus=gpus)
        for (i, _, _), extra in zip(elastic, found, strict=True):
            more[i] = extra
    return more


def _make_savings(curve: Curve) -> Curve | None:
    """The saving by GPUs beyond the least, as a share of the saving at the peak."""
    options = [option - curve.least for option in curve.options[1:]]
    saved = [1.0 / curve.speeds[0] - 1.0 / speed for speed in curve.speeds[1:]]
    return make_curve(options, saved) if options else None

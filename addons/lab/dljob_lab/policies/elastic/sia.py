"""Sia: in rounds, the choice of configurations by an integer programme."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from dljob.core.assuming import GUESSES, USUAL_CURVE, Assumes, Knowledge
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import JobId
from dljob.core.options import check, declare
from dljob.core.policies.common.ordering import NEXT_ROUND, keep_all
from dljob_lab.policies.common import knapsack
from dljob_lab.policies.common.sharing import (
    Claim,
    Claims,
    read_claims,
    settle,
)
from dljob_lab.policies.common.speed_curves import Curve, make_curve

DECIMALS = 2
"""To which the released programme rounds its costs; many are equal then."""


Point = tuple[int, float]
"""A number of GPUs, and the speed on them or the cost."""


class Rounds(NamedTuple):
    """The policy's memory from one decision to the next."""

    next_at: float
    """When the next round begins."""
    restarts: Mapping[JobId, int]
    """How often each job was given other GPUs than it had."""
    most: Mapping[JobId, int]
    """The most GPUs that each job ever had."""


class Choice(NamedTuple):
    """One configuration that one job may get."""

    job: int
    """Its place among the claims."""
    gpus: int
    claim: Claim
    """The job on the type of GPU that it would get."""
    cost: float
    """Its cost in the programme; less is better."""


@dataclass(frozen=True, slots=True)
class Sia:
    """
    Every minute, give each job the configuration with which the sum of inverse root speed-ups is least.

    Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling"
    (SOSP 2023), section 3.4, with the rules of the released programme. It minimises the sum of
    A**power over the jobs served plus ``penalty`` for each that is not, where A is a job's speed in a
    configuration over its slowest one. Configurations are powers of two within a node, then whole
    nodes. For each other than the present one, A is multiplied by max(age - n S, 0) / (age + S) as soon as
    a job is older than a restart S takes, n being its restarts so far. A**power is rounded to two
    decimals, and a job grows at most to twice the most GPUs that it had; it starts with its least.

    Where the paper and the programme leave room:

    - Speed is speed, not goodput: the batch size stays the user's.
    - The factor for restarts counts for jobs that have GPUs. Age is counted from submission; S is what a
      change is predicted to cost the job.
    - A running job keeps its type of GPU; a pending one may get any that it accepts.
    - Rounding makes many choices alike, and sizes do not count, so that it matters which of equals is
      served: of long jobs and many, the average completion time is a quarter less where the last to
      come is, as branch and bound by HiGHS happens to choose too, than where the first is.
    - A job that allows none of the configurations may have its own options instead.
    - Rounds are multiples of ``period``; the first decision of all, and the first after a pause in
      which no job was there, come at once. In between, nothing changes.

    The brain has no clock, so that the limits are of work and not of time. Where there is one type of GPU,
    the programme is a knapsack (:mod:`dljob_lab.policies.common.knapsack`); for several, a search of at
    most ``nodes`` nodes, which ends when it is proven to be within ``gap`` of the optimum. It is about at
    most ``jobs`` jobs. If there are more, pending ones come first in order of arrival, up to half; running ones
    take turns from round to round, and keep what they have when it is not theirs. A search that finds
    nothing within its limits is replaced by greed.
    """

    name: ClassVar[str] = "sia"
    paper: ClassVar[str] = "Sia (SOSP '23) 3.4, as released"
    needs: ClassVar[str] = "speeds by number of GPUs"
    assumes: ClassVar[Assumes] = {Knowledge.SPEED: USUAL_CURVE, Knowledge.MEASURED: GUESSES}
    breaks: ClassVar[frozenset[Law]] = frozenset()

    period: float = declare(60.0, at_least=1.0)
    """How many seconds a round takes."""
    power: float = declare(-0.5, at_least=-10.0, below=0.0)
    """Below 0: the lower, the more a job counts that is far from its fastest."""
    penalty: float = declare(1.1, above=0.0)
    """The cost of a job that gets nothing."""
    jobs: int = declare(1000, at_least=2, at_most=100_000)
    """Among how many jobs a round decides."""
    nodes: int = declare(1000, at_least=1, at_most=1_000_000)
    """How many nodes the search may look at."""
    ties: str = declare("last", words=("first", "last"))
    """Which of jobs that count alike is served: the one that came "first" or "last"."""
    gap: float = declare(0.0, at_least=0.0, below=1.0)
    """How far from the optimum the search may end, as a share of it."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Decide if a round begins; else leave everything as it is."""
        old = view.state if isinstance(view.state, Rounds) else Rounds(view.now, {}, {})
        if view.now < old.next_at:
            shares = keep_all(view.running)
            return Decision(shares, wait=NEXT_ROUND, state=old, wake_at=_wake(view, old))
        claims = read_claims(view, elsewhere=True)
        chosen, wants = self._choose(view, claims, old=old)
        next_at = (math.floor(view.now / self.period) + 1.0) * self.period
        decision = settle(view, claims.replace(chosen), wants=wants)
        new = _remember(view, old, shares=decision.shares, next_at=next_at)
        # Jobs without a share wait for the same reason as jobs that arrive before the next round.
        return replace(decision, wait=NEXT_ROUND, state=new, wake_at=_wake(view, new))

    def _choose(
        self, view: View, claims: Claims, *, old: Rounds
    ) -> tuple[list[Claim], dict[JobId, int]]:
        """Which type of GPU each job is to have, and how many of it."""
        several, turn = list(claims), int(view.now // self.period)
        taking = set(self._take_turns(several, turn))
        left = dict(claims.gpus)
        wants: dict[JobId, int] = {}
        for i, claim in enumerate(several):
            if i not in taking and claim.held:
                wants[claim.state.id] = claim.held
                left[claim.gpu_type] -= claim.held
        choices: list[Choice] = []
        # Equals are served in the order of their choices.
        by_age = {"first": 1, "last": -1}[self.ties]
        for i in sorted(taking, key=lambda i: by_age * several[i].state.order):
            there = [several[i], *claims.elsewhere.get(several[i].state.id, ())]
            choices += self._list_choices(view, i, there=there, old=old)
        for choice in solve(choices, left, penalty=self.penalty, nodes=self.nodes, gap=self.gap):
            several[choice.job] = choice.claim
            wants[choice.claim.state.id] = choice.gpus
        return several, wants

    def _take_turns(self, claims: Sequence[Claim], turn: int) -> Iterable[int]:
        """The jobs about which this round decides."""
        if len(claims) <= self.jobs:
            return range(len(claims))
        waiting = [i for i, claim in enumerate(claims) if not claim.held]
        running = [i for i, claim in enumerate(claims) if claim.held]
        first = waiting[: max(self.jobs // 2, self.jobs - len(running))]
        most = self.jobs - len(first)
        start = turn * most % max(1, len(running))
        return [*first, *(running[start:] + running[:start])[:most]]

    def _list_choices(
        self, view: View, i: int, *, there: Sequence[Claim], old: Rounds
    ) -> Iterator[Choice]:
        """The configurations of a job, on all of these types, that are better than none."""
        allowed = [(claim, _list_configurations(view, claim)) for claim in there]
        # A speed over the time at the peak is the part of the remaining work that a second does, which types share.
        slowest = min(points[0][1] / claim.span for claim, points in allowed)
        for claim, points in allowed:
            factor = _find_restart_factor(view, claim, old=old)
            held, span = claim.held, claim.span
            most = max(2 * max(old.most.get(claim.state.id, 0), held), points[0][0])
            for gpus, speed in points:
                if gpus > most:
                    break
                ratio = speed / span / slowest
                ratio *= 1.0 if gpus == held else factor
                cost = round(ratio**self.power, DECIMALS) if ratio > 0.0 else math.inf
                if cost < self.penalty:
                    yield Choice(i, gpus, claim, cost)


def _wake(view: View, rounds: Rounds) -> float | None:
    return rounds.next_at if view.running or view.pending else None


def _list_configurations(view: View, claim: Claim) -> tuple[Point, ...]:
    """The numbers of GPUs that the job may have of those that Sia gives, with the speeds on them."""
    node = view.cluster.largest_node[claim.gpu_type]
    return _choose_configurations(claim.curve.options, claim.curve.speeds, node=node)


@lru_cache(maxsize=4096)
def _choose_configurations(
    options: tuple[int, ...], speeds: tuple[float, ...], *, node: int
) -> tuple[Point, ...]:
    points = tuple(zip(options, speeds, strict=True))
    known = [(n, s) for n, s in points if n % node == 0 or (n < node and n & (n - 1) == 0)]
    return tuple(known) or points


def _find_restart_factor(view: View, claim: Claim, *, old: Rounds) -> float:
    """Return the factor by which a change is worth less to a job, because it may be changed as often again."""
    state = claim.state
    if state.placement is None:
        return 1.0
    age = view.now - state.job.submitted_at
    cost = view.predictor.change_cost(state, state.placement.shape)
    if age <= 0.0 or age < cost:
        return 1.0
    return max(0.0, age - old.restarts.get(state.id, 0) * cost) / (age + cost)


def _remember(view: View, old: Rounds, *, shares: Mapping[JobId, Share], next_at: float) -> Rounds:
    restarts: dict[JobId, int] = {}
    most: dict[JobId, int] = {}
    for states in (view.running, view.beside, view.pending):
        for state in states:
            had = state.placement.shape.gpus if state.placement is not None else 0
            share = shares.get(state.id)
            has = share.gpus if share is not None else 0
            began = state.id in old.most or had > 0
            if began or has:
                most[state.id] = max(old.most.get(state.id, 0), had, has)
                restarts[state.id] = old.restarts.get(state.id, 0) + (began and has not in (0, had))
    return Rounds(next_at, restarts, most)


# --- the programme ------------------------------------------------------------------------


def solve(
    choices: Sequence[Choice], gpus: Mapping[str, int], *, penalty: float, nodes: int, gap: float
) -> list[Choice]:
    """
    Take at most one choice of each job and no more GPUs of a type than there are, at the least cost.

    A job without a choice costs ``penalty``, which is more than any choice costs. With one type of
    GPU the programme is a knapsack, and solved as one.
    """
    if not choices:
        return []
    if len({choice.claim.gpu_type for choice in choices}) == 1:
        return _pack(choices, gpus[choices[0].claim.gpu_type], penalty=penalty)
    return _search(choices, gpus, penalty=penalty, nodes=nodes, gap=gap)


def _pack(choices: Sequence[Choice], gpus: int, *, penalty: float) -> list[Choice]:
    """Return the same for one type: what is saved against the penalty is to add up to the most."""
    by_job: dict[int, list[Choice]] = {}
    for choice in choices:
        by_job.setdefault(choice.job, []).append(choice)
    programme = tuple([tuple([(c.gpus, c.cost) for c in several]) for several in by_job.values()])
    counts = _find_counts(programme, max(0, gpus), penalty=penalty)
    chosen = zip(by_job.values(), counts, strict=True)
    return [choice for several, n in chosen for choice in several if choice.gpus == n]


@lru_cache(maxsize=64)
def _find_counts(
    programme: tuple[tuple[Point, ...], ...], gpus: int, *, penalty: float
) -> tuple[int, ...]:
    """Return how many GPUs each job gets; costs are rounded, so that most rounds pose the programme of the one before."""
    curves, prices = [], []
    for several in programme:
        savings = tuple([penalty - cost for _, cost in several])
        curves.append(_make_curve(tuple([count for count, _ in several]), savings))
        prices.append(max(savings))
    return tuple(knapsack.solve(curves, prices, gpus=gpus))


@lru_cache(maxsize=16384)
def _make_curve(gpus: tuple[int, ...], savings: tuple[float, ...]) -> Curve:
    """Make the same curve once, because there are few different ones."""
    return make_curve(gpus, savings)


def _search(
    choices: Sequence[Choice], gpus: Mapping[str, int], *, penalty: float, nodes: int, gap: float
) -> list[Choice]:
    """Return the same for several types, by branch and bound."""
    # An extra brings scipy, and the other policies need to be importable without it.
    from scipy import optimize, sparse  # noqa: PLC0415

    jobs = {job: row for row, job in enumerate(dict.fromkeys(c.job for c in choices))}
    kinds = {kind: len(jobs) + row for row, kind in enumerate(gpus)}
    columns = np.tile(np.arange(len(choices)), 2)
    rows = [jobs[c.job] for c in choices] + [kinds[c.claim.gpu_type] for c in choices]
    sizes = np.array([1.0] * len(choices) + [float(c.gpus) for c in choices])
    limits = np.array([1.0] * len(jobs) + [max(0.0, float(n)) for n in gpus.values()])
    matrix = sparse.csr_array((sizes, (rows, columns)), shape=(len(limits), len(choices)))
    # Without presolving: what that leaves may need repair, of which the solver prints a line.
    result = optimize.milp(
        np.array([c.cost - penalty for c in choices]),
        integrality=np.ones(len(choices)),
        bounds=optimize.Bounds(0.0, 1.0),
        constraints=optimize.LinearConstraint(matrix, ub=limits),
        options={"node_limit": nodes, "mip_rel_gap": gap, "presolve": False},
    )
    if result.x is None:
        return take_greedily(choices, gpus, penalty=penalty)
    return [choice for choice, taken in zip(choices, result.x, strict=True) if taken > 0.5]


def take_greedily(
    choices: Sequence[Choice], gpus: Mapping[str, int], *, penalty: float
) -> list[Choice]:
    """The same by the saving of each choice for each GPU, without looking back."""
    left = dict(gpus)
    taken: dict[int, Choice] = {}
    for choice in sorted(choices, key=lambda c: ((c.cost - penalty) / c.gpus, c.job, c.gpus)):
        if choice.job not in taken and choice.gpus <= left[choice.claim.gpu_type]:
            taken[choice.job] = choice
            left[choice.claim.gpu_type] -= choice.gpus
    return list(taken.values())

"""
The common part of the policies that first decide for all jobs how many GPUs each should have.

A policy reads the jobs as claims (:func:`read_claims`), decides numbers type by type, and lets
:func:`settle` make shares of them: that asks where they would fit, gives less where they do not, and
names the causes. The policies know nothing of nodes.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dljob.core.assuming import AS_LONG_AGAIN, GUESSES, USUAL_CURVE, Assumes, Knowledge
from dljob.core.contract import Decision, Share, View
from dljob.core.model import Cause, CauseCode, JobId, JobState, NodeName, Placement
from dljob.core.placement.counting import count_nodes, count_usable
from dljob.core.placement.free_gpus import Room, grow
from dljob.core.placement.largest import acceptable_types, largest_possible
from dljob.core.policies.common.ordering import BEHIND, keep, keep_all
from dljob.core.predicting.conclusions import Kept
from dljob.core.predicting.growths import usual_growth
from dljob.core.predicting.predictor import SUPPOSED_S
from dljob.core.profiles import JobType
from dljob_lab.policies.common.pricing import Priced, Worths
from dljob_lab.policies.common.speed_curves import Curve, make_curve

BY_CLAIMS: Assumes = {
    Knowledge.LENGTH: AS_LONG_AGAIN,
    Knowledge.SPEED: f"{USUAL_CURVE}, and needs an hour yet until it trains",
    Knowledge.MEASURED: GUESSES,
}
"""The fallbacks of the policies that share GPUs by claims."""

_ITS_TURN = Cause(CauseCode.ITS_TURN)
_FAIR_SHARE = Cause(CauseCode.FAIR_SHARE)
_FASTER_WITH_MORE = Cause(CauseCode.FASTER_WITH_MORE)
_FASTER_WITH_FEWER = Cause(CauseCode.FASTER_WITH_FEWER)

SHORTEST_SECONDS = 1.0
"""No job counts as nearer to its end than that, so that divisions by the remaining time stay finite."""

MOST_PRIORITY = 20
"""Priorities count up to this many steps up or down, so that weights stay ordinary numbers."""


class Claim(NamedTuple):
    """A job as these policies see it, with GPUs or without."""

    state: JobState
    gpu_type: str
    curve: Curve
    span: float
    """How many seconds it would train yet at the peak of its curve."""

    @property
    def held(self) -> int:
        """Return how many GPUs it has."""
        return self.state.placement.shape.gpus if self.state.placement is not None else 0

    def remaining(self, gpus: int) -> float:
        """The seconds that it would still train on ``gpus`` GPUs."""
        return self.span / self.curve.speed(gpus)

    @property
    def alone(self) -> float:
        """Return how many seconds it would train yet on one GPU; of a wider job, as its hull begins."""
        return self.span / self.curve.steps[0].gain


@dataclass(frozen=True, slots=True)
class Claims:
    """All that take part in a decision."""

    by_type: Mapping[str, list[Claim]]
    """Jobs that have GPUs before those that wait, each in order of arrival."""
    gpus: Mapping[str, int]
    """How many GPUs of each type they share."""
    fixed: list[JobState] = field(default_factory=list)
    """Running jobs that keep what they have: on several types, or on GPUs that no other job may get."""
    odd: list[JobState] = field(default_factory=list)
    """Pending jobs that no single type suffices for."""
    elsewhere: Mapping[JobId, list[Claim]] = field(default_factory=dict)
    """The claims of pending jobs on the other types that they accept."""

    def replace(self, chosen: Iterable[Claim]) -> "Claims":
        """Return the same with these claims in the stead of those of all jobs."""
        by_type: dict[str, list[Claim]] = {kind: [] for kind in self.by_type}
        for claim in chosen:
            by_type[claim.gpu_type].append(claim)
        return Claims(by_type, self.gpus, self.fixed, self.odd)

    def __iter__(self) -> Iterator[Claim]:
        for claims in self.by_type.values():
            yield from claims


def weigh(state: JobState, base: float) -> float:
    """The weight of a job: ``base`` times as much with each step of priority."""
    return float(base ** max(-MOST_PRIORITY, min(MOST_PRIORITY, state.job.priority)))


# --- claims -------------------------------------------------------------------------------


def read_claims(view: View, *, elsewhere: bool = False) -> Claims:
    """
    Read all jobs as claims on one type of GPU each, and if asked what they would be on others.

    A running job keeps its type. A pending one is taken to the acceptable type on which it would
    be fastest with an equal share of that type's GPUs, of the jobs seen so far.
    """
    reading = _Reading(view, elsewhere=elsewhere)
    for state in view.running:
        reading.add_running(state)
    for block in view.pending.blocks:
        for state in block:
            reading.add_pending(state)
    return Claims(reading.by_type, reading.gpus, reading.fixed, reading.odd, reading.elsewhere)


class _Curves:
    """The curves of jobs, for as long as the profiles and the cluster are the same."""

    def __init__(self, view: View) -> None:
        self.profiles = view.predictor.profiles
        self.cluster = view.cluster
        self.curves: dict[tuple[JobType, str, tuple[int, ...], int], tuple[Curve | None, bool]] = {}
        """With each whether it comes from any knowledge."""
        self.limits: dict[tuple[str, int | None], int] = {}

    def suits(self, view: View) -> bool:
        """Return whether this is about the same things."""
        return self.profiles is view.predictor.profiles and self.cluster is view.cluster


_kept: Kept[_Curves] = Kept(most=8)


class _Reading:
    """Claims while they are read; jobs that are alike share a curve."""

    def __init__(self, view: View, *, elsewhere: bool) -> None:
        self.view = view
        self.reads_elsewhere = elsewhere
        self.by_type: dict[str, list[Claim]] = {kind: [] for kind in view.cluster.types}
        self.gpus = dict(view.cluster.totals)
        self.fixed: list[JobState] = []
        self.odd: list[JobState] = []
        self.elsewhere: dict[JobId, list[Claim]] = {}
        self._known = _kept.recall(lambda curves: curves.suits(view), lambda: _Curves(view))

    def add_running(self, state: JobState) -> None:
        assert state.placement is not None
        cluster, kind = self.view.cluster, state.placement.gpu_type
        claim = self._claim(state, kind) if kind in self.gpus else None
        if claim is not None and (
            cluster.flawless or any(count_usable(state.placement, cluster).values())
        ):
            self.by_type[kind].append(claim)
            return
        self.fixed.append(state)
        for node, gpus in count_usable(state.placement, cluster).items():
            self.gpus[cluster.by_name[node].gpu_type] -= gpus

    def add_pending(self, state: JobState) -> None:
        kinds = self.view.cluster.types
        if len(kinds) > 1 or state.picky:
            kinds = acceptable_types(state, self.view.cluster)
        kinds = tuple(kind for kind in kinds if self._limit(state, kind) >= state.least)
        kind = kinds[0] if len(kinds) == 1 else self._fastest(state, kinds)
        claim = self._claim(state, kind) if kind is not None else None
        if claim is None:
            self.odd.append(state)
            return
        self.by_type[claim.gpu_type].append(claim)
        if self.reads_elsewhere and len(kinds) > 1:
            others = [self._claim(state, other) for other in kinds if other != kind]
            self.elsewhere[state.id] = [other for other in others if other is not None]

    def _fastest(self, state: JobState, kinds: Iterable[str]) -> str | None:
        predictor, best = self.view.predictor, (-1.0, 0.0)
        chosen: str | None = None
        for kind in kinds:
            fair = self.gpus[kind] / (len(self.by_type[kind]) + 1)
            most = min(max(fair, state.least), self._limit(state, kind))
            options = state.job.gpus.options
            gpus = options[bisect_right(options, most) - 1]
            rated = (predictor.speed(state.job, predictor.shape(gpus, kind)), fair)
            if rated > best:
                best, chosen = rated, kind
        return chosen

    def _limit(self, state: JobState, kind: str) -> int:
        """Return how many GPUs of a type the job could have in an empty cluster."""
        if state.picky or state.needs is not None:
            return largest_possible(state, self.view.cluster, gpu_type=kind)
        key = (kind, state.job.gpus.max_nodes)
        known = self._known.limits.get(key)
        if known is None:
            known = self._known.limits[key] = largest_possible(
                state, self.view.cluster, gpu_type=kind
            )
        return known

    def _claim(self, state: JobState, kind: str) -> Claim | None:
        limit = self._limit(state, kind)
        key = (state.job.type, kind, state.job.gpus.options, limit)
        found = self._known.curves.get(key)
        if found is None:
            found = self._known.curves[key] = self._draw(state, kind, limit=limit)
        curve, is_known = found
        if curve is None:
            return None
        return Claim(
            state, kind, curve, self._find_span(state, kind, curve=curve, is_known=is_known)
        )

    def _draw(self, state: JobState, kind: str, *, limit: int) -> tuple[Curve | None, bool]:
        """The curve of the options that are possible, and whether it comes from any knowledge."""
        options = [option for option in state.job.gpus.options if option <= limit]
        if not options:
            return None, False
        predictor = self.view.predictor
        speeds = [predictor.speed(state.job, predictor.shape(o, kind)) for o in options]
        if speeds[0] > 0.0:
            return make_curve(options, speeds), True
        # Only its allowed numbers are known: assume that it gains as the usual job does.
        return make_curve(options, [usual_growth(options[0], o) for o in options]), False

    def _find_span(self, state: JobState, kind: str, *, curve: Curve, is_known: bool) -> float:
        predictor, now = self.view.predictor, self.view.now
        if is_known:
            span = predictor.training_time(state, predictor.shape(curve.peak, kind), now=now)
            return max(SHORTEST_SECONDS, span)
        held = state.placement.shape if state.placement is not None else None
        if held is not None and state.speed > 0.0 and not state.adjusting:
            # Its measured speed shows how long it takes in its present shape.
            here = predictor.training_time(state, held, now=now)
            return max(SHORTEST_SECONDS, here * max(curve.speed(held.gpus), curve.speeds[0]))
        return SUPPOSED_S * curve.speeds[0]


# --- shares -------------------------------------------------------------------------------


def settle(view: View, claims: Claims, *, wants: Mapping[JobId, int]) -> Decision:
    """
    Make shares of the numbers of GPUs that jobs should have; a job not named should have none.

    Jobs that keep or lose GPUs stay where they are. The others are placed next to them, the widest
    first, because narrow ones find room in what those leave. Where a number has no place, the next
    lower option is tried that is more than the job has. GPUs that were to be taken from a job and went
    to no other stay with it. GPUs that are left go to jobs that are odd, or that wait for another
    type.
    """
    settling = _Settling(view)
    settling.keep_running(claims, wants)
    settling.place_takers(claims, wants)
    settling.spare_losers(claims, wants)
    if claims.odd or len(view.cluster.types) > 1:
        settling.serve_others(claims)
    return Decision(settling.shares, wait=BEHIND)


def settle_at_prices(view: View, claims: Claims, *, priced: Mapping[JobId, Priced]) -> Decision:
    """Make shares of the GPUs that jobs were given at their prices, and state the worth of a GPU to each."""
    wants = {job: each.given for job, each in priced.items() if each.given}
    return replace(settle(view, claims, wants=wants), worths=Worths(priced))


class _Settling:
    """Shares and the room next to them."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.shares: dict[JobId, Share] = {}
        self.room: Room
        """There since :meth:`keep_running`."""

    def keep_running(self, claims: Claims, wants: Mapping[JobId, int]) -> None:
        """Count what running jobs go on with, before anything is given."""
        kept = list(claims.fixed)
        fewer: list[tuple[Claim, int]] = []
        for claim in claims:
            if claim.state.placement is None:
                continue
            gpus = wants.get(claim.state.id, 0)
            if gpus >= claim.held:
                kept.append(claim.state)
            elif gpus > 0:
                fewer.append((claim, gpus))
        self.shares = keep_all(kept)
        self.room = Room(self.view.cluster, [s.placement for s in kept if s.placement is not None])
        for claim, gpus in fewer:
            self._shrink(claim, gpus)

    def _shrink(self, claim: Claim, gpus: int) -> None:
        placement = claim.state.placement
        assert placement is not None
        nodes = withdraw(placement, gpus)
        good = count_usable(placement, self.view.cluster)
        self.room.take({node: min(count, good[node]) for node, count in nodes.items()})
        own = claim.held > claim.curve.peak >= gpus and self._is_slower(claim, gpus)
        cause = _FASTER_WITH_FEWER if own else _FAIR_SHARE
        self.shares[claim.state.id] = Share(gpus, cause, claim.gpu_type, nodes)

    def _is_slower(self, claim: Claim, gpus: int) -> bool:
        """Return whether the job is known to be slower with its GPUs than with fewer GPUs."""
        predictor, job = self.view.predictor, claim.state.job
        here = predictor.speed(job, predictor.shape(claim.held, claim.gpu_type))
        return here < predictor.speed(job, predictor.shape(gpus, claim.gpu_type))

    def place_takers(self, claims: Claims, wants: Mapping[JobId, int]) -> None:
        """Find places for those that get more than they have."""
        takers = [
            (claim, gpus) for claim in claims if (gpus := wants.get(claim.state.id, 0)) > claim.held
        ]
        # Equally wide ones stay in order, because sorting is stable.
        for claim, gpus in sorted(takers, key=lambda taker: -taker[1]):
            options = (o for o in reversed(claim.curve.options) if claim.held < o <= gpus)
            placed = any(self._place(claim, option) for option in options)
            if not placed and claim.state.placement is None:
                # Without a place, so that placing says why there is none.
                self.shares[claim.state.id] = Share(claim.curve.least, gpu_type=claim.gpu_type)

    def _place(self, claim: Claim, gpus: int) -> bool:
        state, kind = claim.state, claim.gpu_type
        placement = state.placement
        if placement is None:
            fit = self.room.find(state, gpus, kind)
            if fit is None:
                return False
            self.room.take(fit.nodes, state)
            self.shares[state.id] = Share(gpus, _ITS_TURN, kind, fit.nodes)
            return True
        nodes = grow(self.room, state, count_nodes(placement), kind, gpus)
        if nodes is None:
            return False
        good = count_usable(placement, self.view.cluster)
        self.room.give(good)
        self.room.take(_count_good(placement, nodes, good=good), state)
        # To the end of the shares, whose order is the order of placing.
        del self.shares[state.id]
        self.shares[state.id] = Share(gpus, _FASTER_WITH_MORE, kind, nodes)
        return True

    def spare_losers(self, claims: Claims, wants: Mapping[JobId, int]) -> None:
        """Let those keep what they have whose GPUs were taken away for a job that found no place."""
        for claim in claims:
            placement = claim.state.placement
            if placement is None or wants.get(claim.state.id, 0) >= claim.held:
                continue
            share = self.shares.get(claim.state.id)
            if share is not None and share.cause is _FASTER_WITH_FEWER:
                continue
            good = count_usable(placement, self.view.cluster)
            left = (share.nodes if share is not None else None) or {}
            lost = {node: count - min(count, left.get(node, 0)) for node, count in good.items()}
            if self.room.has(lost):
                self.room.take(lost)
                self.shares[claim.state.id] = keep(claim.held)

    def serve_others(self, claims: Claims) -> None:
        """Give what is left to jobs without GPUs, of any type that they accept."""
        waiting = (c.state for c in claims if c.state.placement is None)
        vain: set[tuple[object, ...]] = set()
        for state in (*claims.odd, *waiting):
            if self.room.total == 0:
                return
            share = self.shares.get(state.id)
            if state.least > self.room.total or (share is not None and share.nodes is not None):
                continue
            # The room only shrinks here, and hundreds that wait for the same may be asked about.
            demand = state.job.gpus
            asked = (state.least, demand.types, demand.mixed, demand.max_nodes, demand.whole_nodes)
            is_plain = not state.bound_to and state.needs is None
            if is_plain and asked in vain:
                continue
            fit = self.room.find(state, state.least)
            if fit is not None:
                self.room.take(fit.nodes, state)
                self.shares[state.id] = Share(state.least, _ITS_TURN, fit.gpu_type, fit.nodes)
            elif is_plain:
                vain.add(asked)


def withdraw(placement: Placement, gpus: int) -> dict[NodeName, int]:
    """Return where a job stays with fewer GPUs: on as few of its nodes as possible."""
    nodes: dict[NodeName, int] = {}
    for part in sorted(placement.slices, key=lambda part: (-len(part.gpus), part.node)):
        kept = min(gpus, len(part.gpus))
        if kept > 0:
            nodes[part.node] = kept
            gpus -= kept
    return nodes


def _count_good(
    placement: Placement, nodes: Mapping[NodeName, int], *, good: Mapping[NodeName, int]
) -> dict[NodeName, int]:
    """Return how many GPUs that others could have a job uses on these nodes; its bad ones are its own."""
    held = count_nodes(placement)
    return {
        node: count - min(count, held.get(node, 0)) + min(count, good.get(node, 0))
        for node, count in nodes.items()
    }

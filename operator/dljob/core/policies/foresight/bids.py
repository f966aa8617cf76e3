"""
The bids between which GPUs are divided: the remaining need of each job, and how it scales.

:mod:`.policy` collects them at the beginning of each decision. Parts that do not change while a job
waits are kept from one decision to the next, because thousands may wait and an event changes a few.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from dljob.core.contract import View
from dljob.core.model import Cluster, GpuDemand, Job, JobState
from dljob.core.placement.counting import count_usable
from dljob.core.placement.largest import acceptable_types, largest_possible
from dljob.core.policies.foresight.curves import Curve, make_curve
from dljob.core.policies.foresight.lengths import Experience, draw_shares
from dljob.core.predicting.growths import usual_growth
from dljob.core.profiles import JobType

Key = tuple[object, ...]
"""The properties that curves depend on."""

OVERDUE_SHARE = 0.1
"""The assumed rest of a job that has done all its work by its own count, as a share of that work."""

MOST_SAMPLES = 8
"""The number of lengths for which a job of unknown length is priced."""

FEWEST_SAMPLES = 2
"""With a single length, jobs of which the same is known would be served as if their order were known."""

MOST_SAMPLED = 2000
"""With more jobs the number of lengths is smaller, so that jobs x lengths stay near this."""

LEAST_LEFT = 1e-9
"""Lower bound of the remaining work, because prices are divided by it."""


class Bid:
    """One job in one decision."""

    __slots__ = (
        "alone",
        "change_costs",
        "cheapest",
        "curve",
        "curves",
        "held",
        "horizon",
        "is_guessed",
        "left",
        "lefts",
        "listed",
        "listed_at",
        "listed_on",
        "most",
        "part",
        "price",
        "restart_costs",
        "state",
        "usable",
        "weight",
    )

    def __init__(self, state: JobState, curves: tuple[Curve, ...]) -> None:
        self.state = state
        self.curves = curves
        """One for each type of GPU that the job can be given."""
        self.alone = curves[0].hull[1]
        """Speed on one GPU of the first type, not the job's own; the unit of job lengths."""
        self.curve = curves[0]
        """That of the type on which the job shall be."""
        self.left = LEAST_LEFT
        """Remaining work, in iterations at the speeds of the curves."""
        self.lefts: Sequence[float] = ()
        """Where it is not known, several that are equally likely."""
        self.weight = 1.0
        """How much an hour of this job counts compared with an hour of other jobs."""
        self.price = 0.0
        """The worth of one of its iterations, in hours of others."""
        self.cheapest = 0.0
        """The same if the job could be had on any type, for one that runs on some type."""
        held = state.placement
        self.held = held.shape.gpus if held is not None else 0
        self.usable = self.held
        """The number of the job's GPUs that other jobs could get."""
        self.most = math.inf
        """The upper bound of the remaining work, if that is not known."""
        self.horizon = math.inf
        """For how many seconds at most a change of this job is expected to last."""
        self.is_guessed = not all(curve.is_measured for curve in curves)
        """True if no speed of it is known: its curves are in seconds on one GPU, as if it did one iteration in each."""
        self.change_costs: Mapping[int, float] = {}
        """The cost of a change to each number of GPUs, in seconds, in which the job keeps some of those that it has."""
        self.restart_costs: Mapping[int, float] = {}
        """The same where it keeps none, so that its processes cannot stay."""
        self.listed: tuple[tuple[int, int, float], ...] = ()
        """The options that :func:`.choosing.list_options` has listed of it."""
        self.listed_on: Curve | None = None
        """Of which curve these are."""
        self.listed_at: tuple[float, float] | None = None
        """At which price and horizon."""
        self.part = _find_part(state)
        """The fraction of the cost of a change that counts in this decision."""

    @property
    def top(self) -> float:
        """The highest speed on any type of GPU."""
        return max(curve.top for curve in self.curves)

    @property
    def switches(self) -> bool:
        """Return whether the job runs and is to change its GPU type."""
        held = self.state.placement
        return held is not None and held.gpu_type != self.curve.gpu_type

    @property
    def starts_unknown(self) -> bool:
        """Return whether a start of a job that was never measured is under way."""
        return self.is_guessed and self.held > 0 and self.state.adjusting

    @property
    def speed_now(self) -> float:
        """Return the speed of a running job on its GPUs, packed on the fewest nodes."""
        held = self.state.placement
        curve = self.curve_on(held.gpu_type) if held is not None else None
        return curve.hull[min(self.held, len(curve.hull) - 1)] if curve is not None else 0.0

    def curve_on(self, gpu_type: str) -> Curve | None:
        """Return the job's curve on a type; ``None`` if the job cannot get this type."""
        for curve in self.curves:
            if curve.gpu_type == gpu_type:
                return curve
        return None

    def switch(self, gpu_type: str) -> None:
        """Let a job that runs be on another type, at the price that it has where it may choose."""
        self.curve = self.curve_on(gpu_type) or self.curve
        self.price = self.cheapest
        self.change_costs = self.restart_costs

    def worth(self, speed: float, *, cost: float, horizon: float) -> float:
        """
        The worth of a second at this speed, if the job first loses ``cost`` seconds to a change.

        The loss is spread over the time for which the change is expected to last: to the end of
        the job, and at most ``horizon`` seconds.
        """
        if speed <= 0.0:
            return 0.0
        worth = self.price * speed
        if cost > 0.0:
            lasts = min(horizon, self.horizon, self.left / speed + cost)
            worth *= 1.0 - min(1.0, cost / lasts)
        return worth

    def cost_of(self, gpus: int) -> float:
        """The time for which a change to ``gpus`` GPUs keeps the job from training; a first start is free."""
        if self.part == 0.0:
            return 0.0
        # The user may have removed the job's present number of GPUs from its options.
        cost = self.change_costs.get(gpus)
        return self.part * (self.change_costs[self.state.least] if cost is None else cost)

    def restart_cost_of(self, gpus: int) -> float:
        """The same if the job keeps none of its GPUs."""
        if self.part == 0.0:
            return 0.0
        cost = self.restart_costs.get(gpus)
        return self.part * (self.restart_costs[self.state.least] if cost is None else cost)


def _find_part(state: JobState) -> float:
    """
    Return the fraction of the cost of a change that counts in a decision.

    A job that runs pays all of it for this change. One that never ran has to start at some time
    anyway. One that waits pays it whenever it resumes, and once more if it is stopped again.
    """
    if state.placement is not None:
        return 1.0
    return 0.0 if state.started_at is None else 0.5


class Bidders:
    """
    Makes bids, for as long as the profiles and the cluster stay what they are.

    Several threads may collect bids at the same time, because the queue is played ahead while the loop decides.
    So only results that are right for all decisions are kept here; :class:`_Terms` has those of one decision.
    """

    def __init__(self, view: View) -> None:
        self.profiles = view.predictor.profiles
        self.cluster = view.cluster
        self._curves: dict[Key, tuple[Curve, ...]] = {}
        self._waiting: dict[JobState, tuple[Key, float]] = {}

    def suits(self, view: View) -> bool:
        """Return whether the profiles and the cluster are unchanged."""
        return self.profiles is view.predictor.profiles and self.cluster is view.cluster

    def collect(self, view: View, experience: Experience) -> list[Bid]:
        """Make the bids of all jobs that can train on some number of GPUs."""
        self._prune(view)
        terms = _Terms(view, experience)
        bids: list[Bid] = []
        for state in view.running:
            curves = self._curves_of(_key_of(state), state, view=view)
            bid = _bid_running(state, curves, terms=terms)
            if bid is not None:
                bids.append(bid)
        for state in view.pending:
            known = self._waiting.get(state)
            if known is None:
                left = state.iterations_total - state.iterations_at(view.now)
                known = self._waiting[state] = (_key_of(state), left)
            key, left = known
            curves = self._curves_of(key, state, view=view)
            if curves:
                bid = Bid(state, curves)
                terms.settle_left(bid, left)
                bid.change_costs = bid.restart_costs = terms.costs_of(state.job)
                bids.append(bid)
        return bids

    def _prune(self, view: View) -> None:
        if len(self._waiting) > 1000 + 4 * len(view.pending):
            self._waiting.clear()

    # --- how jobs scale

    def _curves_of(self, key: Key, state: JobState, *, view: View) -> tuple[Curve, ...]:
        """One curve for each type of GPU that the job can be given; the user's favourite first."""
        known = self._curves.get(key)
        if known is None:
            known = self._curves[key] = tuple(_iter_curves(state, view))
        return known


class _Terms:
    """Values that all bids of one decision share."""

    def __init__(self, view: View, experience: Experience) -> None:
        self.view = view
        jobs = len(view.running) + len(view.pending)
        self._samples = max(FEWEST_SAMPLES, min(MOST_SAMPLES, MOST_SAMPLED // max(1, jobs)))
        self._experience = experience
        # Costs depend on more than profiles and cluster, and take few distinct values.
        self._costs: dict[tuple[JobType, tuple[int, ...]], dict[int, float]] = {}
        self._live_costs: dict[tuple[Curve, int], dict[int, float]] = {}

    def settle_left(self, bid: Bid, left: float) -> None:
        """Return the remaining work: known, or estimated from the lengths of earlier jobs."""
        state, pace = bid.state, bid.alone
        done = state.iterations_at(self.view.now)
        if bid.is_guessed:
            done, left = self._guess(bid, left)
        if left == math.inf:
            expect_left = self._experience.expect_left
            shares = draw_shares(state.id, self.view.seed, samples=self._samples)
            attained = done / pace
            bid.lefts = [max(LEAST_LEFT, expect_left(attained, share) * pace) for share in shares]
            left = max(LEAST_LEFT, expect_left(attained, 0.5) * pace)
            if bid.most < math.inf:
                bid.lefts = [min(bid.most, each) for each in bid.lefts]
                left = min(left, bid.most)
        elif left <= 0.0:
            left = OVERDUE_SHARE * done
        bid.left = max(LEAST_LEFT, left)

    def _guess(self, bid: Bid, left: float) -> tuple[float, float]:
        """
        Return what a job of unknown speed has attained and what is left, in seconds on one GPU.

        Only its GPU time is known, so that counts. Its length is unknown even if its user states a
        number of iterations: time refutes each assumption about it. The speed that a start shows at
        first includes its warm-up, so it is only a bound of the rest.
        """
        state = bid.state
        if state.speed > 0.0 and not state.adjusting and bid.held:
            bid.most = left * bid.speed_now / state.speed
        return state.service_at(self.view.now), math.inf

    def costs_of(self, job: Job) -> Mapping[int, float]:
        key = (job.type, job.gpus.options)
        costs = self._costs.get(key)
        if costs is None:
            find = self.view.predictor.restart_cost
            costs = self._costs[key] = {gpus: find(job, gpus) for gpus in job.gpus.options}
        return costs

    def live_costs_of(self, state: JobState, held: int, curve: Curve) -> Mapping[int, float]:
        """
        Return the costs of changes through which the processes of a job with ``held`` GPUs live.

        It trains on as it does while newcomers start. That is no pause, but no gain either, so a growth costs
        what the job would do more in that time if it had the GPUs at once. Counted as free, the same jobs change
        half as often again, and the mean completion time is 1 to 2 % higher (docs/ablations.md).
        """
        key = (curve, held)
        costs = self._live_costs.get(key)
        if costs is None:
            own, now, costs = (
                self.view.predictor.costs_of(state.job),
                curve.speeds.get(held, 0.0),
                {},
            )
            for gpus in state.job.gpus.options:
                costs[gpus] = own.live_change(joins=gpus >= held)
                speed = curve.speeds.get(gpus, 0.0)
                if gpus > held and speed > now:
                    costs[gpus] += own.process_start(gpus) * (1.0 - now / speed)
            self._live_costs[key] = costs
        return costs


def _bid_running(state: JobState, curves: tuple[Curve, ...], *, terms: _Terms) -> Bid | None:
    placement, view = state.placement, terms.view
    assert placement is not None
    bid = Bid(state, curves) if curves else None
    own = bid.curve_on(placement.gpu_type) if bid is not None else None
    if bid is None or own is None:
        return None
    terms.settle_left(bid, state.iterations_total - state.iterations_at(view.now))
    bid.curve = own
    if not view.cluster.flawless:
        bid.usable = sum(count_usable(placement, view.cluster).values())
    bid.change_costs = bid.restart_costs = terms.costs_of(state.job)
    if state.is_live:
        bid.change_costs = terms.live_costs_of(state, placement.shape.gpus, own)
    return bid


def _key_of(state: JobState) -> Key:
    """The properties that the curves of a job depend on, apart from profiles and cluster."""
    demand = state.job.gpus
    key = (state.job.type, demand.options, demand.types, demand.max_nodes)
    if state.needs is None and not state.bound_to:
        return key
    return (*key, state.needs, state.bound_to)


def _iter_curves(state: JobState, view: View) -> Iterator[Curve]:
    is_known = False
    for kind in acceptable_types(state, view.cluster):
        most = largest_possible(state, view.cluster, gpu_type=kind)
        options = [gpus for gpus in state.job.gpus.options if gpus <= most]
        shapes = ((gpus, view.predictor.shape(gpus, kind)) for gpus in options)
        curve = make_curve(
            kind, ((n, view.predictor.speed(state.job, shape)) for n, shape in shapes)
        )
        if curve is not None:
            is_known = True
            yield curve
    if not is_known:
        yield from _suppose_curves(state, view.cluster)


def _suppose_curves(state: JobState, cluster: Cluster) -> Iterator[Curve]:
    """Assume that a job of unknown speed scales like a typical job."""
    demand: GpuDemand = state.job.gpus
    for kind in acceptable_types(state, cluster):
        most = largest_possible(state, cluster, gpu_type=kind)
        points = ((n, usual_growth(1, n)) for n in demand.options if n <= most)
        curve = make_curve(kind, points, is_measured=False)
        if curve is not None:
            yield curve

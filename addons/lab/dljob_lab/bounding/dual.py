"""
The bound that given prices of GPUs prove, and how many GPUs the jobs would take at these prices.

:mod:`dljob_lab.bounding.ascent` calls :meth:`Dual.prove` in every round. The theory is Lagrangian
duality: for any prices lambda(t) >= 0 of a GPU per second, the sum of completion times of any
schedule is at least

    sum over jobs g_j(lambda)  -  integral of lambda(t) x GPUs,

where g_j is the least of (completion - submission + price of the GPUs used) that job j could reach
if it had the cluster for itself and paid for its GPUs. The job chooses its completion time C and
how many GPUs it has when. For prices that are constant within each bin of time,

    g_j = min over C, max over nu >= 0:  C - r + nu w - integral from ready to C of phi(t, nu),
    phi(t, nu) = max over its options k:  nu s(k) - lambda(t) k,  or 0 for no GPUs.

Here nu is the price at which the job values its own work. Inside a bin the expression is linear in
C and concave in nu, so minimum and maximum may change places there (von Neumann), which leaves
nothing to choose of C but the bin: no precision is lost to the width of bins. Any grid of values
of nu keeps the result a lower bound, because the maximum over fewer values is smaller. After the
last bin the price is 0; there only nu = 1 counts, at which a second of work costs a second.

The GPUs that a job holds while its process starts are paid as well, at the lowest price between its
submission and its completion, because nothing more is asked about when the start is.

Speeds are divided by the job's fastest, so that work is in seconds, nu is at least 1 where it
matters, and jobs that scale alike share everything that does not depend on their own times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dljob_lab.bounding.demands import Demand

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

RATIO = 1.05
"""By what factor neighbouring values of nu differ; 1.01 proves 0.1 % more and takes five times as long."""

SIGNIFICANT = 9
"""The number of digits to which the relative speeds of jobs must agree to count as scaling alike."""

FEWEST_ROWS = 8
"""The fewest bins that one step looks at for the completion of a job."""

MOST_STRETCH = 4
"""By how much the GPUs that a job takes are scaled up at most so that its work is done with them."""

LEAST_SHARE = 1e-3
"""Completion times that are chosen with less than this share of the likeliest are left out."""

TINY = 1e-300
"""Stands for zero where a division by zero would fail."""

ROUNDING = 1e-15
"""More than the relative error of one addition or multiplication, by a factor of four."""


class Market:
    """GPUs by type and bins of time: what prices are for."""

    def __init__(self, gpus: Mapping[str, int], edges: Floats) -> None:
        self.types = tuple(gpus)
        self.capacity = np.array([gpus[kind] for kind in self.types], dtype=float)
        self.edges = edges
        self.widths = np.diff(edges)
        self.bins = len(self.widths)
        self.horizon = float(edges[-1])

    def bin_of(self, time: float) -> int:
        """The bin that this time is in."""
        return int(np.searchsorted(self.edges, time, side="right")) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A job among those that scale alike."""

    index: int
    submitted_at: float
    submitted_in: int
    """The bin of its submission; the same for the others."""
    ready_at: float
    """When its first step is at the earliest."""
    ready_in: int
    ready_part: float
    """The part of that bin that is left then."""
    done_at: float
    """When it is done at the earliest."""
    done_in: int
    done_part: float
    """The part of that bin that is over then."""
    work_s: float
    """Its work in seconds at its highest speed."""
    starting_gpu_s: float


@dataclass(slots=True)
class Curve:
    """Jobs that scale alike: their options, with speeds as parts of the highest."""

    speeds: Floats
    gpus: Floats
    columns: Indices
    """For each option its column in the table of prices."""
    members: list[Member] = field(default_factory=list)


class Choices(NamedTuple):
    """The choices of a job at given prices: when it is done, and what it pays for that."""

    first: int
    """The first bin in which it may be done; one entry for each bin from there."""
    costs: Floats
    """Its completion time and the price of its GPUs."""
    at: Indices
    """The place in the grid of the price at which it values its work."""
    late: float
    """Its payment if it is done after the last bin."""

    @property
    def least(self) -> float:
        """Its least payment."""
        return min(self.late, float(self.costs.min()))

    @property
    def is_late(self) -> bool:
        """Return whether it is done after the last bin; where GPUs cost nothing, that is as good as in it."""
        return self.late < float(self.costs.min()) * (1.0 - 1e-9)


class Proof(NamedTuple):
    """The proof of given prices, and the choices of the jobs at these prices."""

    total_s: float
    """No schedule has a smaller sum of completion times."""
    used: Floats
    """About how many GPUs the jobs take, by bin and type."""


class Dual:
    """The sum of completion times that prices prove, for one set of jobs on one market."""

    def __init__(self, demands: Sequence[Demand], market: Market, *, ratio: float = RATIO) -> None:
        self.market = market
        groups: dict[tuple[str, ...], None] = dict.fromkeys((kind,) for kind in market.types)
        groups.update(dict.fromkeys(o.types for demand in demands for o in demand.options))
        self._groups = [[market.types.index(kind) for kind in group] for group in groups]
        self._curves = _group_by_curve(
            demands, market, columns={g: at for at, g in enumerate(groups)}
        )
        self._ratio = ratio
        self._costs = np.zeros(len(demands))
        """The latest payment of each job, which shows how many bins to look at next time."""
        self.type_values = self._find_type_values()

    def _find_type_values(self) -> Floats:
        """Return how fast the usual job is at best on GPUs of each type, as part of its highest speed."""
        values = np.zeros(len(self.market.types))
        for curve in self._curves:
            for at in range(len(values)):
                best = curve.speeds[curve.columns == at].max(initial=0.0)
                values[at] += len(curve.members) * float(best)
        return values / max(1, sum(len(curve.members) for curve in self._curves))

    def prove(self, prices: Floats, *, spread: float = 0.0) -> Proof:
        """
        Compute what these prices prove, given by bin and type.

        With a ``spread`` above 0, a job is taken to choose among completion times that cost it up
        to about that share more than the cheapest. This changes what is used and not what is
        proven: jobs that are alike would otherwise all rush into the same bin.
        """
        # GPUs of mixed types cost at least as much as if all were of the cheapest of them.
        columns = np.column_stack([prices[:, group].min(axis=1) for group in self._groups])
        sources = np.column_stack(
            [np.take(group, prices[:, group].argmin(axis=1)) for group in self._groups]
        )
        used = np.zeros_like(prices)
        total = doubt = 0.0
        for curve in self._curves:
            table = _Table(curve, columns, market=self.market, ratio=self._ratio)
            for member in curve.members:
                choices = table.price(member, guess=float(self._costs[member.index]))
                self._costs[member.index] = choices.least
                total += choices.least
                table.take(member, choices, spread=spread)
            doubt += table.doubt * len(curve.members)
            table.add_use(sources, used)
        paid = float(self.market.widths @ prices @ self.market.capacity)
        doubt += (total + paid) * (len(self._costs) + self.market.bins) * ROUNDING
        return Proof(total - paid - doubt, used / self.market.widths[:, None])


def _group_by_curve(
    demands: Sequence[Demand], market: Market, *, columns: Mapping[tuple[str, ...], int]
) -> list[Curve]:
    """Group jobs whose curves are equal up to rounding; a group takes its highest speeds."""
    curves: dict[object, Curve] = {}
    for index, demand in enumerate(demands):
        fastest = max(option.speed for option in demand.options)
        speeds = np.array([option.speed / fastest for option in demand.options])
        ways = tuple((option.types, option.gpus) for option in demand.options)
        key = (ways, tuple(np.round(speeds, SIGNIFICANT)))
        curve = curves.get(key)
        if curve is None:
            gpus = np.array([float(option.gpus) for option in demand.options])
            own = np.array([columns[option.types] for option in demand.options])
            curve = curves[key] = Curve(speeds, gpus, own)
        curve.speeds = np.maximum(curve.speeds, speeds)
        curve.members.append(
            _make_member(index, demand, work_s=demand.iterations / fastest, market=market)
        )
    return list(curves.values())


def _make_member(index: int, demand: Demand, *, work_s: float, market: Market) -> Member:
    ready_at = demand.submitted_at + demand.starts_after_s
    return Member(
        index=index,
        submitted_at=demand.submitted_at,
        submitted_in=market.bin_of(demand.submitted_at),
        ready_at=ready_at,
        ready_in=(ready_in := market.bin_of(ready_at)),
        ready_part=float((market.edges[ready_in + 1] - ready_at) / market.widths[ready_in]),
        done_at=ready_at + work_s,
        done_in=(done_in := market.bin_of(ready_at + work_s)),
        done_part=float((ready_at + work_s - market.edges[done_in]) / market.widths[done_in]),
        work_s=work_s,
        starting_gpu_s=demand.starting_gpu_s,
    )


class _Table:
    """The values that all jobs of a curve share at given prices: rows are bins, columns nu."""

    def __init__(self, curve: Curve, columns: Floats, *, market: Market, ratio: float) -> None:
        self._curve = curve
        self._market = market
        own = columns[:, curve.columns]
        self._prices = own * curve.gpus
        """By bin and option."""
        self._lowest = own.min(axis=1)
        self._lowest_in = curve.columns[own.argmin(axis=1)]
        self._nu = self._make_grid(ratio)
        self._gain, self._best = self._compute_gain()
        """A job's gain in a second, and the option that gives it; -1: no GPUs."""
        widths = market.widths[:, None]
        self._sums = _integrate(self._gain * widths)
        last = np.maximum(self._gain - 1.0, 0.0) * widths
        self._rows = market.edges[:-1, None] - self._sums[:-1] - last
        """The part of the cost of being done in a bin that does not depend on the job."""
        self._work = _integrate(np.append(curve.speeds, 0.0)[self._best] * widths)
        self._taken = np.zeros_like(self._sums)
        """How many jobs are done in a bin at a nu, less those that begin in the bin after it."""
        self._held = np.zeros(market.bins)
        self.doubt = market.bins * ROUNDING * (float(self._sums[-1, -1]) + abs(market.horizon))
        """More than the error of the cost of one job by rounding."""

    def _make_grid(self, ratio: float) -> Floats:
        """
        Values of nu from 1 to the highest that counts.

        At the nu of an optimum some completion time is neither too early nor too late, so the gain
        there is 1; at the highest price of any bin the gain is more than 1 beyond this grid.
        """
        dearest = self._prices.max(axis=0)
        highest = float(((1.0 + dearest) / self._curve.speeds).min()) * ratio
        return np.geomspace(1.0, highest, 2 + int(np.log(highest) / np.log(ratio)))

    def _compute_gain(self) -> tuple[Floats, Indices]:
        gain = np.zeros((self._market.bins, len(self._nu)))
        best = np.full(gain.shape, -1, dtype=np.intp)
        rival = np.empty_like(gain)
        for option, speed in enumerate(self._curve.speeds):
            np.subtract(self._nu * speed, self._prices[:, option, None], out=rival)
            best[rival > gain] = option
            np.maximum(gain, rival, out=gain)
        return gain, best

    def price(self, member: Member, *, guess: float) -> Choices:
        """The costs of completions for the job; ``guess`` is about the cost of the cheapest."""
        edges, bins = self._market.edges, self._market.bins
        base = self._nu * member.work_s - member.submitted_at
        base += self._sum_to(member.ready_at, member.ready_in)
        # Beyond the horizon GPUs cost nothing, and a second of work costs a second.
        late = self._market.horizon + float(base[0] - self._sums[-1, 0])
        within = 1.5 * guess
        while True:
            stop = int(np.searchsorted(edges, member.submitted_at + within))
            stop = min(max(stop, member.done_in + FEWEST_ROWS), bins)
            costs, at = self._price_bins(member, base, stop=stop)
            least = min(late, float(costs.min()))
            # A completion in a later bin costs at least the time until its start.
            if stop == bins or edges[stop] - member.submitted_at >= least:
                return Choices(member.done_in, costs, at, late)
            within = max(least, 2.0 * within)

    def _price_bins(self, member: Member, base: Floats, *, stop: int) -> tuple[Floats, Indices]:
        """The cost of completion in each bin, from the first that is possible."""
        first = member.done_in
        block = self._rows[first:stop] + base
        block[0] = base + self._row_from(member.done_at, first)
        at = block.argmax(axis=1)
        costs = block[np.arange(stop - first), at]
        begins = self._market.edges[first:stop] - member.submitted_at
        begins[0] = member.done_at - member.submitted_at
        np.maximum(costs, begins, out=costs)
        if member.starting_gpu_s:
            lowest = np.minimum.accumulate(self._lowest[member.submitted_in : stop])
            costs += member.starting_gpu_s * lowest[first - member.submitted_in :]
        return costs, at

    def _sum_to(self, time: float, inside: int) -> Floats:
        since = time - self._market.edges[inside]
        sums: Floats = self._sums[inside] + self._gain[inside] * since
        return sums

    def _row_from(self, time: float, inside: int) -> Floats:
        """The row of a bin that a job can use only after a time."""
        left = self._market.edges[inside + 1] - time
        last = np.maximum(self._gain[inside] - 1.0, 0.0) * left
        row: Floats = time - self._sum_to(time, inside) - last
        return row

    def take(self, member: Member, choices: Choices, *, spread: float) -> None:
        """Note what the job does: for each completion time the share with which it is chosen."""
        slack = spread * choices.least
        if choices.is_late:
            stops, at, shares = np.array([self._market.bins]), np.array([0]), np.ones(1)
            ends = np.ones(1)
        else:
            chosen, shares = _spread_out(choices.costs, slack)
            rows, at = choices.first + chosen, choices.at[chosen]
            # Where another second of training is not worth its price, it ends as the bin begins.
            ends_late = self._gain[rows, at] > 1.0
            stops = np.maximum(rows + ends_late, choices.first + 1)
            ends = np.where(ends_late | (chosen > 0), 1.0, member.done_part)
            if member.starting_gpu_s:
                self._hold(member, choices.first + int(choices.costs.argmin()), slack=slack)
        count, part = len(at), member.ready_part
        begins = np.full(count, member.ready_in)
        edges = np.concatenate([stops, stops - 1, begins, begins + 1])
        parts = np.concatenate(
            [ends, 1.0 - ends, np.full(count, -part), np.full(count, part - 1.0)]
        )
        places = (edges, np.tile(at, 4))
        work = (parts * self._work[places]).reshape(4, count).sum(axis=0)
        # The grid does not hold the very nu at which the work is done to the second; and what is
        # left after the horizon takes no GPUs of the market.
        least_work = member.work_s if choices.is_late else member.work_s / MOST_STRETCH
        shares = shares * member.work_s / np.maximum(work, max(least_work, TINY))
        np.add.at(self._taken, places, parts * np.tile(shares, 4))

    def _hold(self, member: Member, until: int, *, slack: float) -> None:
        """Note where the job holds GPUs for its start: where that is cheap, before it is done."""
        first = member.submitted_in
        prices = self._lowest[first : until + 1] * member.starting_gpu_s
        bins, shares = _spread_out(prices, slack, sizes=self._market.widths[first : until + 1])
        self._held[first + bins] += shares * member.starting_gpu_s

    def add_use(self, sources: Indices, used: Floats) -> None:
        """Add the GPU seconds that the jobs take by their choices, by bin and type."""
        # From the last bin to the first: a job trains in all bins from its first to its last.
        running = np.cumsum(self._taken[::-1], axis=0)[::-1][1:]
        gpus = np.append(self._curve.gpus, 0.0)[self._best] * running * self._market.widths[:, None]
        types = np.append(self._curve.columns, 0)[self._best]
        for column in np.unique(self._curve.columns):
            rows = np.arange(self._market.bins)
            own = np.where(types == column, gpus, 0.0).sum(axis=1)
            np.add.at(used, (rows, sources[:, column]), own)
        rows = np.flatnonzero(self._held)
        np.add.at(used, (rows, sources[rows, self._lowest_in[rows]]), self._held[rows])


def _spread_out(
    costs: Floats, slack: float, *, sizes: Floats | None = None
) -> tuple[Indices, Floats]:
    """Choose among costs, the cheapest most of all and those within the slack with it."""
    if slack <= 0.0:
        return np.array([costs.argmin()]), np.ones(1)
    shares = np.exp((costs.min() - costs) / slack)
    chosen = np.flatnonzero(shares > LEAST_SHARE)
    shares = shares[chosen] if sizes is None else shares[chosen] * sizes[chosen]
    return chosen, shares / shares.sum()


def _integrate(steps: Floats) -> Floats:
    """Sum up over bins: the integral up to each edge."""
    sums = np.zeros((len(steps) + 1, steps.shape[1]))
    np.cumsum(steps, axis=0, out=sums[1:])
    return sums

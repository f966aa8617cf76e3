"""
The bound that given prices of GPUs prove, and how many GPUs the jobs would take at these prices.

:mod:`dlsim.bounding.ascent` calls :meth:`Dual.prove` in every round. The theory is Lagrangian
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

from dlsim.bounding.demands import Demand

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

RATIO = 1.05
"""By what factor neighbouring values of nu differ; 1.01 proves 0.1 % more and takes five times as long."""

SIGNIFICANT = 9
"""To so many digits the relative speeds of jobs are equal that are taken to scale alike."""

FEWEST_ROWS = 8
"""At least so many bins are looked at in one step for the completion of a job."""

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
    done_at: float
    """When it is done at the earliest."""
    done_in: int
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


class Choice(NamedTuple):
    """What a job does at given prices."""

    cost: float
    """What it pays: its completion time and the price of its GPUs."""
    row: int
    """The bin in which it is done; the number of bins if that is after the last."""
    at: int
    """The place in the grid of the price at which it values its work."""


class Proof(NamedTuple):
    """What prices prove, and what the jobs would do at these prices."""

    total_s: float
    """No schedule has a smaller sum of completion times."""
    used: Floats
    """How many GPUs the jobs take on average, by bin and type."""


class Dual:
    """The sum of completion times that prices prove, for one set of jobs on one market."""

    def __init__(self, demands: Sequence[Demand], market: Market, *, ratio: float = RATIO) -> None:
        self.market = market
        groups: dict[tuple[str, ...], None] = dict.fromkeys((kind,) for kind in market.types)
        groups.update(dict.fromkeys(o.types for demand in demands for o in demand.options))
        self._groups = [[market.types.index(kind) for kind in group] for group in groups]
        self._curves = _group_by_curve(demands, market, {g: at for at, g in enumerate(groups)})
        self._ratio = ratio
        self._costs = np.zeros(len(demands))
        """What each job paid last, which tells how many bins to look at next time."""
        self.type_values = self._find_type_values()

    def _find_type_values(self) -> Floats:
        """How fast the usual job is at best on GPUs of each type, as part of its highest speed."""
        values = np.zeros(len(self.market.types))
        for curve in self._curves:
            for at in range(len(values)):
                best = curve.speeds[curve.columns == at].max(initial=0.0)
                values[at] += len(curve.members) * float(best)
        return values / max(1, sum(len(curve.members) for curve in self._curves))

    def prove(self, prices: Floats) -> Proof:
        """Compute what these prices prove, given by bin and type."""
        # GPUs of mixed types cost at least as much as if all were of the cheapest of them.
        columns = np.column_stack([prices[:, group].min(axis=1) for group in self._groups])
        sources = np.column_stack(
            [np.take(group, prices[:, group].argmin(axis=1)) for group in self._groups]
        )
        used = np.zeros_like(prices)
        total = doubt = 0.0
        for curve in self._curves:
            table = _Table(curve, columns, self.market, self._ratio)
            for member in curve.members:
                choice = table.choose(member, guess=float(self._costs[member.index]))
                self._costs[member.index] = choice.cost
                total += choice.cost
                table.use(member, choice, sources, used)
            doubt += table.doubt * len(curve.members)
        paid = float(self.market.widths @ prices @ self.market.capacity)
        doubt += (total + paid) * (len(self._costs) + self.market.bins) * ROUNDING
        return Proof(total - paid - doubt, used / self.market.widths[:, None])


def _group_by_curve(
    demands: Sequence[Demand], market: Market, columns: Mapping[tuple[str, ...], int]
) -> list[Curve]:
    """Group jobs that scale alike; of speeds that differ in the last digits the highest count."""
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
        curve.members.append(_make_member(index, demand, demand.iterations / fastest, market))
    return list(curves.values())


def _make_member(index: int, demand: Demand, work_s: float, market: Market) -> Member:
    ready_at = demand.submitted_at + demand.starts_after_s
    return Member(
        index=index,
        submitted_at=demand.submitted_at,
        submitted_in=market.bin_of(demand.submitted_at),
        ready_at=ready_at,
        ready_in=market.bin_of(ready_at),
        done_at=ready_at + work_s,
        done_in=market.bin_of(ready_at + work_s),
        work_s=work_s,
        starting_gpu_s=demand.starting_gpu_s,
    )


class _Table:
    """What is the same for all jobs of a curve at given prices: rows are bins, columns nu."""

    def __init__(self, curve: Curve, columns: Floats, market: Market, ratio: float) -> None:
        self._speeds, self._gpus, self._columns = curve.speeds, curve.gpus, curve.columns
        self._market = market
        own = columns[:, curve.columns]
        self._prices = own * curve.gpus
        """By bin and option."""
        self._lowest = own.min(axis=1)
        self._lowest_in = curve.columns[own.argmin(axis=1)]
        self._nu = self._make_grid(ratio)
        self._gain = self._compute_gain()
        widths = market.widths[:, None]
        self._sums = np.zeros((market.bins + 1, len(self._nu)))
        """The integral of the gain up to each edge."""
        np.cumsum(self._gain * widths, axis=0, out=self._sums[1:])
        last = np.maximum(self._gain - 1.0, 0.0) * widths
        self._rows = market.edges[:-1, None] - self._sums[:-1] - last
        """What does not depend on the job in its cost if it is done in a bin."""
        self.doubt = market.bins * ROUNDING * (float(self._sums[-1, -1]) + abs(market.horizon))
        """More than the error of the cost of one job by rounding."""

    def _make_grid(self, ratio: float) -> Floats:
        """
        Values of nu from 1 to the highest that counts.

        At the nu of an optimum some completion time is neither too early nor too late, so the gain
        there is 1; at the highest price of any bin the gain is more than 1 beyond this grid.
        """
        dearest = self._prices.max(axis=0)
        highest = float(((1.0 + dearest) / self._speeds).min()) * ratio
        return np.geomspace(1.0, highest, 2 + int(np.log(highest) / np.log(ratio)))

    def _compute_gain(self) -> Floats:
        gain = np.zeros((self._market.bins, len(self._nu)))
        scratch = np.empty_like(gain)
        for option, speed in enumerate(self._speeds):
            np.subtract(self._nu * speed, self._prices[:, option, None], out=scratch)
            np.maximum(gain, scratch, out=gain)
        return gain

    def choose(self, member: Member, *, guess: float) -> Choice:
        """What the job does; ``guess`` is about what it pays."""
        ready = self._sum_to(member.ready_at, member.ready_in)
        base = self._nu * member.work_s - member.submitted_at + ready
        choice = min(self._choose_earliest(member, base), self._choose_late(member, base))
        edges, submitted_at = self._market.edges, member.submitted_at
        start = member.done_in + 1
        within = min(choice.cost, 1.5 * guess)
        # A completion after a bin's start costs at least the time until then.
        while start < self._market.bins and edges[start] - submitted_at < choice.cost:
            stop = int(np.searchsorted(edges, submitted_at + within))
            stop = min(max(stop, start + FEWEST_ROWS), self._market.bins)
            choice = min(choice, self._choose_between(member, base, start, stop))
            start, within = stop, choice.cost
        return choice

    def _sum_to(self, time: float, inside: int) -> Floats:
        since = time - self._market.edges[inside]
        sums: Floats = self._sums[inside] + self._gain[inside] * since
        return sums

    def _choose_earliest(self, member: Member, base: Floats) -> Choice:
        """Be done in the first bin that is possible, after what is possible of it."""
        row, done_at = member.done_in, member.done_at
        left = self._market.edges[row + 1] - done_at
        costs = base + done_at - self._sum_to(done_at, row)
        costs -= np.maximum(self._gain[row] - 1.0, 0.0) * left
        at = int(costs.argmax())
        cost = max(float(costs[at]), done_at - member.submitted_at)
        if member.starting_gpu_s:
            lowest = float(self._lowest[member.submitted_in : row + 1].min())
            cost += member.starting_gpu_s * lowest
        return Choice(cost, row, at)

    def _choose_late(self, member: Member, base: Floats) -> Choice:
        """Be done after the last bin, where GPUs cost nothing."""
        horizon = self._market.horizon
        cost = horizon + float(base[0] - self._sums[-1, 0])
        return Choice(max(cost, horizon - member.submitted_at), self._market.bins, 0)

    def _choose_between(self, member: Member, base: Floats, start: int, stop: int) -> Choice:
        """Be done in one of these bins."""
        block = self._rows[start:stop] + base
        at = block.argmax(axis=1)
        costs = block[np.arange(stop - start), at]
        np.maximum(costs, self._market.edges[start:stop] - member.submitted_at, out=costs)
        if member.starting_gpu_s:
            lowest = np.minimum.accumulate(self._lowest[member.submitted_in : stop])
            costs += member.starting_gpu_s * lowest[start - member.submitted_in :]
        least = int(costs.argmin())
        return Choice(float(costs[least]), start + least, int(at[least]))

    def use(self, member: Member, choice: Choice, sources: Indices, used: Floats) -> None:
        """Add the GPU seconds that the job takes by its choice, by bin and type."""
        start, stop = member.ready_in, min(choice.row + 1, self._market.bins)
        gains = self._nu[choice.at] * self._speeds - self._prices[start:stop]
        best = gains.argmax(axis=1)
        seconds = self._time_in_bins(member, choice)
        seconds[gains[np.arange(stop - start), best] <= 0.0] = 0.0
        work_s = float(seconds @ self._speeds[best])
        if choice.row < self._market.bins:
            # The grid does not hold the very nu at which the work is done to the second.
            seconds *= member.work_s / max(work_s, 1e-300)
        rows = np.arange(start, stop)
        types = sources[rows, self._columns[best]]
        np.add.at(used, (rows, types), seconds * self._gpus[best])
        if member.starting_gpu_s and choice.row < self._market.bins:
            first = member.submitted_in
            row = first + int(self._lowest[first:stop].argmin())
            used[row, sources[row, self._lowest_in[row]]] += member.starting_gpu_s

    def _time_in_bins(self, member: Member, choice: Choice) -> Floats:
        """For how long the job may train in each bin, from the first to the last that it uses."""
        edges = self._market.edges
        start, stop = member.ready_in, min(choice.row + 1, self._market.bins)
        until = self._market.horizon
        if choice.row < self._market.bins:
            ends_late = self._gain[choice.row, choice.at] > 1.0
            until = edges[choice.row + 1] if ends_late else max(edges[choice.row], member.done_at)
        begins = np.maximum(edges[start:stop], member.ready_at)
        times: Floats = np.maximum(np.minimum(edges[start + 1 : stop + 1], until) - begins, 0.0)
        return times

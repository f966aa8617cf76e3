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

Speeds are divided by the job's fastest, so that work is in seconds, nu is at least 1 where it
matters, and jobs that scale alike share everything that does not depend on their own times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dlsim.bounding.demands import Demand, Option

Floats = NDArray[np.float64]
RATIO = 1.05
"""By what factor neighbouring values of nu differ: a grid twice as fine proves 0.05 % more."""

SIGNIFICANT = 9
"""To so many digits the relative speeds of jobs are equal that are taken to scale alike."""


@dataclass(frozen=True, slots=True)
class Member:
    """A job among those that scale alike."""

    index: int
    submitted_at: float
    ready_at: float
    work_s: float
    """Its work in seconds at its highest speed."""
    starting_gpu_s: float
    ending_gpu_s: float
    ending_s: float

    @property
    def done_at(self) -> float:
        """When it is done at the earliest."""
        return self.ready_at + self.work_s


@dataclass(slots=True)
class Curve:
    """Jobs that scale alike: their options, with speeds as parts of the highest."""

    speeds: Floats
    gpus: Floats
    columns: NDArray[np.intp]
    """For each option its column in the table of prices."""
    members: list[Member] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Proof:
    """What prices prove, and what the jobs would do at these prices."""

    total_s: float
    """No schedule has a smaller sum of completion times."""
    used: Floats
    """How many GPUs the jobs take on average, by bin and type."""


class Market:
    """GPUs and bins of time: what prices are for."""

    def __init__(self, gpus: dict[str, int], edges: Floats) -> None:
        self.types = tuple(gpus)
        self.capacity = np.array([gpus[kind] for kind in self.types], dtype=float)
        self.edges = edges
        self.widths = np.diff(edges)

    @property
    def horizon(self) -> float:
        """The end of the last bin."""
        return float(self.edges[-1])

    @property
    def bins(self) -> int:
        """How many bins there are."""
        return len(self.widths)

    def bin_of(self, time: float) -> int:
        """The bin that this time is in."""
        found = int(np.searchsorted(self.edges, time, side="right")) - 1
        return min(max(found, 0), self.bins - 1)


def group_by_curve(demands: Sequence[Demand], columns: dict[tuple[str, ...], int]) -> list[Curve]:
    """Group jobs that scale alike; of speeds that differ in the last digits the highest count."""
    curves: dict[object, Curve] = {}
    for index, demand in enumerate(demands):
        fastest = max(option.speed for option in demand.options)
        speeds = np.array([option.speed / fastest for option in demand.options])
        key = (_ways(demand.options), tuple(np.round(speeds, SIGNIFICANT)))
        curve = curves.get(key)
        if curve is None:
            gpus = np.array([option.gpus for option in demand.options], dtype=float)
            own = np.array([columns[option.types] for option in demand.options], dtype=np.intp)
            curve = curves[key] = Curve(speeds, gpus, own)
        curve.speeds = np.maximum(curve.speeds, speeds)
        ready_at = demand.submitted_at + demand.starts_after_s
        curve.members.append(
            Member(
                index,
                demand.submitted_at,
                ready_at,
                demand.iterations / fastest,
                demand.starting_gpu_s,
                demand.ending_gpu_s,
                demand.ending_s,
            )
        )
    return list(curves.values())


def _ways(options: Sequence[Option]) -> tuple[tuple[tuple[str, ...], int], ...]:
    return tuple((option.types, option.gpus) for option in options)


class Dual:
    """The sum of completion times that prices prove, for one set of jobs on one market."""

    def __init__(self, demands: Sequence[Demand], market: Market, *, ratio: float = RATIO) -> None:
        self.market = market
        groups: dict[tuple[str, ...], None] = dict.fromkeys((kind,) for kind in market.types)
        groups.update(dict.fromkeys(o.types for demand in demands for o in demand.options))
        self._groups = [[market.types.index(kind) for kind in group] for group in groups]
        self._curves = group_by_curve(demands, {group: at for at, group in enumerate(groups)})
        self._ratio = ratio
        self.type_values = self._find_type_values()
        self._costs = np.full(len(demands), 0.0)
        """What each job cost last, which tells how many bins to look at next time."""

    def _find_type_values(self) -> Floats:
        """How fast the usual job is at best on GPUs of each type, as part of its highest speed."""
        values = np.zeros(len(self.market.types))
        for curve in self._curves:
            for at in range(len(values)):
                own = curve.speeds[curve.columns == at]
                values[at] += len(curve.members) * (float(own.max()) if len(own) else 0.0)
        return values / max(sum(len(curve.members) for curve in self._curves), 1)

    def prove(self, prices: Floats) -> Proof:
        """Compute what these prices prove, by bin and type."""
        columns = np.column_stack([prices[:, group].min(axis=1) for group in self._groups])
        cheapest = np.column_stack(
            [np.take(group, prices[:, group].argmin(axis=1)) for group in self._groups]
        )
        used = np.zeros_like(prices)
        total = slack = 0.0
        for curve in self._curves:
            table = _Table(curve, columns, self.market, self._ratio)
            for member in curve.members:
                cost, row, at = table.price(member, self._costs[member.index])
                self._costs[member.index] = cost
                total += cost
                table.use(member, row, at, cheapest, used)
            slack += table.slack * len(curve.members)
        paid = float((prices * self.market.widths[:, None]).sum(axis=0) @ self.market.capacity)
        slack += (abs(total) + abs(paid)) * 1e-12
        return Proof(total - paid - slack, used / self.market.widths[:, None])


class _Table:
    """What is the same for all jobs of a curve at given prices."""

    def __init__(self, curve: Curve, columns: Floats, market: Market, ratio: float) -> None:
        self._curve = curve
        self._market = market
        self._prices = columns[:, curve.columns] * curve.gpus  # By bin and option.
        dearest = columns[:, curve.columns].max(axis=0)
        highest = float(((1.0 + dearest * curve.gpus) / curve.speeds).min()) * (1.0 + 1e-9)
        count = 2 + int(np.log(highest) / np.log(ratio))
        self._nu = np.geomspace(1.0, max(highest, 1.0 + 1e-9), count)
        self._phi = np.zeros((market.bins, count))
        scratch = np.empty_like(self._phi)
        for option, speed in enumerate(curve.speeds):
            np.subtract(self._nu * speed, self._prices[:, option, None], out=scratch)
            np.maximum(self._phi, scratch, out=self._phi)
        self._sums = np.zeros((market.bins + 1, count))
        widths = market.widths[:, None]
        np.cumsum(self._phi * widths, axis=0, out=self._sums[1:])
        self._rows = (
            market.edges[:-1, None] - self._sums[:-1] - np.maximum(self._phi - 1.0, 0.0) * widths
        )
        self.slack = (
            (market.bins + 8) * 2.3e-16 * (float(self._sums[-1].max()) + market.horizon) * 4
        )

    def _sum_to(self, time: float, at: int) -> Floats:
        sums: Floats = self._sums[at] + self._phi[at] * (time - self._market.edges[at])
        return sums

    def price(self, member: Member, guess: float) -> tuple[float, int, int]:
        """What the job costs at least, and the bin and nu at which it does."""
        market, edges = self._market, self._market.edges
        ready = self._sum_to(member.ready_at, market.bin_of(member.ready_at))
        base = self._nu * member.work_s - member.submitted_at + ready
        done_at = member.done_at
        first = market.bin_of(done_at)
        row = base + done_at - self._sum_to(done_at, first)
        row -= np.maximum(self._phi[first] - 1.0, 0.0) * (edges[first + 1] - done_at)
        at = int(row.argmax())
        best, best_row = max(float(row[at]), done_at - member.submitted_at), first
        # Beyond the horizon GPUs cost nothing, and a second of work costs a second.
        late = max(
            market.horizon + float(base[0] - self._sums[-1, 0]),
            market.horizon - member.submitted_at,
        )
        if late < best:
            best, best_row, at = late, market.bins, 0
        start = first + 1
        limit = min(best, 1.5 * guess)
        while start < market.bins and edges[start] - member.submitted_at < best:
            stop = int(np.searchsorted(edges, member.submitted_at + limit))
            stop = min(max(stop, start + 8), market.bins)
            block = self._rows[start:stop] + base
            highest = block.argmax(axis=1)
            values = block[np.arange(stop - start), highest]
            np.maximum(values, edges[start:stop] - member.submitted_at, out=values)
            least = int(values.argmin())
            if values[least] < best:
                best, best_row, at = float(values[least]), start + least, int(highest[least])
            start = stop
            limit = best
        return best, best_row, at

    def use(
        self, member: Member, row: int, at: int, cheapest: NDArray[np.intp], used: Floats
    ) -> None:
        """Add the GPU seconds that the job takes if it is done in that bin."""
        market, curve = self._market, self._curve
        start = market.bin_of(member.ready_at)
        if row == market.bins:
            until, stop = market.horizon, market.bins
        else:
            ends = self._phi[row, at] > 1.0
            until = market.edges[row + 1] if ends else max(market.edges[row], member.done_at)
            stop = row + 1
        gains = self._nu[at] * curve.speeds - self._prices[start:stop]
        choice = gains.argmax(axis=1)
        lows = np.maximum(market.edges[start:stop], member.ready_at)
        seconds = np.maximum(np.minimum(market.edges[start + 1 : stop + 1], until) - lows, 0.0)
        seconds[gains[np.arange(stop - start), choice] <= 0.0] = 0.0
        work = float(seconds @ curve.speeds[choice])
        if work <= 0.0:
            return
        if row < market.bins or work > member.work_s:
            seconds *= member.work_s / work
        rows = np.arange(start, stop)
        np.add.at(used, (rows, cheapest[rows, curve.columns[choice]]), seconds * curve.gpus[choice])

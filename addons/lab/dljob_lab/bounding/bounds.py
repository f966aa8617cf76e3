"""
A lower bound on the mean completion time that any policy can reach on a workload.

``dljob bound``, ``dljob simulate --bound`` and ``dljob compare`` call :func:`bound_mean_jct`. The
bound holds for every schedule of :class:`dljob.sim.engine.world.World`, even one that knows the future: by
duality, any prices of GPUs prove one (:mod:`dljob_lab.bounding.dual` has the formula), and what is
searched for are the prices that prove the most.

The bound takes into account: submission times, each job's numbers of GPUs and types with the
true speeds, on as many nodes as is fastest and with the best batch that an elastic job may have; the start that every job pays before its first step,
and the GPUs that it holds meanwhile; the GPUs of each type. It leaves out some facts, which can only
make it lower: changes of GPUs after the start, where GPUs are, failures, limits of namespaces, and
that whole GPUs cannot be shared out between options at one moment.
"""

from dataclasses import dataclass

import numpy as np

from dljob.core import policies
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.errors import BadInput
from dljob.sim.jobs.workloads import Workload
from dljob_lab.bounding.ascent import Times, Watch, ascend, choose_edges, start_prices
from dljob_lab.bounding.demands import Demands, read_demands
from dljob_lab.bounding.dual import Dual, Market

ROUNDS = 100
"""How often prices are improved; further rounds gain less than 0.1 % on the shared traces."""

BINS_PER_JOB = 2.0
FEWEST_BINS, MOST_BINS = 200, 2000
"""Prices are constant within a bin of time. More bins cost time and prove little more."""

FINE_RATIO = 1.01
"""The grid of the last computation is finer than that of the search, which proves 0.1 % more."""

REFERENCE = "max-min"
"""The policy of the reference run: it decides fast and needs to know nothing of the jobs."""

CLOCK_S = 2e-6
"""The world rounds times to a microsecond, so that a job may be shorter than computed by this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The bound below which no policy can go, and how it was found."""

    avg_jct_s: float
    """No schedule of these jobs has a smaller mean completion time."""
    jobs: int
    """The jobs that it is the mean of: those that the world keeps and that can run at all."""
    dropped: int
    """Jobs that ask for more GPUs than the cluster has, which are in no figure."""
    never: int
    """Jobs that are kept and can never run; they are in no mean either."""
    rounds: int
    bins: int
    alone_s: float
    """The mean completion time if each job were alone: the simple bound that this one improves."""
    reference: str
    """A policy that was played first, whose active jobs gave the first prices."""
    reference_avg_jct_s: float
    """
    Its mean completion time. The best schedule lies between the bound and this, if the reference
    completed all the jobs.
    """
    last_gain: float
    """By what share the last quarter of the rounds raised the bound: small when it has settled."""

    def ratio(self, avg_jct_s: float, completed: int) -> float | None:
        """
        Return how many times the bound a mean completion time is.

        ``None`` where they cannot be compared, because some of the jobs never completed or because
        there is nothing to do.
        """
        if completed != self.jobs or self.avg_jct_s <= 0.0:
            return None
        return avg_jct_s / self.avg_jct_s


def bound_mean_jct(
    workload: Workload, setting: Setting, *, rounds: int = ROUNDS, watch: Watch | None = None
) -> Bound:
    """
    Compute a lower bound on the mean completion time of the workload under any policy.

    ``watch`` is called with (rounds done, rounds in all). Raises :class:`BadInput` if no job fits
    into the cluster, or nothing is known of the speed of one.
    """
    demands = read_demands(workload, setting)
    if not demands.jobs:
        raise BadInput(
            workload.name,
            f"has no job that can run on {sum(demands.gpus.values())} GPUs",
            remedy="give a larger cluster, or the types of GPU that its jobs ask for",
        )
    record = World(workload, setting, policy=policies.make(REFERENCE)).play()
    bounded = {demand.job for demand in demands.jobs}
    kept = [job for job in record.jobs if job.job in bounded]
    ends = [record.ended_at if job.completed_at is None else job.completed_at for job in kept]
    times = Times(np.sort([job.submitted_at for job in kept]), np.sort(ends))
    return _improve(demands, times, rounds=rounds, watch=watch)


def _improve(demands: Demands, times: Times, *, rounds: int, watch: Watch | None) -> Bound:
    """Search for prices, and compute what the best of them prove."""
    jobs = demands.jobs
    count = len(jobs)
    earliest_end = max(job.submitted_at + job.alone_s for job in jobs)
    wanted = int(min(max(BINS_PER_JOB * count, FEWEST_BINS), MOST_BINS))
    market = Market(demands.gpus, choose_edges(times, earliest_end, bins=wanted))
    dual = Dual(jobs, market)
    ascent = ascend(dual, start_prices(dual, times), rounds=rounds, watch=watch)
    fine = Dual(jobs, market, ratio=FINE_RATIO).prove(ascent.prices).total_s
    alone = sum(job.alone_s for job in jobs) / count
    earlier = ascent.values[len(ascent.values) * 3 // 4] / count
    found = max(fine, ascent.values[-1]) / count
    return Bound(
        # No job is done before it would be alone, even if the prices prove a smaller bound.
        avg_jct_s=max(0.0, max(found, alone) - CLOCK_S),
        jobs=count,
        dropped=demands.dropped,
        never=demands.never,
        rounds=rounds,
        bins=market.bins,
        alone_s=alone,
        reference=REFERENCE,
        reference_avg_jct_s=float(np.mean(times.completed) - np.mean(times.submitted)),
        last_gain=max(0.0, ascent.values[-1] / count - earlier) / max(found, 1e-300),
    )

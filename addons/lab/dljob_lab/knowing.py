"""
The true speeds of a workload that policies may know: all, or those that mini-epochs show.

:mod:`dljob.sim.scenarios` calls it for ``dljob simulate`` with ``--known`` and ``--predictor``, after the
workload was read. The truth stays what it is; only :attr:`~dljob.sim.jobs.workloads.Workload.known` changes.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise

from dljob.core.model import Mechanism
from dljob.core.predicting import mini_epochs
from dljob.core.profiles import Costs, JobType, Profile
from dljob.sim.jobs.workloads import Workload
from dljob_lab import marginal_utility, roles
from dljob_wire.messages import Shape


def know_by_mini_epochs(workload: Workload) -> Workload:
    """Let policies know what the mini-epochs of each type of job would have shown."""
    options = _options_by_type(workload)
    known = {
        kind: replace(profile, speeds={s: profile.speeds[s] for s in _measured(profile, counts)})
        for kind, profile in workload.known.items()
        if (counts := mini_epochs.count_gpus(options.get(kind, ())))
    }
    return replace(workload, known={**workload.known, **known})


def believe_marginal_utility(workload: Workload) -> Workload:
    """Let policies believe Coach's function, fitted to what they know, in every shape there is."""
    # Jobs of one type have their workers and servers alike.
    jobs = {traced.job.type: traced.job for traced in reversed(workload.jobs)}
    known = {
        kind: marginal_utility.believe(
            profile, workload.truths[kind].speeds, split=partial(roles.split, jobs[kind])
        )
        for kind, profile in workload.known.items()
        if kind in jobs
    }
    return replace(workload, known={**workload.known, **known})


def price_mini_epochs(
    workload: Workload, costs: Costs, *, mechanism: Mechanism
) -> Mapping[JobType, float]:
    """Return how many seconds the mini-epochs of a job of each type take before it trains."""
    prices = {}
    for kind, options in _options_by_type(workload).items():
        profile = workload.truths[kind]
        speeds = {s.gpus: profile.speeds[s].iterations_per_s for s in _measured(profile, options)}
        plan = mini_epochs.plan(options, speeds[options[0]])
        # The tuning before the plan costs one mini-epoch more, and each other number of GPUs a restart.
        trained = sum(epoch.iterations / speeds[epoch.gpus] for epoch in (plan[0], *plan))
        own = profile.costs or costs
        restart = own.pod_restart if mechanism is Mechanism.RECREATE else own.process_restart
        changes = pairwise(plan)
        prices[kind] = trained + sum(
            restart(new.gpus) for old, new in changes if new.gpus != old.gpus
        )
    return prices


def _options_by_type(workload: Workload) -> dict[JobType, tuple[int, ...]]:
    """Map each type to the numbers of GPUs that its jobs can run on."""
    options: dict[JobType, set[int]] = {}
    for traced in workload.jobs:
        options.setdefault(traced.job.type, set()).update(traced.job.gpus.options)
    return {kind: tuple(sorted(counts)) for kind, counts in options.items()}


def _measured(profile: Profile, counts: tuple[int, ...]) -> list[Shape]:
    """The shape with each of these counts on the fewest nodes, all of one type of GPU."""
    chosen: dict[int, Shape] = {}
    types = sorted({shape.gpu_type for shape in profile.speeds})
    for shape in sorted(profile.speeds, key=lambda s: (s.gpus, s.nodes)):
        if shape.gpus in counts and shape.gpu_type == types[0]:
            chosen.setdefault(shape.gpus, shape)
    return list(chosen.values())

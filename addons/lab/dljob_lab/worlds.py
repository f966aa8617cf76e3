"""
The worlds of published evaluations, so that figures can be held next to others'.

:mod:`dljob.sim.scenarios` finds the :class:`Rules` of one by the entry points ``dljob.scenarios`` for
``dljob simulate --world NAME``, and the reproductions in :data:`WORLDS`. A world is not a workload:
it gives the cluster on which the jobs of any trace are played, their speeds, the costs of changes,
how often decisions are made, and the numbers of GPUs that a job may have. The rules become values
that the simulator and every policy know already:

====================  =========================  ==================================================
rule                  function                   where it ends up
====================  =========================  ==================================================
cluster               :attr:`Rules.machines`     nodes, unless the user names others
rounds, growth        :meth:`Rules.settle`       :class:`~dljob.sim.engine.settings.Setting`
trace to model        :meth:`Rules.assign`       the requests of a trace that knows no models
speeds                :func:`divide`             profiles, the true and the known ones
charges               :func:`divide`             costs in these profiles
one GPU, packing      :func:`demand_of`          the options of each job
interference          :func:`demand_of`          ``GpuDemand.whole_nodes`` of each job
====================  =========================  ==================================================

The rules for a policy are limits of where a job can run, so no policy has to know of worlds,
and a policy that plans against a rule gets the nearest placement that keeps it, or none.

Sources: **afs** is Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning" (NSDI
2021), sections 4.4 and 5.1; **pollux** is Qiao et al. (OSDI 2021), section 5.3, as their simulator
has it (petuum/adaptdl, branch osdi21-artifact); **sia** is Jayaram Subramanya et al. (SOSP 2023) as
released (siasosp23/artifacts). ``docs/simulator-inputs.md`` lists what is left out.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dljob.core.model import GpuDemand, Job, Node
from dljob.core.profiles import Costs, JobType, Profile
from dljob.sim.clusters import Machines
from dljob.sim.engine.controlling.costs import costs_of_change
from dljob.sim.engine.controlling.rounds import Growth
from dljob.sim.engine.settings import Setting
from dljob.sim.inputs.shipped import load_shipped
from dljob.sim.inputs.traces import Kind, Request, Trace
from dljob.sim.jobs.curves import Curve
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob_lab.pollux_traces import PolluxApplications


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a world. The defaults change nothing."""

    name: str
    machines: tuple[Machines, ...]
    costs: Costs
    """The cost of a start or a change for a model that is not among the charges."""
    charges: Mapping[str, float] = field(default_factory=dict)
    """In seconds, by model."""
    divisors: Mapping[str, float] = field(default_factory=dict)
    """By what the speeds of a model are divided; 1 for those that are not here."""
    round_s: float = 0.0
    growth: Growth | None = None
    assigns_models: bool = False
    """True if a trace that knows no models is given Pollux's applications, by GPU time."""
    one_gpu: frozenset[str] = frozenset()
    """Models that are not distributed."""
    only_powers: bool = False
    """True if a job on one node has a power of two of its GPUs."""
    shares_network: bool = True
    """True if two jobs that are each on several nodes may be on one of them together."""

    def charging(self, seconds: float) -> "Rules":
        """Charge ``seconds`` for each start and change, in place of the costs and charges of this world."""
        return replace(self, costs=costs_of_change(seconds), charges={})

    def settle(self, setting: Setting) -> Setting:
        """Let decisions be made in rounds, and jobs grow as far as this world lets them."""
        if not self.round_s:
            return replace(setting, growth=self.growth)
        # Their simulators ask the policy in every round, whether anything has happened or not.
        period_s = min(setting.period_s, self.round_s)
        return replace(setting, growth=self.growth, round_s=self.round_s, period_s=period_s)

    def assign(self, trace: Trace, *, seed: int) -> Trace:
        """
        Give the jobs of a trace that knows no models one of Pollux's applications each.

        By the GPU time of the trace, as its authors did (their script drops jobs below a minute and
        beyond 1,000 GPU-hours, this does not). From then on a job is a full training of its
        application: of the trace only the time of submission is left. The lots depend on the seed and
        the name of the job.
        """
        if not self.assigns_models or trace.kind not in (Kind.DURATIONS, Kind.ITERATIONS):
            return trace
        applications = _Applications()
        requests = tuple(_assign_one(each, applications, seed=seed) for each in trace.requests)
        return Trace(Kind.POLLUX, requests)

    def adapt(self, workload: Workload, *, nodes: tuple[Node, ...], rigid: bool) -> Workload:
        """
        Let the jobs of a workload obey the rules of this world on these nodes.

        Rigid jobs keep the number of GPUs that they ask for, packed or not: the evaluations have no
        other rule for them.
        """
        jobs, notes = workload.jobs, workload.notes
        if not rigid:
            widest = max(len(node.gpus) for node in nodes)
            jobs = tuple(_adapt_job(self, each, node_gpus=widest) for each in jobs)
        pairs = zip(jobs, workload.jobs, strict=True)
        rounded = sum(new.job.gpus.requested != old.job.gpus.requested for new, old in pairs)
        if rounded:
            notes = (
                *notes,
                f"world {self.name}: {rounded} requests were rounded down, see --world",
            )
        return replace(
            workload,
            jobs=jobs,
            truths={kind: divide(self, each) for kind, each in workload.truths.items()},
            known={kind: divide(self, each) for kind, each in workload.known.items()},
            notes=notes,
            rule=f"each job those that the rules of the world {self.name} allow",
        )


SIA_CHARGES = {
    "bert": 120.0,
    "cifar10": 50.0,
    "deepspeech2": 25.0,
    "imagenet": 250.0,
    "ncf": 15.0,
    "yolov3": 80.0,
}
"""``RESTART_TIMES`` of its simulator, in seconds; 30 for every other model."""

SIA_DIVISORS = {
    "bert": 1.2,
    "cifar10": 1.8,
    "deepspeech2": 1.2,
    "imagenet": 1.2,
    "ncf": 1.5,
    "yolov3": 1.2,
}
"""``CALIBRATION_FACTORS`` of its simulator: the factor by which real jobs were slower; 1 for others."""

CHANGE_S = 30.0
"""The charge of Pollux's simulator for every start and change, the first start too."""

ROUND_S = 60.0
"""How often Pollux's and Sia's simulators decide."""

AFS = Rules(
    name="afs",
    # GTX 1080, for which no speeds were published: the shipped ones are taken as they are.
    machines=(Machines(16, 4),),
    costs=Costs(),
    only_powers=True,
    shares_network=False,
)

POLLUX = Rules(
    name="pollux",
    machines=(Machines(16, 4, "T4"),),
    costs=costs_of_change(CHANGE_S),
    round_s=ROUND_S,
    growth=Growth(factor=2, at_first=1, most=64),
    assigns_models=True,
    one_gpu=frozenset({"ncf"}),
    shares_network=False,
)

SIA = replace(
    POLLUX,
    name="sia",
    charges=SIA_CHARGES,
    divisors=SIA_DIVISORS,
    one_gpu=frozenset(),
    shares_network=True,
)

WORLDS: Mapping[str, Rules] = {rules.name: rules for rules in (AFS, POLLUX, SIA)}
"""By the name that users type."""


# --- which model a job of a trace is -----------------------------------------------------------

HOUR = 3600.0

BY_GPU_TIME: tuple[tuple[float, tuple[str, ...]], ...] = (
    (1 * HOUR, ("cifar10", "ncf")),
    (10 * HOUR, ("deepspeech2", "bert")),
    (100 * HOUR, ("yolov3",)),
    (math.inf, ("imagenet",)),
)
"""Up to how many GPU-seconds a job of a trace is one of which applications, each as likely."""

REQUESTS = (2, 4, 6, 8, 12, 16, 24, 32, 48)
"""The numbers of GPUs that may be asked for; a single one if none of these is used well."""

WELL_USED = (0.5, 0.8)
"""Between which parts of a linear speed-up the training on the requested GPUs is."""

LONGEST_S = 12 * HOUR
"""A request must let the job train in less than that."""


class Configuration(NamedTuple):
    """The request of a job, and how long it trains with that."""

    gpus: int
    batch_size: int
    seconds: float


def _assign_one(request: Request, applications: "_Applications", *, seed: int) -> Request:
    # A string, because Python seeds with those alike in every process.
    lots = random.Random(f"{seed}/world/{request.id}")
    model = lots.choice(choose_models(request.duration * request.gpus))
    chosen = lots.choice(applications.find_requests(model))
    return replace(
        request, model=model, gpus=chosen.gpus, batch_size=chosen.batch_size, iterations=0.0
    )


def choose_models(gpu_seconds: float) -> tuple[str, ...]:
    """The applications that a job of this GPU time may be."""
    return next(models for limit, models in BY_GPU_TIME if gpu_seconds < limit)


class _Applications:
    """The possible requests of Pollux's applications, computed once for each."""

    def __init__(self) -> None:
        self._applications = PolluxApplications(load_shipped())
        self._requests: dict[str, tuple[Configuration, ...]] = {}

    def find_requests(self, model: str) -> tuple[Configuration, ...]:
        """Each number of GPUs that the application uses well, with the batch size that trains fastest there."""
        if model not in self._requests:

            def find_best(gpus: int) -> Configuration | None:
                found = self._iter_configurations(model, gpus)
                return min(found, key=lambda each: each.seconds, default=None)

            self._requests[model] = find_well_used(find_best)
        return self._requests[model]

    def _iter_configurations(self, model: str, gpus: int) -> Iterator[Configuration]:
        for batch, iterations in sorted(self._applications.batches_of(model).items()):
            kind = JobType(model, "", batch)
            profile = self._applications.profile_at(kind)
            # A batch that is too small for these GPUs was not measured with them.
            if profile is None or max(shape.gpus for shape in profile.speeds) < gpus:
                continue
            speed = Curve(profile).speed(gpus, "T4")
            yield Configuration(gpus, batch, iterations / speed)


def find_well_used(find_best: Callable[[int], Configuration | None]) -> tuple[Configuration, ...]:
    """Find the requests of an expert: half to four fifths of a linear speed-up over one GPU."""
    alone = find_best(1)
    assert alone is not None  # Every application was measured on one GPU.
    low, high = WELL_USED
    found = []
    for gpus in REQUESTS:
        best = find_best(gpus)
        if best is None or best.seconds >= LONGEST_S:
            continue
        if low < alone.seconds / best.seconds / gpus < high:
            found.append(best)
    return tuple(found) or (alone,)


# --- the jobs ---------------------------------------------------------------------------------


def _adapt_job(rules: Rules, traced: TracedJob, *, node_gpus: int) -> TracedJob:
    demand = demand_of(rules, traced.job, node_gpus=node_gpus)
    return replace(traced, job=replace(traced.job, gpus=demand))


def demand_of(rules: Rules, job: Job, *, node_gpus: int) -> GpuDemand:
    """
    Leave a job the numbers of GPUs that this world packs, and round its request down to one.

    A job that could run on none of them keeps what it has, sharing nodes as it comes.
    """
    demand = job.gpus
    options = demand.options[:1] if job.type.model in rules.one_gpu else demand.options
    if not rules.shares_network:
        powers = rules.only_powers
        options = tuple(n for n in options if is_packed(n, node_gpus, only_powers=powers))
    if not options:
        return demand
    requested = max((n for n in options if n <= demand.requested), default=options[0])
    return replace(
        demand, options=options, requested=requested, whole_nodes=not rules.shares_network
    )


def is_packed(gpus: int, node_gpus: int, *, only_powers: bool) -> bool:
    """
    Return whether ``gpus`` GPUs fill nodes, or fit into one.

    With only powers of two in a node this is AFS's network packing (4.4): 1, 2 or 4n GPUs on nodes
    of four. Then no two jobs that are each on several nodes need ever meet on one (appendix E).
    """
    if gpus > node_gpus:
        return gpus % node_gpus == 0
    return not only_powers or gpus.bit_count() == 1 or gpus == node_gpus


# --- how fast they are, and what a change costs them -------------------------------------------


def divide(rules: Rules, profile: Profile) -> Profile:
    """Divide the speeds by the factor by which a real cluster was slower; charge unless costs were measured."""
    model = profile.type.model
    divisor, seconds = rules.divisors.get(model, 1.0), rules.charges.get(model)
    if divisor != 1.0:
        speeds = {
            shape: speed._replace(iterations_per_s=speed.iterations_per_s / divisor)
            for shape, speed in profile.speeds.items()
        }
        profile = replace(profile, speeds=speeds)
    if seconds is not None and profile.costs is None:
        profile = replace(profile, costs=costs_of_change(seconds))
    return profile

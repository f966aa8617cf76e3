"""
A scenario: everything apart from the policy that determines a simulation, as one value.

The verbs make one of their command lines, and :mod:`dljob_lab.comparing` one of each combination that
it plays; it can be sent to another process. :func:`build_setting`, :func:`read_workload` and
:func:`charge_trials` turn it into what :mod:`dljob.sim.simulating` plays.
"""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dljob.core.model import Cluster, Mechanism
from dljob.core.placement.limits import NamespaceLimits
from dljob.core.profiles import JobType, Profile
from dljob.sim import knowing, worlds
from dljob.sim.beliefs import Beliefs, believe
from dljob.sim.clusters import Machines, build_counted, build_packed
from dljob.sim.engine import failures
from dljob.sim.engine.controlling.costs import DEFAULT_COSTS, costs_of_change
from dljob.sim.engine.settings import Setting
from dljob.sim.inputs import shipped
from dljob.sim.jobs import savings, workloads
from dljob.sim.jobs.sampling import Sample, sample
from dljob.sim.jobs.workloads import Workload
from dljob.sim.worlds import WORLDS, Rules

MINI_EPOCHS = "mini-epochs"
NONE = "none"

PERIOD_S = 15.0
"""The longest time between two decisions of a controller."""
MARGINAL_UTILITY = "marginal-utility"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A trace, a cluster, and what is known, costs and fails there."""

    trace: Path
    machines: tuple[Machines, ...]
    world: str | None = None
    """By whose rules it is played (:mod:`dljob.sim.worlds`)."""
    counted: bool = False
    """True if GPUs are only counted, without nodes."""
    mechanism: Mechanism = Mechanism.IN_PLACE
    restart_cost_s: float | None = None
    """The cost of each start and change; ``None``: as its world says, else the default costs."""
    period_s: float = math.inf
    failures: Path | None = None
    no_checkpoint: float = 0.0
    """Which share of the jobs has no checkpoint, drawn by the seed."""
    broken_checkpoint: float = 0.0
    """Which share of them declares one that does not work."""
    trial_s: float = 0.0
    """How long the trial of a checkpoint takes from the first step of a job on."""
    limits: NamespaceLimits = field(default=NamespaceLimits(), hash=False)
    rigid: bool = False
    speeds: Path | None = None
    profiles: Path | None = None
    seed: int = 0
    window: int | None = None
    load: float | None = None
    speed_error: float = 0.0
    size_error: float = 0.0
    sizes_known: bool = True
    known: str = "all"
    """
    Which speeds policies know: all, those of ``mini-epochs`` (:mod:`dljob.sim.knowing`), or none but
    what jobs show in the course of the run (:mod:`dljob.sim.engine.learning`).
    """
    predictor: str = "own"
    """How policies conclude to other speeds: as DLJob does, or by ``marginal-utility``."""

    @property
    def rules(self) -> Rules | None:
        """The rules of its world; a restart cost takes the place of all that it charges."""
        if self.world is None:
            return None
        rules, cost = WORLDS[self.world], self.restart_cost_s
        return rules if cost is None else replace(rules, costs=costs_of_change(cost), charges={})

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that is read for it."""
        named = (self.trace, self.speeds, self.profiles, self.failures)
        return tuple(path for path in named if path is not None)


def build_setting(scenario: Scenario) -> Setting:
    """Build the world in which the jobs are played."""
    build = build_counted if scenario.counted else build_packed
    nodes = build(scenario.machines)
    cost, outages = scenario.restart_cost_s, scenario.failures
    rules = scenario.rules
    usual = DEFAULT_COSTS if cost is None else costs_of_change(cost)
    setting = Setting(
        nodes=nodes,
        mechanism=scenario.mechanism,
        costs=usual if rules is None else rules.costs,
        seed=scenario.seed,
        period_s=min(scenario.period_s, PERIOD_S) if scenario.known == NONE else scenario.period_s,
        outages=failures.read_failures(outages, {n.name for n in nodes}) if outages else (),
        limits=scenario.limits,
        trial_s=scenario.trial_s,
        # Speeds that are wrong are corrected as controllers correct them.
        learns=scenario.known == NONE or scenario.speed_error > 0.0,
    )
    return setting if rules is None else worlds.settle(rules, setting)


def read_workload(scenario: Scenario, setting: Setting) -> Workload:
    """Read the trace with measured speeds, cut and stretch it, and say what policies believe."""
    cluster = Cluster(setting.nodes)
    width = max(len(node.gpus) for node in setting.nodes)
    measured: dict[JobType, Profile] = {}
    if scenario.speeds is not None:
        measured |= shipped.load_speeds(scenario.speeds, gpus_per_node=width)
    if scenario.profiles is not None:
        measured |= shipped.load_profiles(scenario.profiles)
    rules, rigid, seed = scenario.rules, scenario.rigid, scenario.seed
    workload = workloads.read(
        scenario.trace,
        rigid=rigid,
        speeds=measured,
        seed=seed,
        # The durations of a trace are for the first type.
        gpu_types=tuple(dict.fromkeys(node.gpu_type for node in cluster.nodes)),
        largest=max(cluster.totals.values()),
        node_gpus=width,
        assign=None if rules is None else partial(worlds.assign, rules, seed=seed),
    )
    if rules is not None:
        workload = worlds.adapt(rules, workload, nodes=setting.nodes, rigid=rigid)
    none, broken = scenario.no_checkpoint, scenario.broken_checkpoint
    workload = savings.draw(workload, none=none, broken=broken, seed=seed)
    part = Sample(window=scenario.window, load=scenario.load, seed=seed)
    beliefs = Beliefs(
        speed_error=scenario.speed_error,
        size_error=scenario.size_error,
        sizes_known=scenario.sizes_known,
        seed=seed,
    )
    workload = sample(workload, cluster, wanted=part)
    if scenario.known == MINI_EPOCHS:
        workload = knowing.know_by_mini_epochs(workload)
    if scenario.known == NONE:
        workload = replace(workload, known={})
    # Speeds that were measured are wrong before anything is concluded from them.
    workload = believe(workload, beliefs)
    if scenario.predictor == MARGINAL_UTILITY:
        workload = knowing.believe_predictor(workload, scenario.predictor)
    return workload


def charge_trials(scenario: Scenario, setting: Setting, *, workload: Workload) -> Setting:
    """Charge every job for the mini-epochs that it trains first."""
    if scenario.known != MINI_EPOCHS:
        return setting
    trials = knowing.price_mini_epochs(workload, setting.costs, mechanism=setting.mechanism)
    return replace(setting, trials=trials)

"""
A scenario: everything apart from the policy that determines a simulation, as one value.

The verbs make one of their command lines, and :mod:`dljob_lab.comparing` one of each combination that
it plays; it can be sent to another process. :func:`build_setting`, :func:`read_workload` and
:func:`charge_trials` turn it into what :mod:`dljob.sim.simulating` plays.
"""

import math
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from dljob.core.model import Cluster, Mechanism, Node, NodeName
from dljob.core.placement.limits import NamespaceLimits
from dljob.core.profiles import Costs, JobType, Profile
from dljob.installed import load_scenario
from dljob.sim.beliefs import Beliefs, believe
from dljob.sim.clusters import Machines, build_counted, build_packed
from dljob.sim.engine.controlling.costs import (
    DEFAULT_COSTS,
    LIVE_GROW_S,
    LIVE_SHRINK_S,
    costs_of_change,
)
from dljob.sim.engine.settings import Outage, Setting
from dljob.sim.inputs import shipped
from dljob.sim.inputs.tables import Table
from dljob.sim.inputs.traces import Trace
from dljob.sim.jobs import workloads
from dljob.sim.jobs.checkpointing import Kind
from dljob.sim.jobs.sampling import Sample, sample
from dljob.sim.jobs.workloads import TracedJob, Workload

MINI_EPOCHS = "mini-epochs"
NONE = "none"

PERIOD_S = 15.0
"""The longest time between two decisions of a controller."""
MARGINAL_UTILITY = "marginal-utility"

LAB_WORLDS: Final = ("afs", "pollux", "sia")
"""The worlds of dljob-lab, which a user may name where it is missing."""


class Rules(Protocol):
    """The rules of a world of an add-on; :class:`dljob_lab.worlds.Rules` explains each."""

    @property
    def machines(self) -> tuple[Machines, ...]: ...
    @property
    def costs(self) -> Costs: ...
    def charging(self, seconds: float) -> "Rules": ...
    def settle(self, setting: Setting) -> Setting: ...
    def assign(self, trace: Trace, *, seed: int) -> Trace: ...
    def adapt(self, workload: Workload, *, nodes: tuple[Node, ...], rigid: bool) -> Workload: ...


def load_rules(world: str) -> Rules:
    """Import the rules of a world; raises :class:`~dljob.installed.MissingExtra` without the add-on."""
    rules: Rules = load_scenario(world)
    return rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A trace, a cluster, and what is known, costs and fails there."""

    trace: Path
    machines: tuple[Machines, ...]
    world: str | None = None
    """The published evaluation by whose rules it is played (:mod:`dljob_lab.worlds`)."""
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
    live_jobs: float = 0.0
    """Which share of the jobs changes GPUs live, drawn by the seed, in addition to the live jobs of the trace."""
    live_cost_s: tuple[float, float] = (LIVE_SHRINK_S, LIVE_GROW_S)
    """The pauses of a live change to fewer and to more GPUs, of jobs whose profile holds no measured ones."""
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
    Which speeds policies know: all, those of ``mini-epochs`` (:mod:`dljob_lab.knowing`), or none but
    what jobs show in the course of the run (:mod:`dljob.sim.engine.learning`).
    """
    predictor: str = "own"
    """How policies conclude to other speeds: as DLJob does, or by ``marginal-utility``."""

    @property
    def rules(self) -> Rules | None:
        """The rules of its world; a restart cost takes the place of all that it charges."""
        if self.world is None:
            return None
        rules, cost = load_rules(self.world), self.restart_cost_s
        return rules if cost is None else rules.charging(cost)

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
        costs=_with_live(usual if rules is None else rules.costs, scenario),
        seed=scenario.seed,
        period_s=min(scenario.period_s, PERIOD_S) if scenario.known == NONE else scenario.period_s,
        outages=read_failures(outages, {n.name for n in nodes}) if outages else (),
        limits=scenario.limits,
        trial_s=scenario.trial_s,
        # Speeds that are wrong are corrected as controllers correct them.
        learns=scenario.known == NONE or scenario.speed_error > 0.0,
    )
    return setting if rules is None else rules.settle(setting)


def read_failures(path: Path, nodes: Collection[NodeName]) -> tuple[Outage, ...]:
    """Read nodes that fail and come back: CSV with ``time_s,node,event``, where the event is ``lost`` or ``back``."""
    table = Table.read(path, required=("time_s", "node", "event"))
    outages: list[Outage] = []
    lost: dict[NodeName, Outage] = {}
    rows = [(row.seconds("time_s"), row) for row in table]
    for time, row in sorted(rows, key=lambda each: each[0]):
        node, event = NodeName(row.name("node")), row.text("event")
        if node not in nodes:
            raise row.error(
                f"the cluster has no node {str(node)!r}",
                field="node",
                remedy=f"its nodes are {min(nodes)} to {max(nodes)}",
            )
        if event not in ("lost", "back"):
            raise row.error(f"{event!r} is no event", field="event", remedy="write lost or back")
        if event == "lost" and node in lost:
            raise row.error(
                f"{node} is lost already, since {lost[node].lost_at:g} s",
                field="event",
                remedy="add the row that says when it came back",
            )
        if event == "back" and node not in lost:
            raise row.error(
                f"{node} comes back but was not lost before",
                field="event",
                remedy="add the row that says when it was lost",
            )
        if event == "lost":
            lost[node] = Outage(node, time)
        else:
            outages.append(replace(lost.pop(node), back_at=time))
    return tuple(sorted((*outages, *lost.values()), key=lambda each: each.lost_at))


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
        assign=None if rules is None else partial(rules.assign, seed=seed),
    )
    if rules is not None:
        workload = rules.adapt(workload, nodes=setting.nodes, rigid=rigid)
    none, broken = scenario.no_checkpoint, scenario.broken_checkpoint
    workload = draw_checkpoints(workload, none=none, broken=broken, seed=seed)
    workload = _charge_live(draw_live(workload, scenario.live_jobs, seed=seed), scenario)
    part = Sample(window=scenario.window, load=scenario.load, seed=seed)
    beliefs = Beliefs(
        speed_error=scenario.speed_error,
        size_error=scenario.size_error,
        sizes_known=scenario.sizes_known,
        seed=seed,
    )
    workload = sample(workload, cluster, wanted=part)
    if scenario.known == MINI_EPOCHS:
        workload = load_scenario(MINI_EPOCHS).know_by_mini_epochs(workload)
    if scenario.known == NONE:
        workload = replace(workload, known={})
    # Speeds that were measured are wrong before anything is concluded from them.
    workload = believe(workload, beliefs)
    if scenario.predictor == MARGINAL_UTILITY:
        workload = load_scenario(MARGINAL_UTILITY)(workload)
    return workload


def charge_trials(scenario: Scenario, setting: Setting, *, workload: Workload) -> Setting:
    """Charge every job for the mini-epochs that it trains first."""
    if scenario.known != MINI_EPOCHS:
        return setting
    price = load_scenario(MINI_EPOCHS).price_mini_epochs
    trials = price(workload, setting.costs, mechanism=setting.mechanism)
    return replace(setting, trials=trials)


def draw_checkpoints(workload: Workload, *, none: float, broken: float, seed: int) -> Workload:
    """Let such shares of the jobs have no checkpoint, or a broken one, by lot."""
    if not none and not broken:
        return workload
    jobs = list(workload.jobs)
    for place, traced in enumerate(jobs):
        # By the job's name, so that a part of a trace has the same jobs without one as the whole.
        lot = random.Random(f"{seed}/checkpoint/{traced.job.id}").random()
        if lot < none + broken:
            jobs[place] = with_checkpoint(traced, Kind.NONE if lot < none else Kind.BROKEN)
    return replace(workload, jobs=tuple(jobs))


def draw_live(workload: Workload, share: float, *, seed: int) -> Workload:
    """Let such a share of the jobs change their GPUs live, by lot."""
    if not share:
        return workload
    jobs = (
        # By the job's name, so that a part of a trace has the same live jobs as the whole.
        replace(traced, is_live=True)
        if random.Random(f"{seed}/live/{traced.job.id}").random() < share
        else traced
        for traced in workload.jobs
    )
    return replace(workload, jobs=tuple(jobs))


def _charge_live(workload: Workload, scenario: Scenario) -> Workload:
    """Give types with measured costs the usual pauses of live changes, if these were not measured."""
    if not any(traced.is_live for traced in workload.jobs):
        return workload

    def charge(profiles: Mapping[JobType, Profile]) -> dict[JobType, Profile]:
        return {
            kind: profile
            if profile.costs is None
            else replace(profile, costs=_with_live(profile.costs, scenario))
            for kind, profile in profiles.items()
        }

    return replace(workload, truths=charge(workload.truths), known=charge(workload.known))


def _with_live(costs: Costs, scenario: Scenario) -> Costs:
    if costs.live_shrink or costs.live_grow:
        return costs
    shrink_s, grow_s = scenario.live_cost_s
    return replace(costs, live_shrink=shrink_s, live_grow=grow_s)


def with_checkpoint(traced: TracedJob, kind: Kind) -> TracedJob:
    """Show a job with a checkpoint of this kind."""
    return replace(traced, saves=kind == Kind.GOOD, declares=kind != Kind.NONE)

"""
Policies of ours next to those of others, on the same jobs: what several reproductions share.

:mod:`dljob_lab.reproducing.pollux`, :mod:`dljob_lab.reproducing.shockwave` and
:mod:`dljob_lab.reproducing.rubick` name an :class:`Entry` for each comparison. An entry is played if
its policy is listed, so a reproduction grows with the list of policies.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dljob.core.model import Mechanism
from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob.sim.clusters import Machines, build_counted, build_packed
from dljob.sim.engine.settings import Setting
from dljob.sim.jobs import workloads
from dljob.sim.jobs.workloads import Workload
from dljob.sim.simulating import Contestant, Outcome, Watch, simulate
from dljob_lab.worlds import Rules

SEARCHING = frozenset({"sia", "ones"})
"""
Policies that search for minutes where others take seconds.

A reproduction leaves them out where it says so, unless all of it is asked for (``--full``).
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A policy of ours, and the policy of the authors next to which its figures are set."""

    policy: str
    """As a user writes it, with options."""
    beside: str
    rigid: bool = False
    """True if each job runs on exactly the GPUs that it asks for."""

    @property
    def name(self) -> str:
        """The policy without options."""
        return self.policy.partition(":")[0]

    @property
    def is_slow(self) -> bool:
        """Return whether it searches for minutes."""
        return self.name in SEARCHING


def keep_listed(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Keep the entries whose policy is part of this version."""
    return tuple(entry for entry in entries if entry.name in policies.POLICIES)


@dataclass(frozen=True, slots=True)
class Arena:
    """Where a trace is played: a cluster, what a change costs, and the rules of a world if any."""

    machines: Machines
    costs: Costs
    counted: bool = False
    """True if only the number of GPUs matters."""
    rules: Rules | None = None
    round_s: float = 0.0

    def build(self) -> Setting:
        """Build what stays the same for every policy."""
        build = build_counted if self.counted else build_packed
        # By recreation pods that cost nothing are made when their GPUs are free: a start and a
        # change cost the same, and nothing goes on in the meantime, as in the other simulators.
        setting = Setting(
            nodes=build([self.machines]),
            costs=self.costs,
            mechanism=Mechanism.RECREATE,
            round_s=self.round_s,
        )
        return setting if self.rules is None else self.rules.settle(setting)

    def read(self, path: Path, setting: Setting, *, rigid: bool) -> Workload:
        """Read a trace for it."""
        rules = self.rules
        workload = workloads.read(
            path,
            rigid=rigid,
            speeds=None,
            seed=setting.seed,
            gpu_types=(self.machines.gpu_type,),
            largest=self.machines.nodes * self.machines.gpus,
            node_gpus=max(len(node.gpus) for node in setting.nodes),
            assign=None if rules is None else partial(rules.assign, seed=setting.seed),
        )
        if rules is None:
            return workload
        return rules.adapt(workload, nodes=setting.nodes, rigid=rigid)


def play(entry: Entry, path: Path, *, arena: Arena) -> tuple[Outcome, Workload]:
    """Play a trace under one policy."""
    setting = arena.build()
    workload = arena.read(path, setting, rigid=entry.rigid)
    (outcome,) = simulate(
        workload, setting, contestants=[Contestant(entry.name, policies.read(entry.policy))]
    )
    # A record holds every event; of twenty replays the scores are enough.
    record = replace(outcome.record, log=[])
    return Outcome(outcome.score, record), workload


class Progress:
    """Reports how many replays are done."""

    def __init__(self, name: str, watch: Watch | None, *, total: int) -> None:
        self._name = name
        self._watch = watch
        self._total = total
        self._done = 0

    def step(self) -> None:
        """Count one more."""
        self._done += 1
        if self._watch is not None:
            self._watch(self._name, self._done, self._total)

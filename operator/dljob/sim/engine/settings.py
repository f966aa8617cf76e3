"""The settings of a simulated world, apart from its jobs: :mod:`dljob.sim.engine.world` plays a workload in it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dljob.core.model import Job, Mechanism, Node, NodeName, Placement
from dljob.core.placement.limits import NamespaceLimits
from dljob.core.profiles import Costs, JobType
from dljob.sim.engine.controlling.rounds import Growth

Contention = Callable[[Sequence[tuple[Job, Placement]]], Sequence[float]]
"""By all jobs that train and where: the share of its speed alone that the others leave each of them."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A node that fails, and when it comes back."""

    node: NodeName
    lost_at: float
    back_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings of a world, apart from its jobs."""

    nodes: tuple[Node, ...]
    mechanism: Mechanism = Mechanism.IN_PLACE
    costs: Costs = Costs()
    """For jobs whose profile holds no measured costs."""
    seed: int = 0
    outages: tuple[Outage, ...] = ()
    checkpoint_every_s: float = 600.0
    """The most training that a failing node destroys. Checkpoints before stops are additional."""
    period_s: float = math.inf
    """A decision is made at least so often, though nothing has happened, as controllers do it."""
    limits: NamespaceLimits = NamespaceLimits()
    """The limits for all jobs of a namespace together."""
    round_s: float = 0.0
    """Decisions are made at multiples of this only; 0: whenever something has happened."""
    growth: Growth | None = None
    """How far jobs may grow at once; ``None``: as far as they like."""
    trials: Mapping[JobType, float] = field(default_factory=dict)
    """How many seconds a job of a type is measured before it trains, on the GPUs that it is given."""
    tries: bool = True
    """True if a checkpoint that a job declares is tried before it is counted on, as controllers do it."""
    trial_s: float | None = 0.0
    """
    How long that takes from the first step on; the job keeps its GPUs meanwhile. ``None``: as long as it saves,
    and it stands still for that time.
    """
    learns: bool = False
    """True if decisions know only the reports of jobs so far (:mod:`dljob.sim.engine.learning`)."""
    keeps_work: bool = True
    """True if decisions know whose work nothing saves; without it one sees what the law is worth."""
    contention: Contention | None = None
    """How jobs slow each other down; ``None``: they do not."""

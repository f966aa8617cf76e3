"""A job and what is known of it at one instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dljob.core.model.causes import Cause
from dljob.core.model.jobs import Job, JobId
from dljob.core.model.nodes import NodeName
from dljob.core.model.placements import Placement
from dljob.core.placement.needs import Needs


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The GPUs that a job may have by the quota of its queue, which another program keeps."""

    gpus: int
    reason: str = field(default="", compare=False)
    """CamelCase, for programs; no news for a decision."""
    told: str = field(default="", compare=False)
    """A sentence without its first capital, for people; likewise."""
    is_whole: bool = False
    """The job is to have all of these GPUs, because it cannot change their number later."""

    def over(self, job: Job) -> Job:
        """Return the job as a policy may see it: with the numbers of GPUs that the quota permits, if it permits any."""
        if self.gpus < job.gpus.options[0]:
            return job
        demand = job.gpus.within(self.gpus)
        if self.is_whole:
            demand = replace(demand, options=(self.gpus,), requested=self.gpus)
        return job if demand is job.gpus else replace(job, gpus=demand)


@dataclass(frozen=True, slots=True, eq=False)
class JobState:
    """
    A job and what is known of it now.

    ``placement`` is the *decision*: the platform keeps track of further GPUs that the job still
    holds while a change is under way.
    """

    job: Job
    order: int
    """Its place in the order of arrival; ties of every policy are settled by it."""
    placement: Placement | None = None
    iterations_done: float = 0.0
    observed_at: float = 0.0
    """When ``iterations_done`` and ``service`` were true."""
    speed: float = 0.0
    """Iterations a second since then; 0 while nothing trains."""
    iterations_total: float = 0.0
    """How many it needs in all: asked for, or predicted from its target."""
    iterations_between: tuple[float, float] | None = None
    """Between which bounds that is, where it is predicted."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The metrics that it last reported, such as ``loss`` and ``accuracy``; empty without a report."""
    service: float = 0.0
    """GPU-seconds held until ``observed_at``."""
    gang: int = 0
    """How many GPUs it needs before it makes progress; 0: what it holds is complete."""
    adjusting: bool = False
    """True while a change of its GPUs, or its first start, is under way."""
    started_at: float | None = None
    """When GPUs were first decided for it."""
    waiting: Cause | None = None
    """The reason for waiting that was last reported."""
    bound_to: tuple[NodeName, ...] = ()
    """The nodes that hold its unshared checkpoint; empty when it may go anywhere."""
    batch_size: int | None = None
    needs: Needs | None = None
    """The needs of its pods in addition to GPUs; ``None`` if the platform does not count them."""
    pods_at: tuple[NodeName, ...] = ()
    """Where it has a pod already, which needs nothing more there."""
    unsaved_from: float | None = None
    """The iteration from which on its work would be lost with its process, because no checkpoint of
    it works; ``None``: it saves itself when it is asked to, or has done nothing yet."""
    risked_from: float | None = None
    """The iteration from which on a change may lose its work, because none of its checkpoints has
    proven to work yet: it may be changed, but that has its price. ``None``: it loses nothing."""
    keeps_first: bool = False
    """True if it will keep the GPUs that it starts with, because nothing saves its work."""
    lost_if_stopped: bool = False
    """All its work ends with its pods: its GPUs may change there, but a stop loses everything."""
    is_live: bool = False
    """
    Its processes stay when its GPUs change, as a trial has shown: those that lose their GPU leave, and others join.
    Never true where a change recreates pods.
    """
    ceiling: Ceiling | None = None
    """The quota of its queue, which ``job`` is within if that permits any of its numbers of GPUs; ``None``: no such queue."""
    id: JobId = field(init=False)
    """The job's, near at hand, because thousands of states are looked through at every event."""
    lacks_quota: bool = field(init=False)
    """True if the quota of its queue permits none of its numbers of GPUs."""
    least: int = field(init=False)
    """The fewest GPUs it can run on."""
    picky: bool = field(init=False)
    """True if it may be unable to run on some node that has enough GPUs."""

    def __post_init__(self) -> None:
        demand = self.job.gpus
        limited = self.needs is not None and self.needs.nodes is not None
        lacks_quota = self.ceiling is not None and self.ceiling.gpus < demand.options[0]
        picky = bool(self.job.suspend or demand.types or self.bound_to or limited or lacks_quota)
        object.__setattr__(self, "id", self.job.id)
        object.__setattr__(self, "least", demand.options[0])
        object.__setattr__(self, "lacks_quota", lacks_quota)
        object.__setattr__(self, "picky", picky)

    @property
    def has_allowed_size(self) -> bool:
        """True if its user allows the number of GPUs that it has, or that its gang will have."""
        placement = self.placement
        return placement is None or (self.gang or placement.shape.gpus) in self.job.gpus.options

    @property
    def exceeds_quota(self) -> bool:
        """True if the quota of its queue permits fewer GPUs than it has, or none of its numbers of GPUs."""
        ceiling, held = self.ceiling, self.placement
        has = max(self.gang, held.gpus) if held is not None else 0
        return ceiling is not None and max(has, self.least) > ceiling.gpus

    def has_pod_on(self, node: NodeName) -> bool:
        """Return whether a pod of it is on this node already, or is decided to be."""
        held = self.placement
        return node in self.pods_at or (held is not None and node in held.nodes)

    def may_be_at(self, placement: Placement) -> bool:
        """Return whether its user lets it run there, as far as nodes and types are concerned."""
        demand, shape = self.job.gpus, placement.shape
        if demand.max_nodes is not None and shape.nodes > demand.max_nodes:
            return False
        kinds = placement.gpu_type.split("+") if self.picky or "+" in placement.gpu_type else ()
        if (len(kinds) > 1 and not demand.mixed) or (
            demand.types and not set(kinds) <= set(demand.types)
        ):
            return False
        return not self.bound_to or set(placement.nodes) <= set(self.bound_to)

    def changes_live(self, placement: Placement) -> bool:
        """Return whether its processes live through a change to these GPUs: some stay where they are."""
        held = self.placement
        return (
            self.is_live
            and held is not None
            and held.gpu_type == placement.gpu_type
            and not set(held.refs()).isdisjoint(placement.refs())
        )

    @property
    def may_change_live(self) -> bool:
        """
        True if its GPUs can change now while its processes stay.

        During a change they are not yet where ``placement`` says, so they might all have to leave. After its last
        step it evaluates or exports, and comes to no further boundary of a step.
        """
        return self.is_live and not self.adjusting and self.iterations_done < self.iterations_total

    @property
    def may_be_joined(self) -> bool:
        """
        False if a process that cannot join would end the others, and so their work.

        In one container the SideCar withdraws such a change. Those of several containers do not know of each other whether
        their processes have agreed on it.
        """
        return (
            self.may_change_live and self.placement is not None and self.placement.shape.nodes == 1
        )

    def keeps_work_on(self, placement: Placement) -> bool:
        """
        Return whether a change to these GPUs surely loses no work of a job that no checkpoint saves.

        Only to a part of its GPUs, or from one node to more in addition to all of them: a job that exchanges some has to stop
        if it waits for GPUs of a job that waits for its own.
        """
        if self.placement is None or not self.may_change_live or not self.changes_live(placement):
            return False
        held, given = set(self.placement.refs()), set(placement.refs())
        return given <= held or (self.may_be_joined and held <= given)

    def iterations_at(self, now: float) -> float:
        """How many iterations are done by ``now``."""
        return self.iterations_done + self.speed * (now - self.observed_at)

    def unsaved_at(self, now: float) -> float:
        """How many iterations a change at ``now`` would lose, or may."""
        since = self.unsaved_from if self.unsaved_from is not None else self.risked_from
        return 0.0 if since is None else self.iterations_at(now) - since

    def remaining_at(self, now: float) -> float:
        """How many iterations are left at ``now``; never below zero."""
        return max(0.0, self.iterations_total - self.iterations_at(now))

    def service_at(self, now: float) -> float:
        """GPU-seconds held by ``now``."""
        if self.placement is None:
            return self.service
        return self.service + self.placement.shape.gpus * (now - self.observed_at)

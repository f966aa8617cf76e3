"""Everything that a decision is made from."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from dljob.core.model.clusters import Cluster
from dljob.core.model.job_states import JobState
from dljob.core.model.jobs import JobId
from dljob.core.placement.limits import NamespaceLimits, Use
from dljob.core.profiles import Costs, JobType, Profile
from dljob.core.queues import Queue


class Mechanism(StrEnum):
    """How GPUs change hands. Never the policy's business: any policy runs with either."""

    IN_PLACE = "in-place"
    """The SideCar restarts the training process inside its pod; newcomers initialise early."""
    RECREATE = "recreate"
    """Pods are deleted and created again (the paper's termination baseline)."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Snapshot:
    """
    Everything that a decision is made from, at one instant.

    ``running`` are the jobs that GPUs are decided for, ``pending`` those without; both in order
    of arrival. Finished jobs are not in it. Same snapshot, same policy: same plan.
    """

    now: float
    cluster: Cluster
    running: tuple[JobState, ...] = ()
    pending: Sequence[JobState] = ()
    """A :class:`~dljob.core.queues.Queue`, made of any other sequence at once."""
    profiles: Mapping[JobType, Profile] = field(default_factory=dict)
    costs: Costs = Costs()
    """For jobs whose profile holds no measured costs."""
    mechanism: Mechanism = Mechanism.IN_PLACE
    seed: int = 0
    limits: NamespaceLimits = NamespaceLimits()
    """The limits for all jobs of a namespace together."""
    use: Use = Use()
    """The GPU time of users until the last decision, where they are owed shares."""
    policy_state: object = None
    """The state that the policy returned last: a value of its own, ``None`` the first time."""
    paused: frozenset[JobId] = frozenset()
    """Jobs that nothing is decided about now, such as those that are tried again after a pause."""
    whole: "Snapshot | None" = None
    """The snapshot of all jobs, where this one shows only some of them."""

    def __post_init__(self) -> None:
        """
        Keep the pending jobs as a queue.

        ``profiles`` is a value like the rest: new observations come as a new mapping. Conclusions
        are cached with each profile, so a profile that is changed in place would be answered from
        the cache.
        """
        if not isinstance(self.pending, Queue):
            object.__setattr__(self, "pending", Queue.of(self.pending))

    def find_there(self, jobs: Collection[JobId]) -> Collection[JobId]:
        """Return which of these jobs are not over."""
        if not jobs:
            return ()  # The usual case, in each decision.
        whole, asked = self.whole or self, frozenset(jobs)
        running = asked.intersection(state.id for state in whole.running)
        return running | whole.queue.select(asked).keys() | (asked & whole.paused)

    @property
    def queue(self) -> Queue[JobState]:
        """The pending jobs, as what they are kept in."""
        assert isinstance(self.pending, Queue)
        return self.pending

"""
The interface of a policy: one method from a view of the cluster to shares of its GPUs.

A policy says how many GPUs each job shall have. :mod:`dljob.core.placement.placing` chooses which ones,
:mod:`dljob.core.planning` derives the steps, and the platforms carry them out. CONTRIBUTING.md shows
where a new policy goes.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from dljob.core.checking import Law
from dljob.core.model import Cause, CauseCode, Cluster, JobId, JobState, NodeName
from dljob.core.predicting.predictor import Predictor
from dljob.core.queues import Queue


class Share(NamedTuple):
    """The GPUs that a policy gives one job from now on. It is a tuple, because every job has
    one."""

    gpus: int
    cause: Cause = Cause(CauseCode.ITS_TURN)
    """Why, if this is a change; ignored where the job already has it."""
    gpu_type: str | None = None
    """``None``: any one type that the job accepts, what it holds already before others."""
    nodes: Mapping[NodeName, int] | None = None
    """How many on which node, where the policy cares; ``None`` leaves it to placing."""
    gang: int = 0
    """More than ``gpus`` where a gang is started piece by piece, which only a baseline does."""
    batch_size: int | None = None
    """A new global batch size (ONES); ``None`` keeps it."""


@dataclass(frozen=True, slots=True)
class View:
    """The input of a policy. ``pending`` holds only jobs that can run at all."""

    now: float
    cluster: Cluster
    running: tuple[JobState, ...]
    pending: Queue[JobState]
    predictor: Predictor
    find_there: Callable[[Collection[JobId]], Collection[JobId]]
    """
    Return which of these jobs are not over. Such a job may be missing in the view: it is suspended, cannot run now, is tried
    again after a pause, or its user is not the one whose share this decision is about.
    """
    seed: int = 0
    state: object = None
    """The state that this policy returned last; ``None`` at first."""
    enough: int = 0
    """The number of newcomers that can be started for now; 0: no limit. A policy that takes them
    one after the other may leave the rest for the next time, which is at once; see
    ``is_partial``."""
    beside: tuple[JobState, ...] = ()
    """The running jobs that are not asked about: they keep their GPUs in any case, or only the share of another user counts."""


@dataclass(frozen=True, slots=True)
class Decision:
    """
    The answer of a policy, complete: a running job that has no share here loses its GPUs.

    To ask for an exploratory shape, give a share with the cause ``EXPLORING``.
    """

    shares: Mapping[JobId, Share]
    waits: Mapping[JobId, Cause] = field(default_factory=dict)
    """The reasons of jobs without a share, where ``wait`` is not the reason."""
    wait: Cause = Cause(CauseCode.NO_ROOM)
    wake_at: float | None = None
    """When to be asked again, if nothing happens before."""
    state: object = None
    worths: Mapping[JobId, float] = field(default_factory=dict)
    """
    The worth of a GPU to jobs, in any one unit, for the reasons that people read: to jobs that get
    or lose some, and where the policy knows it, to jobs that keep theirs and to jobs that wait.
    """
    is_partial: bool = False
    """True if the policy left newcomers for the next time: they have no share and no reason to wait
    yet."""


class Policy(Protocol):
    """One way to share the cluster. Instances are frozen dataclasses whose fields are options."""

    name: ClassVar[str]
    paper: ClassVar[str]
    """Where it comes from, with the section."""
    needs: ClassVar[str]
    """The knowledge about jobs that it needs beforehand, for ``dljob policies``."""
    breaks: ClassVar[frozenset[Law]]
    """The laws of plans that it breaks on purpose: empty but for a baseline that shows the harm."""

    def allocate(self, view: View) -> Decision:
        """Return how many GPUs each job shall have."""
        ...

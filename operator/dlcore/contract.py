"""
What a policy is: one method from a view of the cluster to shares of its GPUs.

A policy says how many GPUs each job shall have. Which ones is :mod:`dlcore.placement.placing`'s business,
what has to be done for it :mod:`dlcore.planning`'s, and how GPUs change hands nobody's in the
core. A policy of your own is one file with a class like this, and one line in
:mod:`dlcore.policies`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from dlcore.checking import Law
from dlcore.model import Cause, CauseCode, Cluster, JobId, JobState, NodeName
from dlcore.predicting.predictor import Predictor
from dlcore.queues import Queue


class Share(NamedTuple):
    """What a policy wants one job to have from now on. A tuple, for there is one for every job."""

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
    """What a policy may look at. ``pending`` holds only jobs that can run at all."""

    now: float
    cluster: Cluster
    running: tuple[JobState, ...]
    pending: Queue[JobState]
    predictor: Predictor
    seed: int = 0
    state: object = None
    """What this policy returned as its state the last time; ``None`` at first."""
    enough: int = 0
    """So many newcomers are all that can be started for now, unless it is 0. A policy that takes them
    one after the other may leave the rest for the next time, which is at once; see ``is_partial``."""


@dataclass(frozen=True, slots=True)
class Decision:
    """
    The answer of a policy, complete: a running job that has no share here loses its GPUs.

    To ask for an exploratory shape, give a share with the cause ``EXPLORING``.
    """

    shares: Mapping[JobId, Share]
    waits: Mapping[JobId, Cause] = field(default_factory=dict)
    """Why those without a share wait, where it is not ``wait``."""
    wait: Cause = Cause(CauseCode.NO_ROOM)
    wake_at: float | None = None
    """When to be asked again, if nothing happens before."""
    state: object = None
    worths: Mapping[JobId, float] = field(default_factory=dict)
    """
    What a GPU is worth to jobs, in any one unit, for the reasons that people read: to those that get or
    lose some, and where the policy can tell, to those that keep theirs and to those that wait.
    """
    is_partial: bool = False
    """Whether newcomers were left for the next time: they have no share yet, and no reason to wait."""


class Policy(Protocol):
    """One way to share the cluster. Instances are frozen dataclasses whose fields are options."""

    name: ClassVar[str]
    paper: ClassVar[str]
    """Where it comes from, with the section."""
    needs: ClassVar[str]
    """What it has to know of jobs beforehand, for ``dljob policies``."""
    breaks: ClassVar[frozenset[Law]]
    """The laws of plans that it breaks on purpose: empty but for a baseline that shows the harm."""

    def allocate(self, view: View) -> Decision:
        """Say how many GPUs each job shall have."""
        ...

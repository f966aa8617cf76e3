"""
A job inside the simulated world: its target, and what it physically does.

A decision only sets a run's ``target``. :mod:`dljob.sim.engine.controlling.coordinator` brings the run there as
fast as the mechanism allows, from any state.
"""

from dataclasses import dataclass, field
from enum import Enum

from dljob.core.model import GpuRef, JobState, NodeName, Placement
from dljob.core.profiles import AccuracyPoint
from dljob.sim.jobs.workloads import TracedJob
from dljob.sim.results.records import JobRecord


class Activity(Enum):
    """The activity of the training process."""

    DOWN = "down"
    STARTING = "starting"
    TRAINING = "training"
    CHANGING = "changing"
    """Its processes stand still until a live change is done."""
    STOPPING = "stopping"


@dataclass(slots=True, eq=False)
class Pod:
    """One of its pods. A pod that is not wanted any more is forgotten, and never becomes ready."""

    ready: bool = False


@dataclass(slots=True, eq=False)
class Newcomers:
    """Processes that start while the others train, and join them in a live change."""

    target: Placement
    """Where the run is to be with them."""
    gpus: set[GpuRef]
    """The GPUs on which they start."""
    are_called_off: bool = False
    """True once the run shall be elsewhere: they end, and their GPUs are released."""


@dataclass(slots=True, eq=False)
class Run:
    """A job in the world. It is mutable, and only the world uses it."""

    traced: TracedJob
    record: JobRecord
    state: JobState
    target: Placement | None = None
    """Where it shall be."""
    serving: Placement | None = None
    """Where its process trains or starts."""
    activity: Activity = Activity.DOWN
    holds: set[GpuRef] = field(default_factory=set)
    """The GPUs that it physically has: released only when its process is gone."""
    pods: dict[NodeName, Pod] = field(default_factory=dict)
    """Its pods, by node."""
    granted: Placement | None = None
    """The GPUs that its pods were created with, which matters where pods cannot change theirs."""
    newcomers: Newcomers | None = None
    stamp: int = 0
    """Raised whenever what its process does is overtaken; events of older stamps are void."""
    pending_since: float = 0.0
    waited: float = 0.0
    """Seconds spent pending before that."""
    idle_since: float | None = None
    """Since when it has GPUs, has trained before, and does not train."""
    trained: bool = False
    profiled: int = 0
    """The most GPUs on which it has trained so far."""
    safe_iterations: float = 0.0
    """The iterations in its last checkpoint."""
    is_tried: bool = False
    """True if its checkpoint was tried, and a good one so confirmed."""
    has_lost_work: bool = False
    """True if a change has shown that its checkpoint does not work."""
    pace: float = 0.0
    """How fast it trained when it was stopped last, in iterations a second."""
    training_since: float = 0.0
    """Since when it trains as it does."""
    processes_since: float = 0.0
    """When its processes began to train. Live changes leave them, so periodic checkpoints go on."""
    full_speed: float = 0.0
    """How fast its present start trains when it does not stand still."""
    share: float = 1.0
    """The part of its speed alone that other jobs leave it."""
    is_saving: bool = False
    """True while it stands still for the trial of its checkpoint."""
    forecasts: int = 0
    """Raised by each new forecast of its end; ends of older forecasts are void."""
    efficiency: float = 0.0
    training_on: int = 0
    """The number of GPUs of its latest start."""
    has_saved: bool = False
    """True if its process was asked to save when it stopped last."""
    failures: int = 0
    """How often it has crashed."""
    is_paused: bool = False
    """True between a crash and the next attempt, without GPUs."""
    batch_size: int | None = None
    """The batch that its process was started with."""
    worth: float = 1.0
    """The present worth of an iteration, as a share of one with the job's own batch."""
    wasted: float = 0.0
    """Iterations done so far that larger batches have made worth nothing."""
    finished: bool = False
    alone_s: float = 0.0
    """Its remaining time with one GPU when it became pending."""
    points: list[AccuracyPoint] = field(default_factory=list)
    """The accuracies that it has reported, by iteration."""

    def wasted_at(self, now: float) -> float:
        """Iterations of no worth by ``now``; less than none where smaller batches were worth more."""
        if self.worth == 1.0:
            return self.wasted
        state = self.state
        return self.wasted + state.speed * (now - state.observed_at) * (1.0 - self.worth)

    def worthy_at(self, now: float) -> float:
        """Its work by ``now``, in iterations of its own batch."""
        return min(self.state.iterations_at(now) - self.wasted_at(now), self.traced.iterations)

    def progress_at(self, now: float) -> float:
        """The share of its training that is done."""
        return self.worthy_at(now) / self.traced.iterations if self.traced.iterations > 0 else 1.0

    @property
    def needed(self) -> float:
        """Return how many iterations it needs in all, if those still to come have the batch that it has now."""
        total = self.traced.iterations
        if self.worth == 1.0:
            return total + self.wasted
        done = self.state.iterations_done
        return done + (total + self.wasted - done) / self.worth

    def serves(self, placement: Placement) -> bool:
        """Return whether it trains at that placement already."""
        return self.activity is Activity.TRAINING and self.serving == placement

    @property
    def works(self) -> bool:
        """Return whether its process exists and has no command to stop."""
        return self.activity in (Activity.TRAINING, Activity.CHANGING, Activity.STARTING)

    def dies_with(self, node: NodeName) -> bool:
        """Return whether its process is on this node, or hangs for the newcomers that are."""
        if not self.works or self.serving is None:
            return False
        nodes = set(self.serving.nodes)
        newcomers = self.newcomers
        if newcomers is not None and self.activity is Activity.CHANGING:
            nodes.update(newcomers.target.nodes)
        return node in nodes

    @property
    def pods_ready(self) -> bool:
        """Return whether every node of its target has a pod that waits for the command to run."""
        target = self.target
        return target is not None and all(
            node in self.pods and self.pods[node].ready for node in target.nodes
        )

    @property
    def gang_complete(self) -> bool:
        """Return whether its target is all it needs to make progress."""
        return self.target is not None and self.state.gang in (0, self.target.gpus)

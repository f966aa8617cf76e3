"""
What is known of a type of job: how fast it trains, how it learns, what a change costs it.

The paper's offline profile (Tables IV and V), which online observations go on refining through
:func:`fold`. :mod:`dlcore.predicting` reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dlwire.messages import Shape


class JobType(NamedTuple):
    """What jobs must have in common to share a profile: the paper's "job type"."""

    model: str
    dataset: str = ""
    batch_size: int = 0

    def __str__(self) -> str:
        return "/".join(str(part) for part in (self.model, self.dataset, self.batch_size) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """
    What starting and stopping cost, in seconds: every term of the SideCar paper, section III.C.

    The parts "per GPU" are there because ranks, devices and communicators are set up one by one.
    """

    pod_initialization: float = 0.0
    pod_initialization_per_gpu: float = 0.0
    process_initialization: float = 0.0
    process_initialization_per_gpu: float = 0.0
    checkpoint: float = 0.0
    process_termination: float = 0.0
    pod_termination: float = 0.0

    def pod_start(self, gpus: int) -> float:
        """From the decision to a pod whose SideCar is ready."""
        return self.pod_initialization + self.pod_initialization_per_gpu * gpus

    def process_start(self, gpus: int) -> float:
        """From "run" to the first training step."""
        return self.process_initialization + self.process_initialization_per_gpu * gpus

    @property
    def process_stop(self) -> float:
        """From "stop" to released GPUs, the pod staying alive."""
        return self.checkpoint + self.process_termination

    def pod_restart(self, gpus: int) -> float:
        """What a change costs when pods are deleted and created again."""
        return (
            self.process_stop
            + self.pod_termination
            + self.pod_start(gpus)
            + self.process_start(gpus)
        )

    def process_restart(self, gpus: int) -> float:
        """What a change costs when only the process is restarted, inside its pod."""
        return self.process_stop + self.process_start(gpus)


class Speed(NamedTuple):
    """A measured speed and how much measuring stands behind it."""

    iterations_per_s: float
    weight: float = 1.0
    """The number of observations it stands for; interpolation trusts heavier points more."""


class AccuracyPoint(NamedTuple):
    """A point of a learning curve (Table V)."""

    iteration: float
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What is known of one type of job. Compared by identity: a changed profile is a new object."""

    type: JobType
    speeds: Mapping[Shape, Speed] = field(default_factory=dict)
    accuracy: tuple[AccuracyPoint, ...] = ()
    costs: Costs | None = None
    """Measured costs; ``None`` leaves the snapshot's defaults in force."""
    memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What :mod:`dlcore.interpolating` already concluded from this very object; nobody else's."""

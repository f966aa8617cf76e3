"""The commands that this controller has sent to a pod, to be compared with what its SideCar does."""

from dataclasses import dataclass

from dlwire.messages import Target

MOST_RESTARTS = 20
"""A container that says more often than so within an hour that it was started again is given no more time."""


@dataclass(frozen=True, slots=True)
class Commanded:
    """A command that this controller has sent to a pod."""

    target: Target
    """The latest."""
    at: float
    """When the controller first sent it."""
    gpus: frozenset[str] = frozenset()
    """All GPUs that it was ever told to use."""
    is_exact: bool = True
    """Whether the target is our own word, and not what we found there under our epoch."""
    restarts: tuple[float, ...] = ()
    """When the controller last sent it to another start of the container."""
    start: str = ""
    """Which start of the container that was by the platform's word, which counts more than its own."""

    def is_for(self, incarnation: str) -> bool:
        """Whether this start of the container has had its time; one that says it is another each time has, too."""
        return self.target.incarnation == incarnation or len(self.restarts) >= MOST_RESTARTS

"""The gain of a job from another number of GPUs, as Optimus computes it: without the cost of the change."""

from dljob.core.contract import View
from dljob.core.model import JobState
from dljob_wire.messages import Shape


def time_saved(view: View, state: JobState, *, before: Shape, after: Shape) -> float:
    """Return by how many seconds the training ends sooner; 0 if it does not, or if nothing is known."""
    old = view.predictor.training_time(state, before, now=view.now)
    new = view.predictor.training_time(state, after, now=view.now)
    return shortens(old, new)


def shortens(old: float, new: float) -> float:
    """Return by how much a time is shorter than another one; 0 if it is not."""
    # Two infinite times are compared, never subtracted.
    return old - new if new < old else 0.0

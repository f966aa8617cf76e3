"""Bounds the figures that SideCars report, to protect the profiles of other jobs.

The wire bounds each number so that it can be written and read. This module bounds it by the reach
of a training. A speed beyond that counts as unknown; a time beyond that counts as the longest
possible one.
"""

from dataclasses import replace
from typing import Final

from dljob_wire.messages import Change, Progress, State

SLOWEST: Final = 1e-6
FASTEST: Final = 1e6
"""Iterations a second."""
LONGEST_S: Final = 1e7
"""A hundred days."""


def plausible(state: State) -> State:
    """Return the state with possible figures only; the same object if nothing changes."""
    progress, change = _progress(state.progress), _change(state.change)
    if progress is state.progress and change is state.change:
        return state
    return replace(state, progress=progress, change=change)


def _progress(progress: Progress) -> Progress:
    speed, idle = progress.iterations_per_second, min(progress.idle_seconds, LONGEST_S)
    if speed and not SLOWEST <= speed <= FASTEST:
        speed = 0.0
    if speed == progress.iterations_per_second and idle == progress.idle_seconds:
        return progress
    return replace(progress, iterations_per_second=speed, idle_seconds=idle)


def _change(change: Change | None) -> Change | None:
    if change is None:
        return None
    seconds = (change.checkpoint_seconds, change.stop_seconds, change.start_seconds)
    if max(seconds) <= LONGEST_S:
        return change
    saving, stop, start = (min(each, LONGEST_S) for each in seconds)
    return replace(change, checkpoint_seconds=saving, stop_seconds=stop, start_seconds=start)

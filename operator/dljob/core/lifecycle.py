"""
The life of a DLJob: every phase, what may happen in it, and where that leads.

Theory of operation. A job is *Submitted* until the first decision about it. A decision either gives
it nothing, then it is *Queued*, or GPUs, then it is *Initialized*: its pods come up, and wait for
the GPUs if those are still being freed (the early initialization of the SideCar paper, whose Table
III has the phases Submitted, Initialized, Running, Adjusting and Completed). With its first process
it is *Running*. A decision for other GPUs makes it *Adjusting* until it runs on them. GPUs can be
taken from it altogether, which sends it back to the queue, by a decision or because a node was
lost; and a process that crashes is started again in its pod, until its retries are used up. A
*Suspended* job has no GPUs and no place in the queue until it is resumed. *Completed* and *Failed*
are final.

Three things are less obvious. News can overtake each other: a process may end well while its GPUs
are being taken from it or before the news of its start has arrived, so every phase that had a
process within reach lets a job finish. News can come twice, so an event that a phase already stands
for changes nothing. And a job that has never run, or has lost everything, can fail all the same: by
its deadline, by hand, or because its pod cannot exist.

The whole truth is in the table; all else only reads it. A platform asks :func:`advance` whenever it
learns something, and keeps finer news (an image is being pulled, a checkpoint is written) in
conditions. The picture in the documentation is drawn from the table by :func:`draw`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from dljob.core.model import Phase


class Event(StrEnum):
    """The events of a job, in words that fit after "the job"."""

    PASSED_OVER = "was passed over"
    """A decision was made, without GPUs for it."""
    PLACED = "was given GPUs"
    """GPUs were decided for a job that had none."""
    STARTED = "started"
    """Its process trains on exactly the GPUs decided for it."""
    CHANGED = "was given other GPUs"
    """Other GPUs, more or fewer, were decided for a job that had some."""
    DISPLACED = "lost its GPUs"
    """All its GPUs were decided away, or were lost with their node."""
    CRASHED = "crashed"
    """Its process ended badly and is to be started again."""
    SUSPENDED = "was suspended"
    RESUMED = "was resumed"
    FINISHED = "finished"
    """Its process ended well, or its target was reached."""
    FAILED = "failed"
    """It will not be tried again: retries or deadline used up, or it can never run."""


class IllegalEvent(Exception):
    """An event that cannot happen in this phase: a bug of the caller."""

    def __init__(self, phase: Phase, event: Event) -> None:
        self.phase = phase
        self.event = event
        possible = ", ".join(name.name for name in TABLE[phase])
        super().__init__(
            f"{event.name} cannot happen to a job that is {phase.value}; possible: {possible}"
        )


TABLE: Final[Mapping[Phase, Mapping[Event, Phase]]] = {
    Phase.SUBMITTED: {
        Event.PASSED_OVER: Phase.QUEUED,
        Event.PLACED: Phase.INITIALIZED,
        Event.SUSPENDED: Phase.SUSPENDED,
        Event.FAILED: Phase.FAILED,
    },
    Phase.QUEUED: {
        Event.PASSED_OVER: Phase.QUEUED,
        Event.PLACED: Phase.INITIALIZED,
        Event.DISPLACED: Phase.QUEUED,
        # Its last process may crash while it ends, which is harmless.
        Event.CRASHED: Phase.QUEUED,
        Event.SUSPENDED: Phase.SUSPENDED,
        Event.FINISHED: Phase.COMPLETED,
        Event.FAILED: Phase.FAILED,
    },
    Phase.INITIALIZED: {
        Event.PLACED: Phase.INITIALIZED,
        Event.STARTED: Phase.RUNNING,
        # Not yet training, it has nothing to adjust: its pods just wait for other GPUs.
        Event.CHANGED: Phase.INITIALIZED,
        Event.DISPLACED: Phase.QUEUED,
        Event.CRASHED: Phase.INITIALIZED,
        Event.SUSPENDED: Phase.SUSPENDED,
        Event.FINISHED: Phase.COMPLETED,
        Event.FAILED: Phase.FAILED,
    },
    Phase.RUNNING: {
        Event.STARTED: Phase.RUNNING,
        Event.CHANGED: Phase.ADJUSTING,
        Event.DISPLACED: Phase.QUEUED,
        Event.CRASHED: Phase.INITIALIZED,
        Event.SUSPENDED: Phase.SUSPENDED,
        Event.FINISHED: Phase.COMPLETED,
        Event.FAILED: Phase.FAILED,
    },
    Phase.ADJUSTING: {
        Event.STARTED: Phase.RUNNING,
        # A newer decision overtakes the change that is under way.
        Event.CHANGED: Phase.ADJUSTING,
        Event.DISPLACED: Phase.QUEUED,
        Event.CRASHED: Phase.INITIALIZED,
        Event.SUSPENDED: Phase.SUSPENDED,
        Event.FINISHED: Phase.COMPLETED,
        Event.FAILED: Phase.FAILED,
    },
    Phase.SUSPENDED: {
        Event.SUSPENDED: Phase.SUSPENDED,
        Event.RESUMED: Phase.QUEUED,
        # Suspending takes its GPUs away, and so may the loss of their node at the same time.
        Event.DISPLACED: Phase.SUSPENDED,
        Event.CRASHED: Phase.SUSPENDED,
        Event.FINISHED: Phase.COMPLETED,
        Event.FAILED: Phase.FAILED,
    },
    Phase.COMPLETED: {Event.FINISHED: Phase.COMPLETED},
    Phase.FAILED: {Event.FAILED: Phase.FAILED},
}

BEGIN: Final = Phase.SUBMITTED

FINAL: Final = frozenset(
    phase for phase, exits in TABLE.items() if all(end is phase for end in exits.values())
)


def advance(phase: Phase, event: Event) -> Phase:
    """Return in which phase a job is after ``event``; raise :class:`IllegalEvent` if it cannot
    be."""
    try:
        return TABLE[phase][event]
    except KeyError:
        raise IllegalEvent(phase, event) from None


def draw() -> str:
    """Draw the table as a Mermaid state diagram, one arrow for all events between two phases."""
    lines = ["stateDiagram-v2", f"    [*] --> {BEGIN.value}"]
    for phase, exits in TABLE.items():
        for end in dict.fromkeys(exits.values()):
            if end is not phase:
                events = " / ".join(event.value for event in exits if exits[event] is end)
                lines.append(f"    {phase.value} --> {end.value}: {events}")
    lines += [f"    {phase.value} --> [*]" for phase in Phase if phase in FINAL]
    return "\n".join(lines) + "\n"

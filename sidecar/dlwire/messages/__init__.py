"""
The values that travel between the controller and a SideCar.

The controller declares the target with :class:`Run` or :class:`Stop`, and reads the :class:`State`.
Both are declarations and none is an order: sending one twice, or late, does no harm. The
training process itself may report its progress with a :class:`Post`. A :class:`Refusal` answers
a message that is not accepted.

They are written for Python 3.9 and the standard library, because the SideCar lives in other people's
images. The modules here define the messages and their limits; :mod:`dlwire.codec` writes
them as JSON and reads them.
"""

from __future__ import annotations

from dlwire.messages.gpus import Gpu, GpuProcess
from dlwire.messages.limits import (
    LAST_PORT,
    LONGEST_LAST_LINE,
    LONGEST_MESSAGE,
    METRICS,
    MOST_GPU_PROCESSES,
    MOST_GPUS,
    MOST_LAST_LINES,
    MOST_PEERS,
    MOST_PROBLEMS,
)
from dlwire.messages.refusals import Refusal, Refused
from dlwire.messages.shapes import Shape
from dlwire.messages.states import (
    Change,
    Failure,
    Phase,
    Post,
    Problem,
    Process,
    Progress,
    Saving,
    State,
    Trial,
    Warmth,
)
from dlwire.messages.targets import TARGET, Peer, Run, Stop, Target, Term

__all__ = [
    "LAST_PORT",
    "LONGEST_LAST_LINE",
    "LONGEST_MESSAGE",
    "MESSAGES",
    "METRICS",
    "MOST_GPUS",
    "MOST_GPU_PROCESSES",
    "MOST_LAST_LINES",
    "MOST_PEERS",
    "MOST_PROBLEMS",
    "TARGET",
    "Change",
    "Failure",
    "Gpu",
    "GpuProcess",
    "Peer",
    "Phase",
    "Post",
    "Problem",
    "Process",
    "Progress",
    "Refusal",
    "Refused",
    "Run",
    "Saving",
    "Shape",
    "State",
    "Stop",
    "Target",
    "Term",
    "Trial",
    "Warmth",
]

MESSAGES = (
    Peer,
    Run,
    Stop,
    Problem,
    Process,
    Failure,
    Progress,
    Post,
    GpuProcess,
    Gpu,
    Warmth,
    Change,
    Trial,
    State,
    Refusal,
)
"""All of them, for the description of the protocol."""

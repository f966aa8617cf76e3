"""
The messages between the controller and a SideCar.

The controller declares the target with :class:`Run` or :class:`Stop`, and reads the :class:`State`.
Repeated and late declarations do no harm, because they are not orders. The training process may
report its progress with a :class:`Post`. A :class:`Refusal` answers a message that is not accepted.

The modules need only Python 3.9 and its standard library, because the SideCar runs in users'
images. They define the messages and their limits; :mod:`dljob_wire.codec` converts them to and from
JSON.
"""

from __future__ import annotations

from dljob_wire.messages.gpus import Gpu, GpuProcess
from dljob_wire.messages.limits import (
    LAST_PORT,
    LONGEST_LAST_LINE,
    LONGEST_LEFT,
    LONGEST_MESSAGE,
    METRICS,
    MOST_GPU_PROCESSES,
    MOST_GPUS,
    MOST_LAST_LINES,
    MOST_PEERS,
    MOST_PROBLEMS,
)
from dljob_wire.messages.refusals import Refusal, Refused
from dljob_wire.messages.shapes import Shape
from dljob_wire.messages.states import (
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
from dljob_wire.messages.targets import TARGET, Peer, Run, Stop, Target, Term

__all__ = [
    "LAST_PORT",
    "LONGEST_LAST_LINE",
    "LONGEST_LEFT",
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
"""All messages, for the description of the protocol."""

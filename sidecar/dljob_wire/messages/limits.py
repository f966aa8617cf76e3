"""
The limits of message fields, and the kinds of common fields.

A reader refuses values beyond a limit, so no message costs a SideCar more than expected.
"""

from __future__ import annotations

from dljob_wire.kinds import Named, Number, Text

LONGEST_MESSAGE = 2048
MOST_GPUS = 128
"""The most GPUs, and so processes, of one container."""
MOST_PEERS = 1024
MOST_GPU_PROCESSES = 64
LAST_PORT = 65535
MOST_PROBLEMS = 64
MOST_ENDS = 2
"""The most different exit statuses in the state that a SideCar leaves behind."""
LONGEST_LEFT = 1024
"""A state left behind is shorter than this, because a pod of Kubernetes has 12 KiB for all its containers."""
MOST_LAST_LINES = 20
LONGEST_LAST_LINE = 512

GPU_ID = Text(
    longest=128,
    pattern=r"[0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]+",
    like="an index such as 0, or a UUID such as GPU-8f7c…",
)
HOST = Text(
    longest=253, pattern=r"[0-9A-Za-z]([0-9A-Za-z.:-]*[0-9A-Za-z])?", like="a host name or address"
)
INCARNATION = Text(
    longest=64, pattern=r"[0-9A-Za-z-]+", like="the incarnation as the state tells it"
)
INSTALLATION = Text(
    longest=64, pattern=r"[0-9A-Za-z-]*", like="the id of the installation as its commands carry it"
)
NAME = Text(longest=64, pattern=r"[A-Za-z_][0-9A-Za-z_./@-]*", like="a name such as top5")
METRICS = Named(Number(-1e300), 64, NAME)

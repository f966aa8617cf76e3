"""
The limits of message fields, and the kinds of common fields.

A reader refuses values beyond a limit, so no message costs a SideCar more than expected.
"""

from __future__ import annotations

from dljob_wire.kinds import Form, Named, Number, Said

LONGEST_MESSAGE = 2048
MOST_GPUS = 128
MOST_PEERS = 1024
MOST_GPU_PROCESSES = 64
LAST_PORT = 65535
MOST_PROBLEMS = 64
MOST_ENDS = 2
LONGEST_LEFT = 1024
MOST_LAST_LINES = 20
LONGEST_LAST_LINE = 512

GPU_ID = Said(
    128,
    Form(
        r"[0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]+",
        "is no id of a GPU",
        "write an index such as 0, or a UUID such as GPU-8f7c…",
    ),
)
HOST = Said(
    253,
    Form(r"[0-9A-Za-z]([0-9A-Za-z.:-]*[0-9A-Za-z])?", "is no host", "write a host name or address"),
)
INCARNATION = Said(
    64, Form(r"[0-9A-Za-z-]+", "is no incarnation", "write the one that the state has")
)
INSTALLATION = Said(
    64, Form(r"[0-9A-Za-z-]*", "is no installation", "write the id that its commands carry")
)
_NAME = Form(r"[A-Za-z_][0-9A-Za-z_./@-]{0,63}", "is no name", "write a name such as top5")
NAME = Said(64, _NAME)
METRICS = Named(Number(-1e300), 64, _NAME)

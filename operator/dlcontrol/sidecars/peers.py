"""
Which process and which user are at the other end of a Unix socket, as the kernel says it.

Asked by the server of one machine of those that connect to it, by the command of that server, and by
the controller of SideCars: what the other end says of itself proves nothing.
"""

import socket
import struct
from typing import Any, NamedTuple

# User and group have no sign: as signed numbers, those from 2**31 on would come out negative.
_CREDENTIALS = struct.Struct("iII")


class Peer(NamedTuple):
    """The process that connected, or that had begun to listen."""

    pid: int
    """0 or less where the process is in another container."""
    uid: int
    gid: int


def read_peer(connection: Any) -> Peer:
    """Ask the kernel about a connected Unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))

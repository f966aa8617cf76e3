"""Asks the kernel which process and user are at the other end of a Unix socket.

Used by the server of one machine, by the command that connects to that server, and by the
controller: what the other end reports about itself proves nothing.
"""

import socket
import struct
from typing import Any, NamedTuple

# User and group are unsigned: as signed numbers, IDs from 2**31 on would come out negative.
_CREDENTIALS = struct.Struct("iII")


class Peer(NamedTuple):
    """The process that connected or listens."""

    pid: int
    """0 or less if the process is in another container."""
    uid: int
    gid: int


def read_peer(connection: Any) -> Peer:
    """Ask the kernel about a connected Unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))

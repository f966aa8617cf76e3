"""
HTTP on the Unix socket of a ``dljob up``: one request a connection, JSON in and out.

A failure raises a :class:`~dljob.client.backend.BackendError` that names the socket
and what to do. Python's own client would do as well, but loading it takes longer than all the rest
of ``dljob get``; and the peer is our own server, which says how long an answer is.
"""

import contextlib
import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from dljob.client.backend import Away, BackendError, Complaint, Conflict, NotAllowed, NotThere
from dljob.control.sidecars.peers import read_peer

PATIENCE_S = 30.0
"""How long an answer may take beyond what it was asked to wait."""

BLOCK = 1 << 18

ROOT = 0


class _Cut(ConnectionError):
    """The server ended before the whole answer had arrived."""


class SocketClient:
    """Asks the server at one socket."""

    def __init__(self, path: Path, *, or_else: str = "", patience_s: float = 0.0) -> None:
        self.path = path
        self._patience_s = patience_s or PATIENCE_S
        self._or_else = or_else
        """Ends the remedy where no server answers."""

    def ask(
        self,
        method: str,
        parts: tuple[str, ...],
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        seconds: float = 0.0,
    ) -> dict[str, Any]:
        """
        Return the answer to a request for ``/v1/PARTS…``, which may take ``seconds`` longer than usual.

        Each part may hold any characters.
        """
        target = "/v1/" + "/".join(quote(part, safe="") for part in parts)
        if query:
            target += "?" + urlencode({name: str(value) for name, value in query.items()})
        limit = self._patience_s + seconds
        payload = b"" if body is None else json.dumps(body).encode()
        try:
            return _read(_exchange(self.path, _request(method, target, payload), limit=limit))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise Away(
                f"no dljob up answers at {self.path}; start one, or name the folder of another one"
                f" with --state{self._or_else}"
            ) from error
        except TimeoutError as error:
            raise Away(
                f"dljob up at {self.path} has not answered for {self._patience_s:.0f} s; read its"
                " log, or start it again"
            ) from error
        except (_Cut, ConnectionResetError) as error:
            raise Away(
                f"dljob up at {self.path} ended before its answer was complete; check that it"
                " runs, and try again"
            ) from error
        except OSError as error:
            problem = error.strerror or str(error) or type(error).__name__
            raise Away(
                f"the connection to dljob up at {self.path} failed ({problem}); check that it"
                " runs, and as which user"
            ) from error


def _request(method: str, target: str, payload: bytes) -> bytes:
    head = [
        f"{method} {target} HTTP/1.1",
        "Host: localhost",
        # So that the end of the answer is the end of the connection.
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(payload)}",
    ]
    return "\r\n".join((*head, "", "")).encode() + payload


def shorten(path: Path) -> Path:
    """
    Return the path by which a socket is connected to; a ``FileNotFoundError`` where its folder is missing.

    Where a path is too long for a socket, its folder is a link to a short one; without a dljob up there
    is no such link.
    """
    return path.parent.resolve(strict=True) / path.name


def _exchange(path: Path, request: bytes, *, limit: float) -> bytes:
    """Send a request and return all that comes back; each part may take up to the limit."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        short = shorten(path)
        _connect(connection, short, limit=limit)
        _insist_on_user(connection, path)
        _insist_on_folder(short.parent)
        # A server refuses a request that is too large before all of it has arrived.
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(request)
        blocks = []
        while block := connection.recv(BLOCK):
            blocks.append(block)
    return b"".join(blocks)


def _connect(connection: socket.socket, path: Path, *, limit: float) -> None:
    """Connect, and wait for that in the kernel while another user's connections are taken in."""
    # Without it Python's time limit makes the socket one that does not wait.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(limit), 0))
    try:
        connection.connect(str(path))
    except BlockingIOError as error:
        raise TimeoutError from error
    connection.settimeout(limit)


def _insist_on_user(connection: socket.socket, path: Path) -> None:
    """
    Send nothing to a server of another user than root and our own.

    The folder of a socket may be one that others can make, such as below /tmp. The kernel knows who
    listens, also where the folder is not ours.
    """
    uid = read_peer(connection).uid
    if uid not in (ROOT, os.getuid()):
        raise BackendError(
            f"user {uid} answers at {path}, instead of you or root; nothing was sent. Remove that"
            " folder, or name another one with --state"
        )


def _insist_on_folder(folder: Path) -> None:
    """Refuse a folder in which other users can replace the socket."""
    status = folder.stat()
    if status.st_uid not in (ROOT, os.getuid()) or status.st_mode & 0o022:
        raise BackendError(
            f"{folder}: other users can write there, and it holds the socket of dljob up; nothing was sent."
            " Take that away (chmod go-w), or name another folder with --state"
        )


def _read(answer: bytes) -> dict[str, Any]:
    head, _, content = answer.partition(b"\r\n\r\n")
    first, *fields = head.split(b"\r\n")
    words = first.split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        if not answer:
            raise _Cut
        raise Away("the server that answers is not dljob up (it does not speak HTTP)")
    headers = [field.lower().split(b":", 1) for field in fields]
    lengths = [value for name, *values in headers if name == b"content-length" for value in values]
    if lengths and int(lengths[0]) != len(content):
        raise _Cut
    return _judge(int(words[1]), content)


def _judge(status: int, content: bytes) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise Away(
            f"the server that answers is not dljob up (status {status}, and no JSON)"
        ) from error
    if status < 400:
        return document
    complaints = tuple(
        Complaint(problem["document"], _line(problem), problem["path"])
        for problem in document["problems"]
    )
    kind = {403: NotAllowed, 404: NotThere, 409: Conflict}.get(status, BackendError)
    raise kind(document["error"], complaints)


def _line(problem: Mapping[str, Any]) -> str:
    where = f"{problem['path']}: " if problem["path"] else ""
    return f"{where}{problem['message']}; {problem['remedy']}"

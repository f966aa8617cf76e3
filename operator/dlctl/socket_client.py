"""
HTTP on the Unix socket of a ``dljob up``: one request a connection, JSON in and out.

What goes wrong on the way is told as a :class:`~dlctl.backends.BackendError` that names the socket
and what to do.
"""

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from dlctl.backends import Away, BackendError, Complaint, Conflict, NotThere

PATIENCE_S = 30.0
"""How long an answer may take beyond what it was asked to wait."""


class SocketClient:
    """Asks the server at one socket."""

    def __init__(self, path: Path) -> None:
        self.path = path

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
        Return the answer to a request for ``/v1/PARTS…``, which may take so many seconds longer.

        Each part may hold any characters.
        """
        target = "/v1/" + "/".join(quote(part, safe="") for part in parts)
        if query:
            target += "?" + urlencode({name: str(value) for name, value in query.items()})
        payload = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if payload is not None else {}
        connection = _Connection(self.path, PATIENCE_S + seconds)
        try:
            connection.request(method, target, payload, headers)
            answer = connection.getresponse()
            return _read(answer.status, answer.read())
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise Away(
                f"no dljob up answers at {self.path}; start one, or name the folder"
                " of the one you mean with --state"
            ) from error
        except TimeoutError as error:
            raise Away(
                f"dljob up does not answer at {self.path} for {PATIENCE_S:.0f} s;"
                " look at its log, or start it again"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Away(
                f"the connection to dljob up at {self.path} failed ({problem});"
                " see whether it runs yet, and as which user"
            ) from error
        finally:
            connection.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _read(status: int, content: bytes) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise Away(f"what answers is no dljob up (status {status}, and no JSON)") from error
    if status < 400:
        return document
    complaints = tuple(
        Complaint(problem["document"], _line(problem)) for problem in document["problems"]
    )
    kind = {404: NotThere, 409: Conflict}.get(status, BackendError)
    raise kind(document["error"], complaints)


def _line(problem: Mapping[str, Any]) -> str:
    where = f"{problem['path']}: " if problem["path"] else ""
    return f"{where}{problem['message']}; {problem['remedy']}"

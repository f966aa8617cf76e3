"""HTTP on a Unix socket, as plainly as it can be had."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


PATIENCE_S = 240.0
"""Far more than any answer takes, also where a disk is slow."""


class Asker:
    """``ask("GET", "/v1/jobs")``; a body that is not bytes is sent as JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, method: str, target: str, body: Any = None) -> Answer:
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE_S)
        try:
            connection.sock.connect(str(self._path))
            payload = body if body is None or isinstance(body, bytes) else json.dumps(body)
            connection.request(method, target, payload)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read())
        finally:
            connection.close()

    @contextmanager
    def slowly(self, method: str, target: str, body: Any) -> Iterator[Callable[[], Answer]]:
        """Begin a request that the server handles already; what this yields sends its body."""
        payload = json.dumps(body).encode()
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Expect: 100-continue\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(str(self._path))
            connection.sendall(head.encode())
            assert b"100 Continue" in connection.recv(1024)

            def finish() -> Answer:
                connection.sendall(payload)
                response = http.client.HTTPResponse(connection, method=method)
                response.begin()
                return Answer(response.status, response.read())

            yield finish

    def phases(self) -> dict[str, str] | None:
        """Say how the jobs are; nothing where no controller answers."""
        try:
            answer = self("GET", "/v1/jobs")
        except (OSError, ValueError, http.client.HTTPException):
            return None
        items = answer.json["items"] if answer.status == 200 else []
        return {each["metadata"]["name"]: each["status"]["phase"] for each in items}

    def get(self, target: str) -> Any:
        answer = self("GET", target)
        assert answer.status == 200, answer
        return answer.json

    def submit(self, *documents: Any) -> Any:
        body = {"kind": "DLJobList", "items": list(documents)}
        answer = self("POST", "/v1/jobs", body)
        assert answer.status == 201, answer
        return answer.json

"""A client of the API server: one request, one JSON document or an error with its status."""

import base64
import http.client
import json
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

Json = dict[str, Any]

JSON = "application/json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
ANSWER_SECONDS = 240.0


class Refused(Exception):
    """The API server refused a request."""

    def __init__(self, status: Json) -> None:
        super().__init__(status.get("message", ""))
        self.code: int = status.get("code", 0)
        self.reason: str = status.get("reason", "")
        self.causes: list[Json] = (status.get("details") or {}).get("causes", [])
        """The wrong fields of an invalid document."""


class Api:
    """
    A connection to an API server with a kubeconfig, for one thread at a time.

    ``with plane.api() as api: api.post("/api/v1/nodes", {...})``
    """

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text(encoding="utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._place = urlsplit(cluster["server"]).netloc
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=authority)
        self._headers = {"Accept": JSON}
        if "token" in user:
            self._headers["Authorization"] = f"Bearer {user['token']}"
        else:
            _show(self._context, user)
        self._connection: http.client.HTTPSConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, **query: object) -> Json:
        return self.ask("GET", path, query=query)

    def post(self, path: str, document: Json, **query: object) -> Json:
        """Create an object, or check it with ``dryRun="All"``."""
        return self.ask("POST", path, document, query=query)

    def put(self, path: str, document: Json, **query: object) -> Json:
        return self.ask("PUT", path, document, query=query)

    def merge(self, path: str, patch: Json, **query: object) -> Json:
        """Change fields; None removes one."""
        return self.ask("PATCH", path, patch, query=query, kind=MERGE)

    def apply(self, path: str, document: Json, *, manager: str, **query: object) -> Json:
        """Server-side apply by a field manager."""
        query = {"fieldManager": manager, **query}
        return self.ask("PATCH", path, document, query=query, kind=APPLY)

    def delete(self, path: str, **query: object) -> Json:
        return self.ask("DELETE", path, query=query)

    def ask(
        self,
        method: str,
        path: str,
        document: Json | None = None,
        *,
        query: Mapping[str, object] | None = None,
        kind: str = JSON,
    ) -> Json:
        """Send a request; return the answer, or raise :class:`Refused`."""
        url = f"{path}?{urlencode(query)}" if query else path
        body = None if document is None else json.dumps(document)
        headers = self._headers | ({"Content-Type": kind} if body else {})
        code, text = self._exchange(method, url, body, headers)
        try:
            answer: Json = json.loads(text)
        except ValueError:
            answer = {"kind": "Status", "message": text, "code": code}
        if code >= 400:
            raise Refused({"code": code, **answer})
        return answer

    def _exchange(
        self, method: str, url: str, body: str | None, headers: dict[str, str]
    ) -> tuple[int, str]:
        """Use the open connection, or a new one if the server has closed it."""
        is_new = self._connection is None
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(
                self._place, context=self._context, timeout=ANSWER_SECONDS
            )
        try:
            self._connection.request(method, url, body, headers)
            response = self._connection.getresponse()
            return response.status, response.read().decode()
        except (ConnectionError, ssl.SSLEOFError, http.client.HTTPException):
            self.close()
            if is_new:
                raise
            return self._exchange(method, url, body, headers)
        except BaseException:
            # It may hold half an answer.
            self.close()
            raise


def _show(context: ssl.SSLContext, user: Mapping[str, str]) -> None:
    """Load a user's certificate; Python's SSL reads files only."""
    with tempfile.NamedTemporaryFile() as file:
        for part in ("client-certificate-data", "client-key-data"):
            file.write(base64.b64decode(user[part]))
        file.flush()
        context.load_cert_chain(file.name)

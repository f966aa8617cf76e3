"""
Requests to the API server, with plain documents: objects of a client library would cost more than everything else
with thousands of jobs.

A refused request raises :class:`Rejected` with the server's message; a server that does not answer raises
:class:`Unreachable`. Callers decide which requests to repeat, but the client itself repeats a request after "too
many requests", because the server has not executed it.
"""

import asyncio
import email.utils
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp

from dljob.kube.access import Access, Connector
from dljob.kube.documents import JsonObject, parse
from dljob.kube.names import MANAGER
from dljob.kube.resources import Resource, selection

APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"

UNAUTHORIZED, NOT_FOUND, CONFLICT, GONE, TOO_MANY = 401, 404, 409, 410, 429
FIRST_ERROR, FIRST_OWN_ERROR = 400, 500
PAGE, SECONDS = 500, 30.0
PATIENCE = 5
"""The number of attempts while the server answers 429."""
LONGEST_PAUSE_S = 10.0
WATCH_SECONDS = 300.0
"""A watch is restarted after this time, in case its connection is dead."""


class Unreachable(Exception):
    """The API server did not answer, so the effect of the request is unknown."""


class Rejected(Exception):
    """The API server refuses the request."""

    def __init__(self, status: int, answer: JsonObject) -> None:
        super().__init__(answer.get("message") or f"status {status}")
        self.status = status
        self.reason: str = answer.get("reason", "")
        self.details: JsonObject = answer.get("details") or {}
        self.causes: list[JsonObject] = self.details.get("causes") or []

    @property
    def is_passing(self) -> bool:
        """Return true if the same request may succeed later; after a 401 the credentials are read
        again.
        """
        return self.status in (UNAUTHORIZED, TOO_MANY) or self.status >= FIRST_OWN_ERROR


class NotFound(Rejected):
    """The object or its resource does not exist."""


class Conflict(Rejected):
    """The object has changed since it was read, or exists already."""


_KINDS: Final = {NOT_FOUND: NotFound, CONFLICT: Conflict}


class Listing(NamedTuple):
    """Objects of a kind at one resource version."""

    items: list[JsonObject]
    version: str


class ApiServer:
    """A client; create it on its event loop, and close it at the end."""

    def __init__(self, access: Access, *, connections: int = 64, manager: str = MANAGER) -> None:
        self._access = access
        self._manager = manager
        self._session = aiohttp.ClientSession(
            connector=Connector(access, limit=connections),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "dljob", "Accept": "application/json"},
            timeout=aiohttp.ClientTimeout(total=SECONDS, sock_connect=5.0),
            # Through a proxy if the environment names one, as kubectl does. Without one the environment is not
            # searched for each request.
            trust_env=bool(getproxies()),
        )

    async def close(self) -> None:
        await self._session.close()

    # --- reading

    async def get(self, resource: Resource, name: str, namespace: str = "") -> JsonObject:
        return await self._ask("GET", resource.path(namespace, name))

    async def list(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> Listing:
        """Read all objects at once; see :meth:`pages`."""
        items: list[JsonObject] = []
        version = ""
        async for page in self.pages(resource, namespace, labels=labels, fields=fields):
            items += page.items
            version = page.version
        return Listing(items, version)

    async def pages(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Listing]:
        """Read all objects of one version, a few hundred at a time."""
        query = {"limit": str(PAGE), **selection(labels, fields)}
        while True:
            page = await self._ask("GET", resource.path(namespace), query=query)
            # Items of a list lack their kind.
            kind = {"apiVersion": resource.api_version, "kind": resource.kind}
            metadata = page.get("metadata") or {}
            items = [kind | item for item in page.get("items") or ()]
            yield Listing(items, metadata.get("resourceVersion", ""))
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def read_clock(self) -> float | None:
        """Return the time of the API server to half a second; None if the answer has no date."""
        try:
            async with self._session.get(
                self._url("/version", None), headers=self._access.headers()
            ) as response:
                date = response.headers.get("Date", "")
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(self._why(error)) from error
        try:
            # The header has whole seconds.
            return email.utils.parsedate_to_datetime(date).timestamp() + 0.5
        except ValueError:
            return None

    # --- writing

    async def create(
        self,
        resource: Resource,
        document: Mapping[str, Any],
        namespace: str = "",
        *,
        dry_run: bool = False,
        strict: bool = False,
    ) -> JsonObject:
        """
        Create an object; raises :class:`Conflict` if one of its name exists.

        With ``strict`` the API server refuses unknown fields instead of dropping them.
        """
        query = self._query_for_writing(dry_run=dry_run, strict=strict)
        return await self._ask("POST", resource.path(namespace), query=query, body=document)

    async def apply(
        self, resource: Resource, document: Mapping[str, Any], *, namespace: str = "", sub: str = ""
    ) -> JsonObject:
        """
        Apply a document on the server side, which also removes fields that we no longer name.

        ``metadata.resourceVersion`` is a precondition.
        """
        path = resource.path(namespace, document["metadata"]["name"], sub)
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **document}
        query = {"fieldManager": self._manager, "force": "true"}
        return await self._ask("PATCH", path, query=query, body=whole, form=APPLY)

    async def merge(
        self,
        resource: Resource,
        name: str,
        *,
        changes: Mapping[str, Any],
        namespace: str = "",
        sub: str = "",
    ) -> JsonObject:
        """Change these fields; null removes one."""
        path = resource.path(namespace, name, sub)
        return await self._ask(
            "PATCH", path, query={"fieldManager": self._manager}, body=changes, form=MERGE
        )

    async def hold_by(
        self, resource: Resource, document: Mapping[str, Any], *, finalizers: Sequence[str]
    ) -> JsonObject:
        """Set exactly these finalizers, unless the object has been written since."""
        metadata = document["metadata"]
        change = {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}
        return await self.merge(
            resource,
            metadata["name"],
            changes={"metadata": change},
            namespace=metadata["namespace"],
        )

    async def replace(
        self,
        resource: Resource,
        document: Mapping[str, Any],
        namespace: str = "",
        *,
        dry_run: bool = False,
        strict: bool = False,
    ) -> JsonObject:
        """Write the whole object, unless it has been written since."""
        path = resource.path(namespace, document["metadata"]["name"])
        query = self._query_for_writing(dry_run=dry_run, strict=strict)
        return await self._ask("PUT", path, query=query, body=document)

    def _query_for_writing(self, *, dry_run: bool, strict: bool) -> dict[str, str]:
        query = {"fieldManager": self._manager}
        if dry_run:
            query["dryRun"] = "All"
        if strict:
            query["fieldValidation"] = "Strict"
        return query

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        """Delete an object; with ``uid`` no later one of its name. A missing object is no error."""
        options: JsonObject = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            await self._ask("DELETE", resource.path(namespace, name), body=options)
        except NotFound:
            return
        except Conflict:
            if not uid:
                raise
            # Another object has that name by now.

    # --- watches and streams

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, quiet_seconds: float | None = None
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Open a streaming answer, such as a watch; it ends after ``quiet_seconds`` without data."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=quiet_seconds)
        try:
            async with self._session.get(
                self._url(path, query), headers=self._access.headers(), timeout=timeout
            ) as response:
                if response.status >= FIRST_ERROR:
                    raise _rejection(response.status, _parse(await response.read()))
                try:
                    yield response.content
                finally:
                    _break_off(response)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(self._why(error)) from error

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        version: str,
        labels: str = "",
        fields: str = "",
    ) -> AsyncGenerator[JsonObject]:
        """Yield events after this version until the server ends the watch."""
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": f"{WATCH_SECONDS:.0f}",
            **selection(labels, fields),
        }
        path, quiet = resource.path(namespace), WATCH_SECONDS + SECONDS
        async with self.stream(path, query, quiet_seconds=quiet) as content:
            async for line in iter_lines(content):
                event = _parse(line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    raise _rejection(int(status.get("code") or GONE), status)
                yield event

    # --- one request

    def _url(self, path: str, query: Mapping[str, str] | None) -> str:
        return f"{self._access.address}{path}" + (f"?{urlencode(query)}" if query else "")

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        form: str = "application/json",
    ) -> JsonObject:
        url = self._url(path, query)
        data = json.dumps(body).encode() if body is not None else None
        for _ in range(PATIENCE):
            status, answer, pause = await self._send(method, url, data=data, form=form)
            if status != TOO_MANY:
                break
            await asyncio.sleep(min(pause, LONGEST_PAUSE_S))
        else:
            status, answer, _ = await self._send(method, url, data=data, form=form)
        if status == UNAUTHORIZED:
            self._access.renew()
        if status >= FIRST_ERROR:
            raise _rejection(status, _parse(answer))
        return _parse(answer)

    async def _send(
        self, method: str, url: str, *, data: bytes | None, form: str
    ) -> tuple[int, bytes, float]:
        try:
            headers = self._access.headers()
            if data is not None:
                headers["Content-Type"] = form
            async with self._session.request(method, url, data=data, headers=headers) as response:
                pause = response.headers.get("Retry-After", "")
                answer = await response.read()
                return response.status, answer, float(pause) if pause.isdigit() else 1.0
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(self._why(error)) from error

    def _why(self, error: Exception) -> str:
        shown = str(error) or type(error).__name__
        return f"the API server at {self._access.address} does not answer ({shown})"


def _break_off(response: aiohttp.ClientResponse) -> None:
    """Close the connection of an unfinished answer at once."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


async def iter_lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield whole lines of any length."""
    begun = b""
    async for block in content.iter_any():
        *lines, begun = (begun + block).split(b"\n")
        for line in lines:
            yield line


def _rejection(status: int, answer: JsonObject) -> Rejected:
    return _KINDS.get(status, Rejected)(status, answer)


def _parse(answer: bytes) -> JsonObject:
    try:
        document = parse(answer or b"{}")
    except ValueError:
        # A proxy sent this answer.
        document = {"message": answer[:200].decode(errors="replace")}
    return document if isinstance(document, dict) else {}

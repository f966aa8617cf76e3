"""Connects to one SideCar: sends polls and declarations over HTTP, and classifies failures.

Uses a Unix socket on one machine and mutual TLS on a network, where the SideCar proves that it
belongs to this job and the controller proves its own identity (docs/protocol.md). A failed
connection is :class:`Unreachable`, with the reason in one line; a refusal by the SideCar is
:class:`NotAccepted`. This module retries nothing; :mod:`dljob.control.sidecars.following` does.
"""

import asyncio.sslproto
import errno
import logging
import os
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from dljob.control.sidecars.peers import read_peer
from dljob.control.situation.ports import Address
from dljob_wire import codec
from dljob_wire.harmless import harmless
from dljob_wire.kinds import Wrong
from dljob_wire.messages import Refusal, State, Target

log = logging.getLogger(__name__)

CERTIFICATE = "tls.crt"
KEY = "tls.key"
AUTHORITY = "ca.crt"
"""The names of the files are those of a Kubernetes Secret of the type kubernetes.io/tls."""

asyncio.sslproto.SSLProtocol.max_size = 4 * 1024
"""
asyncio keeps a buffer of this many bytes for each connection over TLS, and touches all of it when it creates it.

Its own 256 KiB are 2.5 GB for 10,000 SideCars, of which few say more than a thousand bytes at a time. A list of 60 MB from
the API server takes 0.18 s of a core with this buffer, 0.12 s with 16 KiB and 0.09 s with 256 KiB.
"""

OK = 200
LONGEST_TEXT = 500
EXPIRED = 10
"""The code of OpenSSL for an expired certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialSettings:
    """How the controller connects to SideCars. Times are in seconds."""

    wait_seconds: float = 10.0
    """How long a SideCar without news may hold a request open. A longer time means fewer requests,
    but the controller notices a SideCar that hangs that much later."""
    progress_seconds: float = 1.0
    """How long a SideCar may delay a report of mere progress; it reports all other news at once."""
    progress_per_second: float = 250.0
    """How many SideCars the controller asks for mere progress each second. With more SideCars it
    asks each of them less often, because each answer takes about a millisecond of a core."""
    longest_progress_seconds: float = 45.0
    """The longest time between two requests for progress, because only they show that a SideCar
    hangs."""
    silence_seconds: float = 5.0
    """How long an answer may take beyond the time that the request allows; after that the SideCar
    counts as silent."""
    dial_seconds: float = 3.0
    """How long connecting may take, including the TLS handshake."""
    shortest_pause_seconds: float = 0.05
    """The pause before the first retry after a failure. The upper limit doubles with each further
    retry, and the pause is drawn at random below it, so that hundreds of retries do not come at
    once."""
    longest_pause_seconds: float = 5.0
    """The longest pause before a retry."""
    refused_pause_seconds: float = 5.0
    """The pause before the controller repeats a command that a SideCar did not accept but may
    accept later."""
    polls_per_second: float = 10.0
    """The highest average rate of requests to one SideCar, however often it has news."""
    polls_at_once: int = 20
    """How many requests to one SideCar may exceed that rate in a burst."""
    keep_seconds: float = 8.0
    """How long an idle connection is kept; the SideCar closes it after ten seconds."""
    certificates: str = ""
    """The folder with the controller's certificate (``tls.crt``, ``tls.key``) and the authority that it trusts
    (``ca.crt``); needed where SideCars are on a network. On Kubernetes the operator creates it."""
    renewal_seconds: float = 5.0
    """How long after a renewal the controller uses the new certificates."""
    largest_answer: int = 2 * 1024 * 1024
    """The longest answer that the controller reads, in bytes; an honest SideCar stays far below
    it."""
    changes_per_second: float = 1.0
    """The highest average rate at which the controller takes news other than progress from one
    SideCar."""
    changes_at_once: int = 100
    """How many pieces of news from one SideCar may exceed that rate in a burst."""
    bytes_per_second: float = 256 * 1024
    """The highest average rate of bytes from one SideCar, because reading its answers is what costs
    the controller time."""
    bytes_at_once: int = 8 * 1024 * 1024
    """How many bytes from one SideCar may exceed that rate in a burst."""

    def __post_init__(self) -> None:
        """Refuse settings with which the controller would never poll, or poll without a pause."""
        for name in (
            "wait_seconds",
            "silence_seconds",
            "dial_seconds",
            "polls_per_second",
            "progress_per_second",
            "changes_per_second",
            "bytes_per_second",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name):g}; it must be above 0")

    def pace(self, sidecars: int) -> float:
        """Return how long each SideCar may hold back mere progress, given their number."""
        due = sidecars / self.progress_per_second
        return max(self.progress_seconds, min(due, self.longest_progress_seconds))


class Unreachable(Exception):
    """The SideCar gave no answer or an unreadable one; the text is the reason in one line."""

    def __init__(self, why: str, *, is_outdated: bool = False) -> None:
        # The reason may quote text from a hostile SideCar.
        super().__init__(harmless(why))
        self.is_outdated = is_outdated
        """True if a SideCar listens there and its certificate has expired."""


class NotAccepted(Exception):
    """The SideCar answered with a refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.error.value}: {refusal.message}")
        self.refusal = refusal


class Credentials:
    """The controller's identity, from a folder of certificates that another program renews."""

    def __init__(self, folder: str, *, renewal_seconds: float, now: Callable[[], float]) -> None:
        self._folder = Path(folder)
        self._renewal_seconds = renewal_seconds
        self._now = now
        self._looked_at = float("-inf")
        self._stamp: object = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the current TLS context; raises :class:`Unreachable` if there is none."""
        if self._now() >= self._looked_at + self._renewal_seconds:
            self._look()
        if self._context is None:
            names = f"{CERTIFICATE}, {KEY} and {AUTHORITY}"
            raise Unreachable(f"no usable certificates: {self._folder} has to hold {names}")
        return self._context

    def _look(self) -> None:
        # Set before the check, so that unusable files are not read again at every connection.
        self._looked_at = self._now()
        # Taken before the files are read, so that a write in between is noticed at the next check.
        stamp = [_stamp_of(self._folder / name) for name in (CERTIFICATE, KEY, AUTHORITY)]
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._context = self._load()
        except OSError as error:
            # The files may be half written. Keep the old certificates until the files change again.
            log.warning("cannot use the certificates in %s: %s", self._folder, error)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._folder / CERTIFICATE, self._folder / KEY)
        context.load_verify_locations(self._folder / AUTHORITY)
        return context


def _stamp_of(file: Path) -> object:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns, status.st_size


class OwnedConnector(aiohttp.UnixConnector):
    """Connects to a socket in a user's folder, where the user may have replaced the socket.

    Root may connect to any socket, so a link there would lead to the SideCar of another user. The
    connector asks the kernel which user listens before it sends anything.
    """

    def __init__(self, path: str, owner: int, *, keepalive_timeout: float) -> None:
        super().__init__(path, keepalive_timeout=keepalive_timeout)
        self._owner = owner

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        try:
            is_socket = stat.S_ISSOCK(os.lstat(self.path).st_mode)
        except OSError:
            is_socket = True  # It is absent, so the connection fails.
        self._insist(is_socket, req, why="it is not a socket")
        made = await super()._create_connection(req, traces, timeout)
        transport = made.transport
        # The path may have been replaced since lstat(). The kernel knows the user that listens at
        # the socket that this connection has reached.
        listener = None if transport is None else read_peer(transport.get_extra_info("socket")).uid
        if listener != self._owner and transport is not None:
            # The pool does not own this connection yet, so nothing else would close it.
            transport.abort()
        why = f"user {listener} listens there, and the job is of user {self._owner}"
        self._insist(listener == self._owner, req, why=why)
        return made

    def _insist(self, is_so: bool, request: Any, *, why: str) -> None:  # noqa: FBT001 - what is insisted on
        if not is_so:
            error = PermissionError(errno.EACCES, why)
            raise aiohttp.ClientConnectorError(request.connection_key, error)


class Line:
    """The kept-alive connections to one SideCar.

    Each request has a connection of its own, so a declaration never waits behind a request without
    an answer. Cancelling a request closes its connection.
    """

    def __init__(
        self, address: Address, settings: DialSettings, *, credentials: Credentials | None
    ) -> None:
        self.received = 0
        """The number of bytes received so far."""
        self._address = address
        self._settings = settings
        self._credentials = credentials
        connector: aiohttp.BaseConnector
        keep = settings.keep_seconds
        if address.socket and address.owner is not None:
            connector = OwnedConnector(address.socket, address.owner, keepalive_timeout=keep)
        elif address.socket:
            connector = aiohttp.UnixConnector(address.socket, keepalive_timeout=keep)
        else:
            connector = aiohttp.TCPConnector(keepalive_timeout=keep)
        if address.socket:
            self._base = f"http://sidecar/{codec.VERSION}"
        else:
            host = f"[{address.host}]" if ":" in address.host else address.host
            self._base = f"https://{host}:{address.port}/{codec.VERSION}"
        # A hostile SideCar could fill a cookie jar, or send a few bytes that inflate to gigabytes;
        # ``largest_answer`` limits neither.
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "dljob-controller"},
        )

    async def read_state(
        self, known: State | None, *, wait: float = 0.0, progress: float = 0.0
    ) -> State:
        """Request the state; given a known state and a time to wait, wait until the state differs.

        The SideCar may hold back mere progress for the time ``progress``.
        """
        query = ""
        if known is not None and wait > 0:
            query = (
                f"?after={known.version}&incarnation={known.incarnation}"
                f"&wait={wait:g}&progress={progress:g}"
            )
        else:
            wait = 0.0
        return await self._ask(
            "GET", f"state{query}", seconds=wait + self._settings.silence_seconds
        )

    async def declare(self, target: Target) -> State:
        """Send the SideCar its command."""
        body = codec.encode_target(target)
        return await self._ask("PUT", "target", seconds=self._settings.silence_seconds, body=body)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _ask(
        self, method: str, path: str, *, seconds: float, body: bytes | None = None
    ) -> State:
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=self._settings.dial_seconds)
        try:
            async with self._session.request(
                method,
                f"{self._base}/{path}",
                data=body,
                # The pool distinguishes connections by their context, so a new one is used at once.
                ssl=self._context(),
                server_hostname=self._address.name or None,
                timeout=limits,
                # A redirect would let a SideCar choose another address for the command.
                allow_redirects=False,
            ) as response:
                status, answer = response.status, await self._read(response)
        # A timeout is an OSError. A cancellation is none of these, and has to pass.
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = self._why(error, seconds)
            raise Unreachable(why, is_outdated=_is_outdated(error)) from error
        return _understand(status, answer)

    def _context(self) -> ssl.SSLContext | bool:
        if self._address.socket:
            return False
        if not self._address.name:
            raise Unreachable(f"the name that {self._place} has to prove is not known")
        if self._credentials is None:
            raise Unreachable(f"no certificates to dial {self._place} with; say where they are")
        return self._credentials.context()

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        answer = bytearray()
        async for chunk in response.content.iter_any():
            answer += chunk
            # Counted by the chunk, so that a truncated answer counts as well.
            self.received += len(chunk)
            if len(answer) > self._settings.largest_answer:
                raise Unreachable(
                    f"the answer is longer than {self._settings.largest_answer} bytes"
                )
        return bytes(answer)

    @property
    def _place(self) -> str:
        return self._address.socket or f"{self._address.host}:{self._address.port}"

    def _why(self, error: Exception, seconds: float) -> str:
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            cause = error.certificate_error
            text = f"{self._place} does not prove that it is {self._address.name}: {cause}"
        elif isinstance(error, aiohttp.ClientConnectorError):
            cause = error.os_error
            text = f"cannot connect to {self._place}: {cause.strerror or cause}"
        elif isinstance(error, TimeoutError):
            text = f"no answer from {self._place} within {seconds:g} s"
        elif isinstance(error, aiohttp.ServerDisconnectedError):
            text = f"no answer from {self._place}: it closed the connection"
        else:
            text = f"no answer from {self._place}: {str(error) or type(error).__name__}"
        return text[:LONGEST_TEXT]


def _is_outdated(error: Exception) -> bool:
    """Return True if the certificate is of the right authority and only its time is over."""
    cause = getattr(error, "certificate_error", None)
    return isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code == EXPIRED


def _understand(status: int, answer: bytes) -> State:
    try:
        if status == OK:
            return codec.decode(State, answer)
        refusal = codec.decode(Refusal, answer)
    except Wrong as wrong:
        text = f"its answer (status {status}) does not follow the protocol: {wrong}"
        raise Unreachable(text[:LONGEST_TEXT]) from wrong
    raise NotAccepted(refusal)

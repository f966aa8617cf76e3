"""
Decides which clients may connect to the SideCar.

On a network both sides present certificates of one CA. The DNS name in subjectAltName identifies a
client, never its address, because addresses are reused. The controller's name permits everything,
the name of the SideCar's own job only reading.

On one machine the file system decides: the socket belongs to its owner and has mode 0600. There is
no access without one of these proofs.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPServerRequest
from tornado.iostream import IOStream

log = logging.getLogger(__name__)

CERTIFICATE = "tls.crt"
KEY = "tls.key"
AUTHORITY = "ca.crt"
"""The file names of a Kubernetes Secret of type kubernetes.io/tls."""

JOB_SUFFIX = ".job.dljob"

ASKS_AGAIN_SECONDS = 1.0
"""The longest time between an answer and the next request of a follower."""
REMEDY = "show a certificate with the name of this job's controller"


def job_name(job_uid: str) -> str:
    """Return the name in the certificates of a job's SideCars."""
    return job_uid.lower() + JOB_SUFFIX


class Listener:
    """A listener that admits every client, such as a Unix socket."""

    def __init__(self) -> None:
        self.waiting: set[asyncio.Future[None]] = set()
        """The waiting requests of clients that may declare."""
        self.waiting_guests: set[asyncio.Future[None]] = set()
        """The waiting requests of read-only clients."""
        self.is_closing = False
        """True once nothing will change; requests then get a last answer."""
        self.on_welcome: Callable[[IOStream, bool], None] = lambda _stream, _is_guest: None
        """Called with each admitted connection, and True if its client may only read."""
        self._told: dict[IOStream, tuple[int, float]] = {}
        """The latest version and its time for each follower's connection."""

    def note_answer(self, stream: IOStream, version: int) -> None:
        """Record that a follower receives this version now."""
        # Drop closed streams here, because a listener is not notified of closed connections.
        self._told = {one: told for one, told in self._told.items() if not one.closed()}
        self._told[stream] = (version, time.monotonic())

    def owes(self, version: int) -> bool:
        """Return True if a follower just received an earlier version and will ask for this one."""
        since = time.monotonic() - ASKS_AGAIN_SECONDS
        return any(
            told < version and at > since and not stream.closed()
            for stream, (told, at) in self._told.items()
        )

    def close(self) -> None:
        """Answer all waiting requests, because no further change will follow."""
        self.is_closing = True
        for waiting in (*self.waiting, *self.waiting_guests):
            waiting.cancel()

    def why_not(self, request: HTTPServerRequest, *, may_declare: bool) -> str:
        """Return why this request may not read, or declare; empty if it may."""
        del request, may_declare
        return ""


class CertificateListener(Listener):
    """A listener that checks the name in the certificate of each client."""

    def __init__(self, *, controller_name: str, job_uid: str) -> None:
        super().__init__()
        self._controller = controller_name.lower()
        self._readers = {self._controller, job_name(job_uid)}

    def why_not(self, request: HTTPServerRequest, *, may_declare: bool) -> str:
        connection = request.connection
        assert isinstance(connection, HTTP1Connection)
        # A peer that closes the connection after its request takes the certificate along.
        if connection.stream.closed():
            return "the connection has ended"
        certificate = request.get_ssl_certificate()
        if not isinstance(certificate, Mapping) or not certificate:
            return "there is no certificate"
        # The handshake checked the certificate, but a connection may outlive its certificate.
        if ssl.cert_time_to_seconds(str(certificate["notAfter"])) <= time.time():
            return "the certificate has expired"
        names = names_in(certificate)
        if not names & self._readers:
            return f"{shown_names(names)} has no rights for this job"
        if may_declare and self._controller not in names:
            return f"{shown_names(names)} may read, and may not command"
        return ""


def names_in(certificate: Mapping[str, Any]) -> set[str]:
    """Return the DNS names in a certificate."""
    alternatives = certificate.get("subjectAltName", ())
    return {value.lower() for kind, value in alternatives if kind == "DNS"}


def shown_names(names: set[str]) -> str:
    return ", ".join(sorted(names))[:200] or "a certificate without a name"


class Certificates:
    """The files of a mounted folder, which another program renews."""

    def __init__(self, folder: Path) -> None:
        self._files = [folder / name for name in (CERTIFICATE, KEY, AUTHORITY)]
        self._seen: tuple[object, ...] = ()
        self.is_readable = True

    def load(self) -> ssl.SSLContext:
        """Read all files; raises OSError, including SSLError, if they are invalid."""
        # Stamp first, so files that are replaced during the read are read again by the next call.
        stamp = self._stamp()
        certificate, key, authority = self._files
        for file in self._files:
            # Open each file, because OpenSSL does not name the one that it cannot read.
            file.open("rb").close()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
        # A resumed session skips the certificate check, and each ticket session would keep ten
        # thousand bytes per connection for hours. Only TLS 1.3 can disable that.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        # Stamp last, so files that failed to read for a temporary reason are tried again.
        self._seen = stamp
        return context

    def renewed(self) -> ssl.SSLContext | None:
        """Return the new context if the files have changed since the last read."""
        if self._stamp() == self._seen:
            return None
        try:
            context = self.load()
        except OSError as error:
            # The new files may be incomplete; keep the old ones until the new ones are complete.
            if self.is_readable:
                log.warning("cannot read the renewed certificates yet: %s", error)
            self.is_readable = False
            return None
        self.is_readable = True
        return context

    def _stamp(self) -> tuple[object, ...]:
        return tuple(_stamp(file) for file in self._files)


def _stamp(file: Path) -> object:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size

"""
Which clients may connect to the SideCar.

On a network both sides show certificates of one authority. The name in a certificate (a DNS name in
subjectAltName) identifies its holder, never the address that it comes from: addresses are reused,
and prove nothing about a pod. Two names count: the controller's, which may do everything, and that
of the SideCar's own job, which may read.

On one machine the file system decides: the socket belongs to its owner and has mode 0600.

There is no third way, and so no default without a proof of the client's identity.
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
"""The names of the files are those of a Kubernetes Secret of the type kubernetes.io/tls."""

JOB_SUFFIX = ".job.dljob"

ASKS_AGAIN_SECONDS = 1.0
"""A follower asks again within this time after each answer."""
REMEDY = "show a certificate with the name of this job's controller"


def job_name(job_uid: str) -> str:
    """Return the name in the certificate of a job, and so of its SideCars."""
    return job_uid.lower() + JOB_SUFFIX


class Listener:
    """A listener behind which the way in is proof enough, as it is with a Unix socket."""

    def __init__(self) -> None:
        self.waiting: set[asyncio.Future[None]] = set()
        """The requests that wait here for a change, of those that may declare."""
        self.waiting_guests: set[asyncio.Future[None]] = set()
        """And of those that may only read."""
        self.heard = 0
        """The latest version that a controller has got."""
        self.is_closing = False
        """True once nothing will change any more; requests then get a last answer."""
        self.on_welcome: Callable[[IOStream, bool], None] = lambda _stream, _is_guest: None
        """Is called for each connection whose client may read, with whether that client may only read."""
        self._told: dict[IOStream, tuple[int, float]] = {}
        """The latest version that each follower got over its connection, and when."""

    def note_answer(self, stream: IOStream, version: int) -> None:
        """Note that a follower gets this version now."""
        # The end of a connection is not reported to a listener, so closed streams are dropped here.
        self._told = {one: told for one, told in self._told.items() if not one.closed()}
        self._told[stream] = (version, time.monotonic())

    def owes(self, version: int) -> bool:
        """Return whether a follower got an earlier version just now and will ask for this one."""
        since = time.monotonic() - ASKS_AGAIN_SECONDS
        return any(
            told < version and at > since and not stream.closed()
            for stream, (told, at) in self._told.items()
        )

    def close(self) -> None:
        """Answer all who wait: there will be no more news."""
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
        # A peer that ends the connection behind its request takes its certificate along.
        if connection.stream.closed():
            return "the connection has ended"
        certificate = request.get_ssl_certificate()
        if not isinstance(certificate, Mapping) or not certificate:
            return "there is no certificate"
        # The handshake has looked already, but a connection may live longer than its certificate.
        if ssl.cert_time_to_seconds(str(certificate["notAfter"])) <= time.time():
            return "the certificate has expired"
        names = names_in(certificate)
        if not names & self._readers:
            return f"{shown_names(names)} has no rights for this job"
        if may_declare and self._controller not in names:
            return f"{shown_names(names)} may read, and may not command"
        return ""


def names_in(certificate: Mapping[str, Any]) -> set[str]:
    """Return the DNS names for which a certificate was made."""
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
        """Read them all; raises OSError, of which SSLError is one, if they are no good."""
        # Stamped before they are read: files that are replaced while they are read differ from
        # this stamp, and the next call reads them again.
        stamp = self._stamp()
        certificate, key, authority = self._files
        for file in self._files:
            # OpenSSL does not say which of them it cannot read.
            file.open("rb").close()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
        # A session that is resumed skips the look at the certificate. And one that could be is kept
        # for hours, with all that was shown: ten thousand bytes for each connection ever made. Only
        # in TLS 1.3 can that be left out.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        # Only now: files that could not be read for a passing reason are tried again.
        self._seen = stamp
        return context

    def renewed(self) -> ssl.SSLContext | None:
        """Return what to use from now on, if the files differ from those read last."""
        if self._stamp() == self._seen:
            return None
        try:
            context = self.load()
        except OSError as error:
            # They may be half written. The old ones serve until the new ones are whole.
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

"""
A server certificate from files, which is read again after each change of the files.

An administrator may provide and renew the files; otherwise the program makes them, with a CA that only this folder
holds, for a kube-scheduler in the same pod.
"""

import asyncio
import json
import logging
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dljob.control.sidecars.dialing import AUTHORITY, CERTIFICATE, KEY
from dljob.kube.certificates import OUR_DAYS, Authority, write_own

log = logging.getLogger(__name__)

AUTHORITY_FILE: Final = "authority.json"
SHOWN_AS: Final = "localhost"
RENEW_BEFORE: Final = timedelta(days=OUR_DAYS / 3)


class NoCertificate(Exception):
    """The folder holds no usable certificate."""


class Shown:
    """A server's side of TLS, from ``tls.crt`` and ``tls.key`` in a folder."""

    def __init__(self, folder: Path, client_authority: Path | None = None) -> None:
        """With ``client_authority`` only clients with a certificate of that CA are served."""
        self._files = (folder / CERTIFICATE, folder / KEY)
        self._client_authority = client_authority
        self._stamp: object = None
        try:
            self._current = self._load()
            self.context = self._load()
        except OSError as error:
            needed = f"{folder} has to hold {CERTIFICATE} and {KEY}"
            raise NoCertificate(f"no usable certificate ({error}); {needed}") from error
        # Called for each new connection, before the certificate is sent.
        self.context.sni_callback = self._reload

    def _reload(self, connection: ssl.SSLObject, *_: object) -> None:
        try:
            if self._stamps() != self._stamp:
                self._current = self._load()
                log.info("shows the new certificate in %s", self._files[0].parent)
        except OSError as error:
            # The files may be half written; the former certificate serves until they are complete.
            log.warning("cannot use the certificate in %s: %s", self._files[0].parent, error)
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        stamp = self._stamps()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._files)
        if self._client_authority is not None:
            context.load_verify_locations(self._client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
        self._stamp = stamp
        return context

    def _stamps(self) -> object:
        more = [self._client_authority] if self._client_authority is not None else []
        found = [file.stat() for file in (*self._files, *more)]
        return [(each.st_ino, each.st_mtime_ns, each.st_size) for each in found]


def provide(folder: Path) -> None:
    """
    Make the certificate in the folder, unless it is valid for long enough.

    The CA stays the same, because kube-scheduler reads it only once.
    """
    if _is_good(folder):
        return
    kept = folder / AUTHORITY_FILE
    if kept.exists():
        authority = Authority.read(json.loads(kept.read_text()))
    else:
        authority = Authority.new()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Rename the file when it is complete, because the program may be killed while writing.
        begun = kept.with_suffix(".new")
        with open(begun, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as opened:
            json.dump(authority.data(), opened)
        begun.replace(kept)
    write_own(authority, folder, name=SHOWN_AS)
    # kube-scheduler may run as another user, and reads the CA.
    (folder / AUTHORITY).chmod(0o644)


async def renew(folder: Path, *, every_seconds: float) -> None:
    """Renew our certificate before its expiry, for ever."""
    while True:
        await asyncio.sleep(every_seconds)
        try:
            provide(folder)
        except Exception:
            # For example a full disk. The present certificate is valid for months after the first attempt.
            log.exception("the certificate in %s is not renewed yet", folder)


def _is_good(folder: Path) -> bool:
    """True if certificate and key match, and the certificate is valid for long enough."""
    try:
        certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
        key = load_pem_private_key((folder / KEY).read_bytes(), password=None)
    except (OSError, ValueError):
        return False
    # A program that was killed between the two writes leaves a pair that does not match.
    if key.public_key() != certificate.public_key():
        return False
    return certificate.not_valid_after_utc > datetime.now(UTC) + RENEW_BEFORE

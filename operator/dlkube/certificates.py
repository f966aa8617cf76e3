"""
The certificates by which the operator and the SideCars know each other.

One authority for an installation, kept in a Secret of the operator's own namespace; while it is replaced
(:mod:`dloperator.authority_rotation`) another one is trusted beside it. Each job gets a
certificate with its uid for a name, in a Secret that belongs to it; the operator makes one for itself
at each start. The name identifies the holder, never an address (docs/protocol.md).
"""

import asyncio
import base64
import contextlib
import logging
import math
import os
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dlcontrol.sidecars.dialing import AUTHORITY, CERTIFICATE, KEY
from dlcore.model import JobId
from dlkube import names
from dlkube.client import (
    ApiServer,
    Conflict,
    NotFound,
    Rejected,
)
from dlkube.documents import JsonObject
from dlkube.resources import SECRETS

log = logging.getLogger(__name__)


CA_SECRET: Final = "dljob-ca"  # noqa: S105 - the name of a Secret is none
NEXT, NEXT_KEY, FORMER = "next.crt", "next.key", "former.crt"
"""In that Secret: the next authority and the former one; both are trusted as well."""
CA_DAYS: Final = 3650
OUR_DAYS: Final = 365
AGAIN_S: Final = 60.0
"""The time after which a certificate that the API server refused to keep is offered again."""
LATELY_S: Final = 5.0
"""Pods that are created within this time share one certificate."""
SKEW: Final = timedelta(hours=1)
"""The most by which the clocks of nodes may be behind ours."""


class WrongAuthority(Exception):
    """The Secret of the authority holds something else."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    others: tuple[x509.Certificate, ...] = ()
    """Those who are believed as well, because they did it before or will do it next."""

    @classmethod
    def new(cls) -> "Authority":
        """Make a new authority with a key of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dljob")])
        certificate = (
            _builder(name, name, key=key.public_key(), days=CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def read(cls, data: Mapping[str, str]) -> "Authority":
        """Read what a Secret holds."""
        try:
            certificate = _read_certificate(data[CERTIFICATE])
            key = serialization.load_pem_private_key(base64.b64decode(data[KEY]), None)
            others = tuple(_read_certificate(data[name]) for name in (NEXT, FORMER) if name in data)
        except (KeyError, ValueError) as error:
            raise WrongAuthority(
                f"the Secret {CA_SECRET} holds no authority ({error}); delete it, and the operator"
                " creates a new one; running jobs are reached again once their pods are replaced"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise WrongAuthority(
                f"the key in the Secret {CA_SECRET} has another type than the keys of DLJob"
            )
        return cls(certificate, key, others)

    def is_same(self, other: "Authority") -> bool:
        """Whether it vouches and believes as the other one does."""
        return (self.certificate, self.others) == (other.certificate, other.others)

    def believes(self, other: "Authority") -> bool:
        """Whether every peer that trusts this authority also trusts the other one."""
        return other.certificate in (self.certificate, *self.others)

    def data(self) -> JsonObject:
        """Return what a Secret is to hold."""
        files = {CERTIFICATE: _pem(self.certificate), KEY: _key_pem(self.key)}
        # The key of the next one is not known here, so that a step in between begins again.
        if self.others:
            files[FORMER] = _pem(self.others[-1])
        return _encoded(files)

    def vouch_for(self, name: str, *, days: int) -> dict[str, bytes]:
        """Make a certificate for a name, as the three files that its holder needs."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        certificate = (
            _builder(subject, self.certificate.subject, key=key.public_key(), days=days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(authority, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return {
            CERTIFICATE: _pem(certificate),
            KEY: _key_pem(key),
            AUTHORITY: b"".join(map(_pem, (self.certificate, *self.others))),
        }


class Certificates:
    """Sees to it that each job has a certificate that is valid."""

    def __init__(
        self,
        api: ApiServer,
        authority: Authority,
        *,
        days: int = 30,
        clock: Callable[[], float] = time.time,
        chance: random.Random | None = None,
    ) -> None:
        self._api = api
        self._authority = authority
        self._days = days
        self._clock = clock
        self._chance = chance if chance is not None else random.Random()
        self._renew_at: dict[JobId, float] = {}
        self._written: dict[JobId, tuple[str, float]] = {}
        """For which job of that name, and when."""
        self._tried: dict[JobId, float] = {}
        """When a renewal was last begun, also in vain."""

    async def provide(self, job: JobId, metadata: Mapping[str, Any]) -> None:
        """
        Let there be a certificate for a job of which a pod is about to be made.

        The Secret is written again for each pod, because no watch reports that it was deleted.
        """
        # Two launches of a job may both write now: each certificate is valid, and one stays.
        uid, written_at = self._written.get(job, ("", 0.0))
        if uid != metadata["uid"] or self._clock() >= written_at + LATELY_S:
            await self._write(job, metadata)

    async def renew(
        self, jobs: Mapping[JobId, Mapping[str, Any]], lacking: Collection[JobId] = ()
    ) -> None:
        """
        Renew what has to be; ``jobs`` are those with pods.

        Those that are ``lacking`` have pods that cannot be spoken to or do not start, for want of a valid
        certificate or perhaps so. They are given another one, but not all the time.

        The operator may not read Secrets; so of those that a former operator wrote it does not know
        until when they are valid, and writes them again, not all at once.
        """
        now, lasts, lacking = self._clock(), self._days * 86_400, frozenset(lacking)
        refused: dict[JobId, Rejected] = {}
        for job in self._renew_at.keys() - jobs.keys():
            del self._renew_at[job]
            self._written.pop(job, None)
            self._tried.pop(job, None)
        for job, metadata in jobs.items():
            due = self._renew_at.setdefault(job, now + self._chance.uniform(0.0, lasts / 1000))
            written = self._written.get(job, ("", -math.inf))[1]
            tried = max(written, self._tried.get(job, -math.inf))
            if now >= due or (job in lacking and now >= tried + AGAIN_S):
                self._tried[job] = now
                try:
                    await self._write(job, metadata)
                except Rejected as error:
                    # Its namespace may be about to go; the others need theirs all the same.
                    refused[job] = error
                    self._renew_at[job] = max(due, now + AGAIN_S)
        if refused:
            job, why = next(iter(refused.items()))
            log.warning(
                "the certificates of %d jobs cannot be written, as of %s: %s",
                len(refused),
                job,
                why,
            )

    async def _write(self, job: JobId, metadata: Mapping[str, Any]) -> None:
        files = self._authority.vouch_for(names.sidecar_name(metadata["uid"]), days=self._days)
        document = {
            "apiVersion": SECRETS.api_version,
            "kind": SECRETS.kind,
            "metadata": {
                "name": names.secret_name(metadata["name"]),
                "namespace": metadata["namespace"],
                "labels": {names.JOB_LABEL: metadata["name"]},
                "ownerReferences": [names.owner_reference(dict(metadata))],
            },
            "type": "kubernetes.io/tls",
            "data": _encoded(files),
        }
        try:
            # Nearly always there is none yet, and to create it costs the API server half as much.
            await self._api.create(SECRETS, document, metadata["namespace"])
        except Conflict:
            await self._write_over(document)
        # Well before it ends, and not all that were made at once at the same time.
        share = self._chance.uniform(0.5, 0.66)
        # Only after the answer: a write whose outcome is unknown is made again for the next pod.
        self._written[job] = (metadata["uid"], self._clock())
        self._renew_at[job] = self._clock() + share * self._days * 86_400

    async def _write_over(self, document: JsonObject) -> None:
        """
        Replace an existing Secret, also one of a former job of this name.

        A merge replaces the list of owners, and no Secret has two that control it. The garbage collector may
        remove that of a former job at any time; then there is none in the way.
        """
        metadata = document["metadata"]
        try:
            await self._api.merge(
                SECRETS, metadata["name"], changes=document, namespace=metadata["namespace"]
            )
        except NotFound:
            # If there is one again by now, Conflict goes to the caller, which tries again later.
            await self._api.create(SECRETS, document, metadata["namespace"])


def authority_document(authority: Authority, namespace: str) -> JsonObject:
    """Make the Secret in which the authority of an installation is kept."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": CA_SECRET, "namespace": namespace},
        "type": "kubernetes.io/tls",
        "data": authority.data(),
    }


async def open_authority(api: ApiServer, namespace: str) -> Authority:
    """Read the authority of this installation, or make it."""
    for _ in range(2):
        try:
            secret = await api.get(SECRETS, CA_SECRET, namespace)
            return Authority.read(secret.get("data") or {})
        except NotFound:
            document = authority_document(Authority.new(), namespace)
            # If another operator was faster, its authority is the one that counts.
            with contextlib.suppress(Conflict):
                await api.create(SECRETS, document, namespace)
    raise WrongAuthority(f"the Secret {CA_SECRET} comes and goes")


def write_own(authority: Authority, folder: Path, *, name: str) -> None:
    """Write a certificate of the operator's own, to be shown to SideCars; only our user may read it."""
    # All files without an await in between: connections read them on the same event loop, and so
    # never see a certificate without its key.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = authority.vouch_for(name, days=OUR_DAYS)
    for file, content in files.items():
        # A path itself cannot be opened with a mode of its own.
        with open(
            folder / f"{file}.new", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)
        ) as opened:
            opened.write(content)
    # Only once all are whole, so that a full disk leaves the former ones. The certificate comes last, because a
    # program killed in between finds at its next start that it does not fit the key, and writes all of them again.
    for file in (AUTHORITY, KEY, CERTIFICATE):
        (folder / f"{file}.new").replace(folder / file)


async def renew_own(
    authority: Authority, folder: Path, *, name: str, every_seconds: float = OUR_DAYS / 2 * 86_400
) -> None:
    """Renew it long before it ends, as long as we lead; each new connection reads the files."""
    while True:
        await asyncio.sleep(every_seconds)
        write_own(authority, folder, name=name)


def _builder(
    subject: x509.Name, issuer: x509.Name, *, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _read_certificate(text: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(text))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _encoded(files: Mapping[str, bytes]) -> JsonObject:
    return {name: base64.b64encode(content).decode() for name, content in files.items()}

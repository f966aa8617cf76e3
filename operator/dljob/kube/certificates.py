"""
The certificates with which the operator and the SideCars authenticate each other.

An installation has one CA, in a Secret of the operator's namespace; during a rotation
(:mod:`dljob.operator.authority_rotation`) a second one is trusted. Each job has a certificate for its uid, in a Secret
that the job owns; the operator makes one for itself at each start. The name identifies the holder, not an address
(docs/protocol.md).
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

from dljob.control.sidecars.dialing import AUTHORITY, CERTIFICATE, KEY
from dljob.core.model import JobId
from dljob.kube import names
from dljob.kube.client import ApiServer, Conflict, NotFound, Rejected
from dljob.kube.documents import JsonObject
from dljob.kube.resources import SECRETS

log = logging.getLogger(__name__)


CA_SECRET: Final = "dljob-ca"  # noqa: S105 - the name of a Secret is none
NEXT, NEXT_KEY, FORMER = "next.crt", "next.key", "former.crt"
"""In that Secret: the next and the former CA, which are trusted as well."""
CA_DAYS: Final = 3650
OUR_DAYS: Final = 365
AGAIN_S: Final = 60.0
"""The time before a refused write of a certificate is tried again."""
LATELY_S: Final = 5.0
"""Pods that are created within this time share one certificate."""
SKEW: Final = timedelta(hours=1)
"""The tolerated difference between clocks."""


class WrongAuthority(Exception):
    """The Secret of the CA holds something else."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    others: tuple[x509.Certificate, ...] = ()
    """The former or the next CA, which is trusted as well."""

    @classmethod
    def new(cls) -> "Authority":
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
        """Read the data of the Secret."""
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

    def believes(self, other: "Authority") -> bool:
        """True if every peer that trusts this CA also trusts the other one."""
        return other.certificate in (self.certificate, *self.others)

    def data(self) -> JsonObject:
        """Return the data of the Secret."""
        files = {CERTIFICATE: _pem(self.certificate), KEY: _key_pem(self.key)}
        # The key of the next CA is unknown here, so a rotation has to begin again.
        if self.others:
            files[FORMER] = _pem(self.others[-1])
        return _encoded(files)

    def vouch_for(self, name: str, *, days: int) -> dict[str, bytes]:
        """Issue a certificate, as the three files that its holder needs."""
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
    """Keeps a valid certificate for each job."""

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
        """The uid of the job, and the time of the last write."""
        self._tried: dict[JobId, float] = {}
        """The time of the last attempt to renew."""

    async def provide(self, job: JobId, metadata: Mapping[str, Any]) -> None:
        """
        Write the certificate of a job before a pod of it is created.

        The Secret is written again for each pod, because no watch reports its deletion.
        """
        # Two launches of a job may both write; either certificate is valid.
        uid, written_at = self._written.get(job, ("", 0.0))
        if uid != metadata["uid"] or self._clock() >= written_at + LATELY_S:
            await self._write(job, metadata)

    async def renew(
        self, jobs: Mapping[JobId, Mapping[str, Any]], lacking: Collection[JobId] = ()
    ) -> None:
        """
        Renew due certificates; ``jobs`` are those with pods.

        Pods of the jobs in ``lacking`` cannot be reached or do not start, perhaps for lack of a valid certificate, so
        these are renewed from time to time.

        The operator may not read Secrets and does not know the expiry of certificates that a former operator wrote, so
        it renews these gradually.
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
                    # Its namespace may be about to be deleted; the other jobs still need certificates.
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
            # A creation costs the API server half as much, and nearly always there is no Secret yet.
            await self._api.create(SECRETS, document, metadata["namespace"])
        except Conflict:
            await self._write_over(document)
        # Well before the expiry, and not for all jobs at the same time.
        share = self._chance.uniform(0.5, 0.66)
        # After the answer, so that a write with an unknown outcome is repeated for the next pod.
        self._written[job] = (metadata["uid"], self._clock())
        self._renew_at[job] = self._clock() + share * self._days * 86_400

    async def _write_over(self, document: JsonObject) -> None:
        """
        Replace an existing Secret, perhaps of a former job of this name.

        A merge replaces the list of owners. The garbage collector may remove the Secret of a former job at any time.
        """
        metadata = document["metadata"]
        try:
            await self._api.merge(
                SECRETS, metadata["name"], changes=document, namespace=metadata["namespace"]
            )
        except NotFound:
            # The caller retries after another Conflict.
            await self._api.create(SECRETS, document, metadata["namespace"])


def authority_document(authority: Authority, namespace: str) -> JsonObject:
    """Make the Secret of an installation's CA."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": CA_SECRET, "namespace": namespace},
        "type": "kubernetes.io/tls",
        "data": authority.data(),
    }


async def open_authority(api: ApiServer, namespace: str) -> Authority:
    """Read the CA of this installation, or create it."""
    for _ in range(2):
        try:
            secret = await api.get(SECRETS, CA_SECRET, namespace)
            return Authority.read(secret.get("data") or {})
        except NotFound:
            document = authority_document(Authority.new(), namespace)
            # If another operator was faster, its CA counts.
            with contextlib.suppress(Conflict):
                await api.create(SECRETS, document, namespace)
    raise WrongAuthority(f"the Secret {CA_SECRET} comes and goes")


def write_own(authority: Authority, folder: Path, *, name: str) -> None:
    """Write a certificate for this process, readable only by its user."""
    # Without an await in between: connections read the files on the same event loop, and so never see a
    # certificate without its key.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = authority.vouch_for(name, days=OUR_DAYS)
    for file, content in files.items():
        with open(
            folder / f"{file}.new", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)
        ) as opened:
            opened.write(content)
    # Renamed once all are complete, so that a full disk leaves the former files. The certificate comes last: a program
    # that is killed in between finds at its next start that it does not match the key, and writes all files again.
    for file in (AUTHORITY, KEY, CERTIFICATE):
        (folder / f"{file}.new").replace(folder / file)


async def renew_own(
    authority: Authority, folder: Path, *, name: str, every_seconds: float = OUR_DAYS / 2 * 86_400
) -> None:
    """Renew the certificate long before its expiry, for ever; each new connection reads the files."""
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
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _encoded(files: Mapping[str, bytes]) -> JsonObject:
    return {name: base64.b64encode(content).decode() for name, content in files.items()}

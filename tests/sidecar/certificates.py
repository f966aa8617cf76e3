"""Authorities and certificates for tests."""

import datetime as dt
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dljob_sidecar.serving.trust import job_name

JOB = "0b5a7f5e-7c1d-4c58-9d5e-3f7f6f1d2c3b"
CONTROLLER = "controller.dljob"
DAY = dt.timedelta(days=1)
PEM = serialization.Encoding.PEM


class Authority:
    """A certificate authority."""

    def __init__(self, name: str = "dljob tests") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        public = self._key.public_key()
        builder = _begun(self._name, self._name, public, _now() - DAY, _now() + DAY)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        builder = builder.add_extension(_usage(signs=True), critical=True)
        key_id = x509.SubjectKeyIdentifier.from_public_key(public)
        self.certificate = builder.add_extension(key_id, critical=False).sign(
            self._key, hashes.SHA256()
        )

    def issue(self, folder: Path, name: str, *, days: float = 1.0) -> Path:
        """Write a certificate for a DNS name, as in a mounted Secret; with negative days it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "of no importance")])
        until = _now() + days * DAY
        builder = _begun(subject, self._name, key.public_key(), until - 2 * DAY, until)
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
            critical=False,
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tls.crt").write_bytes(certificate.public_bytes(PEM))
        private = key.private_bytes(
            PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / "tls.key").write_bytes(private)
        (folder / "ca.crt").write_bytes(self.certificate.public_bytes(PEM))
        return folder


@dataclass(frozen=True)
class People:
    """The folders with the certificates of all clients and servers."""

    sidecar: Path
    controller: Path
    job: Path
    other_job: Path
    stranger: Path
    expired: Path
    forger: Path


def make_people(folder: Path) -> People:
    authority, other = Authority(), Authority("another authority")
    return People(
        sidecar=authority.issue(folder / "sidecar", job_name(JOB)),
        controller=authority.issue(folder / "controller", CONTROLLER),
        job=authority.issue(folder / "job", job_name(JOB)),
        other_job=authority.issue(folder / "other", job_name("another-job")),
        stranger=authority.issue(folder / "stranger", "www.example.org"),
        expired=authority.issue(folder / "expired", CONTROLLER, days=-0.5),
        forger=other.issue(folder / "forger", CONTROLLER),
    )


def client_context(folder: Path | None, authority: Path) -> ssl.SSLContext:
    """Trust the authority of one folder, and present the certificate of another."""
    context = ssl.create_default_context(cafile=str(authority / "ca.crt"))
    if folder is not None:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    since: dt.datetime,
    until: dt.datetime,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
    return builder.not_valid_before(since).not_valid_after(until)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)

"""
The authority, certificates and kubeconfigs of a test's control plane.

Kubernetes knows a client by the common name of its certificate, and its groups by the organisations.
Kubeconfigs hold everything inline, so that a program needs one file.
"""

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = dt.timedelta(days=1)
PEM = serialization.Encoding.PEM
MASTERS = "system:masters"
"""The group with all rights."""


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key, as PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write both into files."""
        paths = folder / f"{name}.crt", folder / f"{name}.key"
        for path, text in zip(paths, (self.certificate, self.key), strict=True):
            path.write_bytes(text)
            path.chmod(0o600)
        return paths


class Authority:
    """The certificate authority that a control plane trusts, in memory."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = named("dljob tests")
        builder = self._begin(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(PEM)

    def issue_server(self, *names: str) -> Certificate:
        """A certificate of a server with these DNS names and addresses."""
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
        return self._issue(named(names[0]), alternatives, ExtendedKeyUsageOID.SERVER_AUTH)

    def issue_client(self, user: str, groups: Sequence[str] = ()) -> Certificate:
        """A certificate of a user in these groups."""
        return self._issue(named(user, *groups), None, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _issue(
        self,
        subject: x509.Name,
        alternatives: x509.SubjectAlternativeName | None,
        usage: x509.ObjectIdentifier,
    ) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._begin(subject, key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return Certificate(signed.public_bytes(PEM), private_pem(key))

    def _begin(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        serial = x509.random_serial_number()
        builder = x509.CertificateBuilder(self._name, subject, public, serial)
        return builder.not_valid_before(now - DAY).not_valid_after(now + DAY)


def named(common_name: str, *organisations: str) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organisations]
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name), *groups])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(PEM, form, serialization.NoEncryption())


def make_signing_keys() -> tuple[bytes, bytes]:
    """Make the private and public keys for tokens of service accounts."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private_pem(key), public


def with_certificate(certificate: Certificate) -> dict[str, str]:
    return {
        "client-certificate-data": base64.b64encode(certificate.certificate).decode(),
        "client-key-data": base64.b64encode(certificate.key).decode(),
    }


def write_kubeconfig(
    path: Path, *, server: str, authority: bytes, user: dict[str, str], namespace: str = "default"
) -> Path:
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(authority).decode()}
    context = {"cluster": "tests", "user": "tests", "namespace": namespace}
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "tests", "user": user}],
        "contexts": [{"name": "tests", "context": context}],
        "current-context": "tests",
    }
    # JSON is also YAML.
    path.write_text(json.dumps(document), encoding="utf-8")
    path.chmod(0o600)
    return path

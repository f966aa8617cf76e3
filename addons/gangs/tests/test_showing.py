"""Each TLS handshake shows a valid certificate, even after a renewal."""

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner
from cryptography import x509

from addons.gangs.tests.test_extender import Desk
from dljob.kube import shown_certificate
from dljob.kube.shown_certificate import Shown, provide
from dljob_gangs.__main__ import main
from dljob_gangs.extender import Extender
from tests.loops import on_loop
from tests.servers.authority import Authority

LOCAL = "127.0.0.1"


@asynccontextmanager
async def served(context: ssl.SSLContext, answering: Extender):
    runner = web.AppRunner(answering.application())
    await runner.setup()
    await web.TCPSite(runner, LOCAL, 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def fingerprint(port: int, authority: bytes) -> bytes:
    """Connect like kube-scheduler; return the fingerprint of the server's certificate."""
    context = ssl.create_default_context(cadata=authority.decode())
    _, writer = await asyncio.open_connection(LOCAL, port, ssl=context, server_hostname="localhost")
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return shown


@on_loop
async def test_renewed_certificate_is_used_without_a_restart(tmp_path: Path):
    authority = Authority()
    authority.issue_server("localhost").write(tmp_path, "tls")
    async with served(Shown(tmp_path).context, Desk().answering) as port:
        first = await fingerprint(port, authority.certificate)
        assert await fingerprint(port, authority.certificate) == first
        # A half-written file leaves the old one in use.
        (tmp_path / "tls.crt").write_text("-----BEGIN")
        assert await fingerprint(port, authority.certificate) == first
        authority.issue_server("localhost").write(tmp_path, "tls")
        assert await fingerprint(port, authority.certificate) != first


@on_loop
async def test_only_authenticated_clients_are_answered(tmp_path: Path):
    authority = Authority()
    authority.issue_server("localhost").write(tmp_path, "tls")
    authority.issue_client("scheduler").write(tmp_path, "client")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)

    async def ask(port: int, context: ssl.SSLContext) -> bytes:
        reader, writer = await asyncio.open_connection(
            LOCAL, port, ssl=context, server_hostname="localhost"
        )
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        try:
            return await reader.readline()
        finally:
            writer.close()
            with suppress(ssl.SSLError, ConnectionError):
                await writer.wait_closed()

    context = Shown(tmp_path, tmp_path / "ca.crt").context
    async with served(context, Desk().answering) as port:
        known = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        # The form of the refusal depends on timing.
        try:
            answer = await ask(port, known)
        except (ssl.SSLError, ConnectionError):
            answer = b""
        assert answer == b""
        known.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
        assert b"400" in await ask(port, known), "an invalid question is refused"


@on_loop
async def test_own_certificates_are_renewed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    provide(tmp_path)
    authority = (tmp_path / "ca.crt").read_bytes()
    first = (tmp_path / "tls.crt").read_bytes()
    provide(tmp_path)
    assert (tmp_path / "tls.crt").read_bytes() == first
    assert (tmp_path / "tls.key").stat().st_mode & 0o077 == 0
    lasts = x509.load_pem_x509_certificate(first).not_valid_after_utc - datetime.now(UTC)
    assert lasts > 2 * shown_certificate.RENEW_BEFORE
    monkeypatch.setattr(shown_certificate, "RENEW_BEFORE", 3 * shown_certificate.RENEW_BEFORE)
    provide(tmp_path)
    assert (tmp_path / "tls.crt").read_bytes() != first
    assert (tmp_path / "ca.crt").read_bytes() == authority, "kube-scheduler has read it"
    async with served(Shown(tmp_path).context, Desk().answering) as port:
        await fingerprint(port, authority)


def test_certificate_without_its_key_is_made_again(tmp_path: Path):
    """A program killed between writing the key and the certificate leaves files that do not match."""
    provide(tmp_path / "other")
    provide(tmp_path)
    authority = (tmp_path / "ca.crt").read_bytes()
    (tmp_path / "tls.key").write_bytes((tmp_path / "other" / "tls.key").read_bytes())
    provide(tmp_path)
    (tmp_path / "tls.key").unlink()
    provide(tmp_path)
    Shown(tmp_path)
    assert (tmp_path / "ca.crt").read_bytes() == authority


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen=8443"], "write [ADDRESS]:PORT"),
        (["--listen=0.0.0.0:8443"], "name a folder with --tls"),
        (["--make-tls"], "--tls FOLDER"),
        (["--hold-seconds=0"], "--hold-seconds"),
        (["--overtaking=always"], "'never', 'harmless'"),
        (["--kubeconfig=/nowhere"], "no cluster"),
    ],
)
def test_wrong_options_are_refused(options: list[str], words: str):
    result = CliRunner().invoke(main, options)
    assert result.exit_code != 0
    assert words in result.output

"""How the page's server starts: over TLS with a certificate that it makes, or not at all where tokens would be read by others."""

import asyncio
import http.client
import socket
import ssl
import sys
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from dljob.kube import shown_certificate
from dljob_web.portal import __main__ as portal
from dljob_web.portal.__main__ import main
from tests.servers.ports import choose_ports
from tests.servers.processes import Guard, Server

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: x}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name a folder with --tls FOLDER"),
        (["--no-tls", "--tls", "x"], "name a folder with --tls FOLDER"),
        (["--no-tls", "--listen", "x"], "write [ADDRESS]:PORT"),
    ],
)
def test_wrong_setting_is_refused_with_an_example(words, told):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


@pytest.mark.story
@pytest.mark.processes
def test_certificate_is_made_and_an_outage_reported(tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG, encoding="utf-8")
    [port] = choose_ports(1)
    command = [
        *(sys.executable, "-P", "-m", "dljob_web.portal", "--kubeconfig", kubeconfig),
        *("--listen", f"127.0.0.1:{port}", "--tls", tmp_path / "tls", "--make-tls"),
    ]

    def ask(path, **headers):
        context = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.crt"))
        connection = http.client.HTTPSConnection("localhost", port, timeout=240, context=context)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def is_ready():
        try:
            return ask("/healthz") == (200, "ok\n")
        except OSError:
            return False

    with Guard() as guard:
        server = Server(
            list(map(str, command)), guard=guard, log=tmp_path / "log", is_ready=is_ready
        )
        server.start()
        status, text = ask("/api/v1/page", Authorization="Bearer x")
        assert status == 503
        assert "does not answer" in text
        server.stop()


def test_an_error_does_not_end_the_renewal_of_its_certificate(tmp_path, monkeypatch, caplog):
    async def story():
        renewed, tries = asyncio.Event(), []

        def provide(folder):
            tries.append(folder)
            if len(tries) < 3:
                raise OSError(28, "No space left on device")
            renewed.set()

        async def serve(*_, **__):
            await renewed.wait()

        class Api:
            async def close(self):
                """Nothing is open."""

        monkeypatch.setattr(shown_certificate, "provide", provide)
        monkeypatch.setattr(portal, "provide", provide)
        monkeypatch.setattr(portal, "RENEWAL_S", 0.0)
        monkeypatch.setattr(portal, "serve", serve)
        monkeypatch.setattr(portal, "ApiServer", lambda _: Api())
        page: Any = SimpleNamespace(application=lambda: None)
        access: Any = None
        with closing(socket.create_server(("127.0.0.1", 0))) as door:
            await portal._run(access, lambda _: page, door=door, tls=None, made=tmp_path)
        assert len(tries) >= 3

    asyncio.run(asyncio.wait_for(story(), 240.0))
    assert "is not renewed yet" in caplog.text

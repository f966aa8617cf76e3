"""The rights of clients of a SideCar on a network, with real handshakes."""

import asyncio
import shutil
import ssl
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dljob_sidecar.serving.listening import Servers
from dljob_sidecar.serving.trust import CertificateListener, job_name
from dljob_sidecar.settings import Serving
from dljob_wire import codec
from dljob_wire.messages import Phase, Refusal, Refused
from tests.sidecar.certificates import (
    CONTROLLER,
    JOB,
    Authority,
    People,
    client_context,
    make_people,
)
from tests.sidecar.clients import LONGEST_SECONDS, Client, ask_over, hang_up, live_through, lived
from tests.sidecar.fakes import Container
from tests.sidecar.targets import run


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> People:
    return make_people(tmp_path_factory.mktemp("people"))


@pytest.fixture
def mounted(people, tmp_path) -> Path:
    """A writable copy of the SideCar's certificates."""
    return Path(shutil.copytree(people.sidecar, tmp_path / "mounted"))


class NetworkedContainer(Container):
    def __init__(self, folder: Path, **how: Any) -> None:
        super().__init__()
        settings = Serving(
            address="127.0.0.1",
            tls_folder=str(folder),
            job_uid=JOB,
            controller_name=CONTROLLER,
            **{"header_seconds": LONGEST_SECONDS, **how},
        )
        self.servers = Servers(self.agent, settings)
        self.servers.open()
        self.folder = folder

    def seen_by(self, person: Path | None) -> Client:
        context = client_context(person, self.folder)
        return Client(port=self.servers.port, context=context, server_name=job_name(JOB))


@asynccontextmanager
async def networked(folder: Path, **how: Any):
    container = NetworkedContainer(folder, **how)
    try:
        yield container
    finally:
        await container.servers.close()


@lived
async def test_controller_declares_and_job_only_reads(people):
    async with networked(people.sidecar) as container:
        job = container.seen_by(people.job)
        answer = await job.put(run(1))
        refused = codec.decode(Refusal, answer.body)
        assert (answer.status, refused.error) == (403, Refused.NOT_AUTHORIZED)
        assert "may read, and may not command" in refused.message
        assert container.supervisor.demanded == []
        controller = container.seen_by(people.controller)
        assert (await controller.put(run(1))).state().phase is Phase.STARTING
        for reader in (job, controller):
            assert (await reader.get("/v1/state")).state().generation == 1


@lived
async def test_polls_of_the_job_leave_room_for_the_controller(people):
    most = 3
    async with networked(people.sidecar, most_waiting=most) as container:
        job, controller = (container.seen_by(each) for each in (people.job, people.controller))
        path = f"/v1/state?after={container.agent.version}&wait=60"
        polls = []
        for number in range(most):
            polls.append(asyncio.ensure_future(job.get(path)))
            while container.servers.waiting != number + 1:
                assert not polls[-1].done()
                await asyncio.sleep(0)
        assert (await job.get(path)).status == 503
        awaited = asyncio.ensure_future(controller.get(path))
        while container.servers.waiting != most + 1:
            assert not awaited.done()
            await asyncio.sleep(0)
        await controller.put(run(1))
        answers = await asyncio.gather(awaited, *polls)
        assert {each.status for each in answers} == {200}


@lived
async def test_other_certificates_are_refused(people):
    async with networked(people.sidecar) as container:
        for client in map(container.seen_by, (people.other_job, people.stranger)):
            for answer in [await client.put(run(1)), await client.get("/v1/state")]:
                refused = codec.decode(Refusal, answer.body)
                assert (answer.status, refused.error) == (403, Refused.NOT_AUTHORIZED)
                assert refused.remedy
            # Not even the existence of a path is shown.
            assert (await client.get("/nothing")).status == 403
        assert container.supervisor.demanded == []


@lived
async def test_invalid_certificate_or_old_tls_cannot_connect(people):
    async with networked(people.sidecar) as container:
        old = container.seen_by(people.controller)
        assert old.context is not None
        old.context.maximum_version = ssl.TLSVersion.TLSv1_2
        wrong = (None, people.expired, people.forger)
        for client in (*map(container.seen_by, wrong), old):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await client.put(run(1))
        plain = Client(port=container.servers.port)
        answer = b""
        with suppress(ConnectionError):
            answer = await plain.send(b"GET /v1/state HTTP/1.1\r\nHost: d\r\n\r\n")
        assert b"200" not in answer
        assert b"incarnation" not in answer
        assert container.supervisor.demanded == []
        assert (await container.seen_by(people.controller).get("/v1/state")).status == 200


@pytest.mark.processes
@lived
async def test_unfinished_handshake_is_disconnected(people):
    async with networked(people.sidecar, header_seconds=0.3) as container:
        silent = Client(port=container.servers.port)
        assert await silent.send(b"") == b""


@lived
async def test_sidecar_presents_the_name_of_its_job(people):
    async with networked(people.sidecar) as container:
        context = client_context(people.controller, people.sidecar)
        wrong = Client(
            port=container.servers.port, context=context, server_name=job_name("another-job")
        )
        with pytest.raises(ssl.SSLCertVerificationError):
            await wrong.get("/v1/state")


@lived
async def test_renewed_certificates_replace_old_ones(people, tmp_path, mounted):
    async with networked(mounted) as container:
        assert (await container.seen_by(people.controller).get("/v1/state")).status == 200
        renewed = Authority("renewed")
        renewed.issue(mounted, job_name(JOB))
        container.servers.renew()
        newcomer = renewed.issue(tmp_path / "controller", CONTROLLER)
        assert (await container.seen_by(newcomer).get("/v1/state")).status == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await container.seen_by(people.controller).get("/v1/state")


def test_reset_connection_is_no_error(people, caplog, monkeypatch):
    answered, ends = CertificateListener.why_not, []

    def end_first(listener, request, *, may_declare):
        # The peer resets the connection right after its request.
        request.connection.stream.close()
        ends.append(request.uri)
        return answered(listener, request, may_declare=may_declare)

    monkeypatch.setattr(CertificateListener, "why_not", end_first)

    async def story():
        async with networked(people.sidecar) as container:
            with suppress(OSError, ValueError, IndexError):
                await container.seen_by(people.controller).get("/v1/state")

    with caplog.at_level("INFO"):
        live_through(story())
    assert ends == ["/v1/state"]
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@lived
async def test_connection_ends_with_its_authority(people, mounted):
    async with networked(mounted) as container:
        reader, writer = await container.seen_by(people.controller).connect()
        writer.write(b"GET /v1/state HTTP/1.1\r\nHost: d\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        Authority("renewed").issue(mounted, job_name(JOB))
        container.servers.renew()
        await reader.read()
        assert reader.at_eof()
        await hang_up(writer)


@lived
async def test_half_written_certificates_are_ignored(people, mounted):
    async with networked(mounted) as container:
        whole = (mounted / "tls.crt").read_text()
        (mounted / "tls.crt").write_text(whole[: len(whole) // 2])
        container.servers.renew()
        assert not container.servers.has_readable_certificates
        client = container.seen_by(people.controller)
        assert (await client.get("/v1/state")).status == 200
        (mounted / "tls.crt").write_text(whole)
        container.servers.renew()
        assert container.servers.has_readable_certificates


@lived
async def test_missing_certificates_prevent_the_server(people, tmp_path):
    for missing in ("tls.crt", "tls.key", "ca.crt"):
        folder = tmp_path / missing
        shutil.copytree(people.sidecar, folder)
        (folder / missing).unlink()
        with pytest.raises(FileNotFoundError):
            NetworkedContainer(folder)


@lived
async def test_expired_certificate_is_refused_while_connected(people, tmp_path, monkeypatch):
    authority = Authority()
    folder = authority.issue(tmp_path / "sidecar", job_name(JOB))
    soon = authority.issue(tmp_path / "soon", CONTROLLER, days=1.0)
    async with networked(folder) as container:
        reader, writer = await container.seen_by(soon).connect()
        assert (await ask_over(reader, writer, "/v1/state")).status == 200
        # The clock jumps, because a slow handshake may outlast a short certificate.
        tomorrow = time.time() + 86400.0
        monkeypatch.setattr(time, "time", lambda: tomorrow)
        answer = await ask_over(reader, writer, "/v1/state")
        assert answer.status == 403
        assert codec.decode(Refusal, answer.body).message == "the certificate has expired"
        await hang_up(writer)

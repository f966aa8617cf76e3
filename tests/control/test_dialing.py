"""Controllers and SideCars authenticate each other on a network, with real handshakes."""

import shutil
import ssl
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from dljob.control.sidecars.dialing import Credentials, DialSettings, Unreachable
from dljob.control.situation.ports import Address
from dljob_sidecar.serving.trust import job_name
from dljob_sidecar.settings import Serving
from tests.control.callers import HURRIED, calling, contained, living
from tests.sidecar.certificates import Authority

JOB = "0b5a7f5e-7c1d-4c58-9d5e-3f7f6f1d2c3b"
CONTROLLER = "controller.dljob"


class People(NamedTuple):
    authority: Authority
    folder: Path
    sidecar: Path
    controller: Path


@pytest.fixture
def people(tmp_path) -> People:
    authority = Authority()
    return People(
        authority,
        tmp_path,
        sidecar=authority.issue(tmp_path / "sidecar", job_name(JOB)),
        controller=authority.issue(tmp_path / "controller", CONTROLLER),
    )


@asynccontextmanager
async def networked(people: People):
    serving = Serving(
        address="127.0.0.1", tls_folder=str(people.sidecar), job_uid=JOB, controller_name=CONTROLLER
    )
    async with contained(None, serving=serving) as container:
        yield container


def calling_as(folder: Path | None, *, renewal_seconds: float = 0.0):
    return calling(
        replace(
            HURRIED,
            certificates="" if folder is None else str(folder),
            renewal_seconds=renewal_seconds,
        )
    )


def at(container, name: str = job_name(JOB)) -> Address:
    return Address(host="127.0.0.1", port=container.servers.port, name=name)


@living
async def test_sidecar_with_the_wrong_name_gets_no_message(people):
    async with networked(people) as container, calling_as(people.controller) as caller:
        caller.follow(at(container, "another.job.dljob"))
        contact = await caller.until(lambda contact: contact.problem)
        assert "does not prove that it is another.job.dljob" in contact.problem
        assert (contact.reachable, contact.state) == (False, None)
        caller.follow(at(container, ""))
        contact = await caller.until(lambda contact: contact.problem)
        assert "is not known" in contact.problem


@living
async def test_sidecar_of_another_authority_is_a_stranger(people):
    forger = Authority("another authority").issue(people.folder / "forger", CONTROLLER)
    async with networked(people) as container, calling_as(forger) as caller:
        caller.follow(at(container))
        contact = await caller.until(lambda contact: contact.problem)
        assert "does not prove that it is" in contact.problem
        assert not contact.outdated


@living
async def test_expired_sidecar_certificate_is_outdated_until_renewal(people):
    people.authority.issue(people.sidecar, job_name(JOB), days=-1)
    async with networked(people) as container, calling_as(people.controller) as caller:
        caller.follow(at(container))
        contact = await caller.until(lambda contact: contact.problem)
        assert (contact.reachable, contact.outdated) == (False, True)
        assert "expired" in contact.problem
        people.authority.issue(people.sidecar, job_name(JOB))
        container.servers.renew()
        contact = await caller.until(lambda contact: contact.reachable)
        assert not contact.outdated


@living
async def test_controller_with_the_wrong_name_learns_why(people):
    stranger = people.authority.issue(people.folder / "stranger", "www.example.org")
    async with networked(people) as container, calling_as(stranger) as caller:
        caller.follow(at(container))
        contact = await caller.until(lambda contact: contact.problem)
        assert "NotAuthorized" in contact.problem
        assert "www.example.org" in contact.problem


@living
async def test_missing_certificates_are_named(people):
    async with networked(people) as container:
        async with calling_as(None) as caller:
            caller.follow(at(container))
            contact = await caller.until(lambda contact: contact.problem)
            assert "no certificates to dial" in contact.problem
        async with calling_as(people.folder / "nothing") as caller:
            caller.follow(at(container))
            contact = await caller.until(lambda contact: contact.problem)
            assert "has to hold tls.crt, tls.key and ca.crt" in contact.problem


@living
async def test_renewed_certificates_are_used_silently(people):
    async with networked(people) as container, calling_as(people.controller) as caller:
        await caller.meet(at(container))
        await container.polled()
        later = Authority("a later authority")
        later.issue(people.controller, CONTROLLER)
        later.issue(people.sidecar, job_name(JOB))
        # Every connection is closed by this, and the old certificates open no other.
        container.servers.renew()
        caller.run(3)
        await caller.until(lambda contact: contact.state.generation == 3)
        await caller.until(lambda contact: contact.reachable)


class Clock:
    """A time that changes only when it is set."""

    time = 0.0

    def now(self) -> float:
        return self.time


def replace_file(file: Path, source: Path) -> None:
    """Replace a file by another inode: two files of one size may be written within one tick."""
    shutil.copy(source, file.with_suffix(".next"))
    file.with_suffix(".next").replace(file)


def test_half_written_certificates_are_not_used(people, caplog):
    clock = Clock()
    ours = Credentials(str(people.controller), renewal_seconds=5.0, now=clock.now)
    first = ours.context()
    people.authority.issue(people.folder / "next", CONTROLLER)
    replace_file(people.controller / "tls.crt", people.folder / "next" / "tls.crt")
    clock.time = 4.9
    assert ours.context() is first
    assert "cannot use" not in caplog.text
    for time in (5.0, 10.0, 15.0):
        clock.time = time
        assert ours.context() is first
    assert caplog.text.count("cannot use the certificates") == 1
    replace_file(people.controller / "tls.key", people.folder / "next" / "tls.key")
    clock.time = 20.0
    assert ours.context() is not first


def test_later_certificates_are_found(people):
    clock = Clock()
    folder = people.folder / "late"
    ours = Credentials(str(folder), renewal_seconds=5.0, now=clock.now)
    with pytest.raises(Unreachable):
        ours.context()
    people.authority.issue(folder, CONTROLLER)
    with pytest.raises(Unreachable):
        ours.context()
    clock.time = 5.0
    assert ours.context().get_ca_certs()


def test_tls_1_2_is_not_offered(people):
    """SideCars accept only 1.3, so a server with 1.2 is no SideCar, and gets no certificate."""
    credentials = Credentials(str(people.controller), renewal_seconds=0.0, now=lambda: 0.0)
    older = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    older.load_cert_chain(people.sidecar / "tls.crt", people.sidecar / "tls.key")
    greeting, answer = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = credentials.context().wrap_bio(answer, greeting, server_hostname=job_name(JOB))
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    server = older.wrap_bio(greeting, answer, server_side=True)
    with pytest.raises(ssl.SSLError, match=r"(?i)unsupported.protocol"):
        server.do_handshake()


def test_progress_pace_follows_the_number_of_sidecars():
    settings = DialSettings(
        progress_seconds=1.0, progress_per_second=250.0, longest_progress_seconds=45.0
    )
    paces = [settings.pace(sidecars) for sidecars in (0, 1, 250, 1000, 10_000, 100_000)]
    assert paces == [1.0, 1.0, 1.0, 4.0, 40.0, 45.0]

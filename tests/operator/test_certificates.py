"""
The certificates of jobs and of the operator are renewed, even if one of them cannot be written.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dlcontrol.sidecars.dialing import CERTIFICATE
from dlcore.model import JobId
from dlkube import access, health_server, names
from dlkube.certificates import (
    Authority,
    Certificates,
    renew_own,
    write_own,
)
from dlkube.client import ApiServer, NotFound, Rejected, Unreachable
from dlkube.resources import DLJOBS, SECRETS, Resource
from tests.loops import on_loop
from tests.operator.manifests import make_manifest
from tests.servers.controlplane import ControlPlane

DAY = 86_400.0


class SecretServer:
    """Keeps Secrets, but not in a namespace that is about to go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.going = {"going"}

    async def create(
        self, _resource: Resource, _document: Mapping[str, Any], namespace: str
    ) -> None:
        self.asked.append(namespace)
        if namespace in self.going:
            raise Rejected(403, {"message": f"namespace {namespace} is being terminated"})


def metadata(namespace: str) -> dict[str, str]:
    return {"name": "job", "namespace": namespace, "uid": f"uid-of-{namespace}"}


JOBS = {JobId(f"{name}/job"): metadata(name) for name in ("first", "going", "last")}


def test_a_namespace_that_is_about_to_go_stops_nobody_elses_renewal(
    caplog: pytest.LogCaptureFixture,
):
    server, now = SecretServer(), [0.0]
    api: Any = server
    certificates = Certificates(api, Authority.new(), clock=lambda: now[0], chance=random.Random(1))

    def renewed() -> list[str]:
        server.asked.clear()
        with caplog.at_level(logging.WARNING):
            asyncio.run(certificates.renew(JOBS))
        return sorted(server.asked)

    assert renewed() == [], "no certificate is known to be due"
    now[0] = DAY
    assert renewed() == ["first", "going", "last"]
    [said] = caplog.messages
    assert "of 1 jobs cannot be written, as of going/job: namespace going is being" in said
    assert renewed() == [], "it is not asked for all the time"
    now[0] += 61.0
    assert renewed() == ["going"]
    server.going.clear()
    now[0] += 61.0
    assert renewed() == ["going"]
    now[0] += DAY
    assert renewed() == []


def test_who_may_lack_a_valid_one_is_given_another_one_now_and_then():
    server, now = SecretServer(), [0.0]
    server.going.clear()
    api: Any = server
    certificates = Certificates(api, Authority.new(), clock=lambda: now[0], chance=random.Random(1))

    def renewed() -> list[str]:
        server.asked.clear()
        asyncio.run(certificates.renew(JOBS, [JobId("last/job")]))
        return server.asked

    assert renewed() == ["last"]
    now[0] += 5.0
    assert renewed() == []
    now[0] += 60.0
    assert renewed() == ["last"]


@on_loop
async def test_the_certificate_of_the_operator_itself_is_renewed(tmp_path: Path):
    authority = Authority.new()
    write_own(authority, tmp_path, name="operator")
    first = (tmp_path / CERTIFICATE).read_bytes()
    renewing = asyncio.create_task(
        renew_own(authority, tmp_path, name="operator", every_seconds=0.001)
    )
    async with asyncio.timeout(240):
        while (tmp_path / CERTIFICATE).read_bytes() in (first, b""):
            await asyncio.sleep(0)
    renewing.cancel()


@pytest.mark.cluster
@on_loop
async def test_a_job_gets_its_certificate_although_that_of_a_former_job_of_its_name_is_there(
    cluster: ControlPlane, namespace: str
):
    api = ApiServer(access.find(str(cluster.admin)))
    try:
        # Of a job that lives, because the garbage collector removes those of others at any time.
        former, job = [
            await api.create(DLJOBS, make_manifest(name), namespace) for name in ("former", "job")
        ]
        left = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": "job-dljob-tls",
                "ownerReferences": [names.owner_reference(former["metadata"])],
            },
            "type": "kubernetes.io/tls",
            "data": {"tls.crt": "", "tls.key": ""},
        }
        await api.create(SECRETS, left, namespace)
        certificates = Certificates(api, Authority.new())
        await certificates.provide(JobId(f"{namespace}/job"), job["metadata"])
        secret = await api.get(SECRETS, "job-dljob-tls", namespace)
        (owner,) = secret["metadata"]["ownerReferences"]
        assert owner["uid"] == job["metadata"]["uid"]
        assert secret["data"]["tls.crt"]
    finally:
        await api.close()


class MomentaryErrors(SecretServer):
    """Has no Secret yet, and answers with errors at first."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__()
        self.errors = errors

    async def get(self, _resource: Resource, name: str, _namespace: str) -> Mapping[str, Any]:
        if self.errors:
            raise self.errors.pop(0)
        if not self.asked:
            raise NotFound(404, {"message": f"no {name}"})
        return self.made

    async def create(self, resource: Resource, document: Mapping[str, Any], namespace: str) -> None:
        await super().create(resource, document, namespace)
        self.made = document


def test_the_first_certificate_of_the_metrics_waits_for_the_api_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(health_server, "AGAIN_S", 0.0)
    errors = [Rejected(503, {"message": "not now"}), Unreachable("no answer")]
    api: Any = MomentaryErrors([*errors])
    asyncio.run(health_server.write_first_certificate(api, "home", folder=tmp_path))
    assert (tmp_path / CERTIFICATE).exists()


def test_missing_rights_to_the_authority_of_the_metrics_are_final(tmp_path: Path):
    api: Any = MomentaryErrors([Rejected(403, {"message": "forbidden"})])
    with pytest.raises(Rejected, match="forbidden"):
        asyncio.run(health_server.write_first_certificate(api, "home", folder=tmp_path))

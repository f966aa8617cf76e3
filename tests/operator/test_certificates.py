"""The certificates of jobs and of the operator are renewed, even if one of them cannot be written."""

import asyncio
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dljob.control.sidecars.dialing import CERTIFICATE
from dljob.core.model import JobId
from dljob.kube import health_server
from dljob.kube.certificates import Authority, Certificates, renew_own, write_own
from dljob.kube.client import NotFound, Rejected, Unreachable
from dljob.kube.resources import Resource
from tests.loops import on_loop

DAY = 86_400.0


class SecretServer:
    """Keeps Secrets, except in namespaces that are being deleted."""

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


def test_deleted_namespace_stops_no_other_renewal(caplog: pytest.LogCaptureFixture):
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
    assert renewed() == [], "there is a pause"
    now[0] += 61.0
    assert renewed() == ["going"]
    server.going.clear()
    now[0] += 61.0
    assert renewed() == ["going"]
    now[0] += DAY
    assert renewed() == []


@on_loop
async def test_own_certificate_is_renewed(tmp_path: Path):
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


class MomentaryErrors(SecretServer):
    """Has no Secret yet, and returns errors at first."""

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


def test_first_metrics_certificate_waits_for_the_api_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(health_server, "AGAIN_S", 0.0)
    errors = [Rejected(503, {"message": "not now"}), Unreachable("no answer")]
    api: Any = MomentaryErrors([*errors])
    asyncio.run(health_server.write_first_certificate(api, "home", folder=tmp_path))
    assert (tmp_path / CERTIFICATE).exists()


def test_missing_rights_for_the_metrics_authority_are_final(tmp_path: Path):
    api: Any = MomentaryErrors([Rejected(403, {"message": "forbidden"})])
    with pytest.raises(Rejected, match="forbidden"):
        asyncio.run(health_server.write_first_certificate(api, "home", folder=tmp_path))

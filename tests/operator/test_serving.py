"""A real API server decides which accounts may read restricted metrics."""

import ssl
from http import HTTPStatus
from pathlib import Path

import aiohttp
import pytest

from dljob.kube import access, health_server
from dljob.kube.client import ApiServer
from dljob.kube.health_server import HealthServer, MetricsServer
from dljob.kube.shown_certificate import Shown
from dljob_wire.endpoints import Endpoint
from tests.loops import on_loop
from tests.operator.stages import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

TEXT = b"dljob_jobs 1\n"


@pytest.fixture(scope="module")
def tokens(control_plane):
    kubectl = control_plane.kubectl

    def create(*words: str) -> None:
        # The control plane outlives this module, which may be set up again between tests of others.
        said = kubectl.try_to("create", *words)
        assert said.code == 0 or "already exists" in said.err, said.err

    create("clusterrole", "reads-metrics", "--verb=get", "--non-resource-url=/metrics")
    found = {}
    for name in ("reader", "stranger"):
        create("serviceaccount", name, "-n", "default")
        found[name] = kubectl("create", "token", name, "-n", "default").strip()
    create(
        "clusterrolebinding", "reads-metrics", "--clusterrole=reads-metrics",
        "--serviceaccount=default:reader",
    )  # fmt: skip
    # A binding counts a moment after it was created.
    asked = ("auth", "can-i", "get", "/metrics", "--as=system:serviceaccount:default:reader")
    wait_until(lambda: kubectl.try_to(*asked).code == 0)
    return found


@pytest.mark.story
@on_loop
async def test_api_server_guards_metrics(control_plane, namespace, tokens, tmp_path):
    api = ApiServer(access.find(str(control_plane.admin)))
    server = MetricsServer(Endpoint("127.0.0.1", 0), api, metrics=lambda: TEXT)
    await health_server.write_certificate(api, namespace, folder=tmp_path)
    await server.open(Shown(tmp_path).context)
    try:
        told = {
            name: await ask(server.port, tmp_path, namespace, tokens.get(name, name))
            for name in ("reader", "stranger", "nonsense", "")
        }
    finally:
        await server.close()
        await api.close()
    assert told["reader"] == (HTTPStatus.OK, TEXT.decode())
    assert told["stranger"][0] == HTTPStatus.FORBIDDEN
    assert "dljob-metrics-view" in told["stranger"][1]
    assert told["nonsense"][0] == HTTPStatus.UNAUTHORIZED
    assert told[""][0] == HTTPStatus.UNAUTHORIZED


async def ask(port: int, folder: Path, namespace: str, token: str) -> tuple[int, str]:
    """Ask like Prometheus, which trusts the authority and checks the name."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    name = f"dljob-operator.{namespace}.svc"
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            f"https://127.0.0.1:{port}/metrics", ssl=context, server_hostname=name, headers=headers
        ) as answer,
    ):
        return answer.status, await answer.text()


@on_loop
async def test_health_port_hides_restricted_metrics():
    server = HealthServer(Endpoint("127.0.0.1", 0), is_ready=str, metrics=None)
    await server.open()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{server.port}/metrics") as answer,
        ):
            assert answer.status == HTTPStatus.FORBIDDEN
            assert "metrics.address" in await answer.text()
    finally:
        await server.close()

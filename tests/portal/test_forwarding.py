"""``dljob web`` on a real control plane: the page through the API server, with the rights of a kubeconfig."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from dljob.client.backend import NotThere
from dljob.client.cluster.forwarding import forward
from dljob.kube.client import Listing
from tests.ctl.running import LONGEST_S
from tests.operator.kubelet_doors import served
from tests.operator.kubelets import Kubelets
from tests.operator.stages import wait_until
from tests.portal.houses import HOME


class Unready:
    """An API server with the page's Service and a pod that is not ready."""

    async def get(self, kind, name, namespace):
        return {"spec": {"selector": {"app": "web"}, "ports": [{"name": "https"}]}}

    async def list(self, kind, namespace, *, labels):
        conditions = [{"type": "Ready", "status": "False"}]
        return Listing([{"metadata": {}, "status": {"conditions": conditions}}], "1")


def test_a_page_without_a_pod_is_told_with_the_command_that_shows_why():
    api: Any = Unready()
    going = forward(api, HOME, port=0, opened=pytest.fail, notice=pytest.fail)
    with pytest.raises(NotThere, match=f"kubectl get pods -n {HOME} -l app=web shows why"):
        asyncio.run(going)


@pytest.fixture(scope="module")
def page(house, tmp_path_factory):
    """The page's pod, with a kubelet that leads to the page's server, and the kubeconfig of a user who may forward."""
    pods = f"/api/v1/namespaces/{HOME}/pods"
    folder = tmp_path_factory.mktemp("kubelet")
    with (
        Kubelets(house.plane, HOME, set(), folder / "pods") as kubelets,
        served(kubelets, house.api, ["node-1"], folder / "door") as door,
    ):
        door.forwards[8443] = urlsplit(house.address).port or 0
        wait_until(lambda: any("nodeName" in each["spec"] for each in house.api.get(pods)["items"]))
        [pod] = house.api.get(pods)["items"]
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        house.api.merge(f"{pods}/{pod['metadata']['name']}/status", ready)
        # The server of the tests ends no TLS, as behind an Ingress (web.tls.enabled).
        ports = {"spec": {"ports": [{"name": "http", "port": 80, "targetPort": "web"}]}}
        house.api.merge(f"/api/v1/namespaces/{HOME}/services/dljob-web", ports)
        house.plane.kubectl(
            *("create", "rolebinding", "planner", "-n", HOME, "--role=dljob-web-forward"),
            f"--serviceaccount={HOME}:planner",
        )
        yield house.plane.kubeconfig_for_service_account(HOME, "planner")


@contextmanager
def opened(kubeconfig, *words):
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-c", "from dljob.cli.main import main; main()", "web", *words),
            *("--no-browser", "--kubeconfig", str(kubeconfig)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LONGEST_S)


@pytest.mark.story
@pytest.mark.cluster
@pytest.mark.processes
def test_the_page_opens_with_a_kubeconfig_and_its_login_and_ends_with_ctrl_c(house, page):
    with opened(page, "--port", "0") as process:
        url = process.stdout.readline().split()[-1]
        through = replace(house, address=url.rstrip("/"))
        for user in ("red", "chief", ""):
            assert through.ask("/", user) == house.ask("/", user)
            assert through.ask("/api/v1/jobs", user) == house.ask("/api/v1/jobs", user)
        assert len(through.ask("/api/v1/jobs", "chief")[1]["items"]) == 2
        # A browser keeps its connection.
        kept = socket.create_connection(("localhost", urlsplit(url).port), timeout=LONGEST_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_S) == 130
        kept.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("localhost", urlsplit(url).port), timeout=LONGEST_S)


@pytest.mark.cluster
@pytest.mark.processes
def test_each_refusal_has_a_remedy(house, page):
    stranger = house.plane.kubeconfig_for_service_account(HOME, "stranger")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for kubeconfig, words, told in (
            (stranger, (), f"kubectl create rolebinding dljob-web-forward -n {HOME} --role="),
            (house.plane.admin, ("-n", "default"), "set web.enabled=true in the chart"),
            (page, ("--port", port), "name another one with --port"),
        ):
            with opened(kubeconfig, *words) as process:
                _, said = process.communicate(timeout=LONGEST_S)
                assert (process.returncode, told in said) == (1, True), said

"""``dljob web`` on a real control plane: the page through the API server, with the rights of a kubeconfig."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from addons.web.tests.portal.houses import HOME
from tests.ctl.running import LONGEST_S

KUBECTL = """\
#!{python} -S
import os, signal, sys
open({log!r}, "a").write(" ".join(sys.argv[1:]) + chr(10))
if sys.argv[-1] == ":443":
    print("Forwarding from 127.0.0.1:{port} -> 8443", flush=True)
    print("Forwarding from [::1]:{port} -> 8443", flush=True)
    signal.pause()
print("Handling connection for 1", flush=True)
sys.exit({refusal!r})
"""


@pytest.fixture
def kubectl(house, tmp_path):
    """Make a kubectl that leads to the page's server, and to a named port fails; return what it was asked."""
    log, program = tmp_path / "asked", tmp_path / "kubectl"
    there = {"python": sys.executable, "log": str(log), "port": urlsplit(house.address).port}
    program.write_text(KUBECTL.format(**there, refusal="error: unable to listen"), encoding="utf-8")
    program.chmod(0o755)
    return log


@pytest.fixture(scope="module")
def page(house):
    """The kubeconfig of a user who may forward."""
    # The server of the tests ends no TLS, as behind an Ingress (web.tls.enabled).
    ports = {"spec": {"ports": [{"name": "http", "port": 443, "targetPort": "web"}]}}
    house.api.merge(f"/api/v1/namespaces/{HOME}/services/dljob-web", ports)
    house.plane.kubectl(
        *("create", "rolebinding", "planner", "-n", HOME, "--role=dljob-web-forward"),
        f"--serviceaccount={HOME}:planner",
    )
    return house.plane.kubeconfig_for_service_account(HOME, "planner")


@contextmanager
def opened(kubeconfig, kubectl, *words):
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-c", "from dljob.cli.main import main; main()", "web", *words),
            *("--no-browser", "--kubeconfig", str(kubeconfig)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PATH": f"{kubectl.parent}{os.pathsep}{os.environ['PATH']}",
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LONGEST_S)


@pytest.mark.story
@pytest.mark.cluster
@pytest.mark.processes
def test_the_page_opens_with_a_kubeconfig_and_its_login_and_ends_with_ctrl_c(house, page, kubectl):
    with opened(page, kubectl, "--port", "0") as process:
        url = process.stdout.readline().split()[-1]
        assert url == f"http://localhost:{urlsplit(house.address).port}/"
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_S) == 130
    asked = kubectl.read_text(encoding="utf-8").split()
    assert asked[0] == f"--kubeconfig={page}"
    assert asked[-4:] == [f"--namespace={HOME}", "port-forward", "service/dljob-web", ":443"]


@pytest.mark.cluster
@pytest.mark.processes
def test_each_refusal_has_a_remedy(house, page, kubectl):
    stranger = house.plane.kubeconfig_for_service_account(HOME, "stranger")
    for kubeconfig, words, told in (
        (stranger, (), f"kubectl create rolebinding dljob-web-forward -n {HOME} --role="),
        (house.plane.admin, ("-n", "default"), "set web.enabled=true in the chart"),
        (page, ("--port", "9"), "(error: unable to listen); run this again, with --port 0 where"),
    ):
        with opened(kubeconfig, kubectl, *words) as process:
            _, said = process.communicate(timeout=LONGEST_S)
            assert (process.returncode, told in said) == (1, True), said


@pytest.mark.cluster
def test_the_role_is_enough_for_kubectl(house, page):
    """A real kubectl gets as far as the pod, which does not run."""
    said = house.plane.kubectl_as(page).try_to(
        *("port-forward", "-n", HOME, "service/dljob-web", ":443", "--pod-running-timeout=1s")
    )
    assert "pod is not running" in said.err, said.err

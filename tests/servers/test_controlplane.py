"""The control plane of the tests is real, restarts in place, and always ends with the tests."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.servers.api import Api, Json
from tests.servers.controlplane import ControlPlane, Wishes
from tests.servers.namespaces import make_namespace
from tests.servers.nodes import add_nodes, make_node
from tests.servers.ports import choose_ports
from tests.servers.processes import Guard
from tests.sidecar.drivers import ROOT, find_processes, is_alive, wait_until

pytestmark = pytest.mark.cluster


def make_pod(name: str, **spec: object) -> Json:
    containers = [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def wait_until_bound(api: Api, path: str) -> str:
    """The node to which a scheduler has bound a pod."""
    found: str = wait_until(lambda: api.get(path)["spec"].get("nodeName"), what="a node")
    return found


def test_plane_survives_the_end_of_its_api_server(tmp_path: Path):
    policy = {"rules": [{"level": "Metadata", "resources": [{"resources": ["configmaps"]}]}]}
    with ControlPlane(tmp_path, Wishes(audit_policy=policy)) as plane, plane.api() as api:
        path = f"/api/v1/namespaces/{make_namespace(api)}/configmaps"
        for name, end in (("a", plane.api_server.stop), ("b", plane.api_server.kill)):
            api.post(path, {"metadata": {"name": name}})
            end()
            assert not plane.api_server.is_running
            with pytest.raises(OSError, match="refused"):
                plane.api().get("/version")
            plane.api_server.start()
            assert api.get(f"{path}/{name}")["metadata"]["name"] == name
        events = [json.loads(line) for line in plane.audit_log.read_text().splitlines()]
        audited = {(event["verb"], event["user"]["username"]) for event in events}
        assert ("create", "admin") in audited
        # The other programs have found it again.
        pods = path.replace("configmaps", "pods")
        add_nodes(api, [make_node("made")])
        api.post(pods, make_pod("p"))
        assert wait_until_bound(api, f"{pods}/p") == "made"


def test_failed_server_says_why_and_leaves_nothing(tmp_path: Path):
    plane = ControlPlane(tmp_path, Wishes(api_server=["--no-such-flag"]))
    with pytest.raises(RuntimeError, match="unknown flag: --no-such-flag"), plane:
        pytest.fail("it began to serve")
    assert find_processes(str(tmp_path)) == []


START = """
import sys
from pathlib import Path
from tests.servers.controlplane import ControlPlane
plane = ControlPlane(Path(sys.argv[1]))
plane.start()
print(*(each.pid for each in (plane.etcd, plane.api_server, plane.controllers, plane.scheduler)))
sys.stdout.flush()
sys.stdin.read()
"""


def test_plane_ends_with_the_tests_however_they_end(tmp_path: Path):
    command = [sys.executable, "-c", START, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sidecar'}"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as tests:
        assert tests.stdout is not None
        servers = [int(word) for word in tests.stdout.readline().split()]
        assert len([pid for pid in servers if is_alive(pid)]) == 4
        tests.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, servers)), what="their end")
    wait_until(lambda: find_processes(str(tmp_path)) == [], what="the end of all processes")


# --- the parts that need no control plane -------------------------------------------------


def test_guarded_process_outlives_its_starting_thread(tmp_path: Path):
    with Guard() as guard:
        started: list[subprocess.Popen[bytes]] = []
        thread = threading.Thread(
            target=lambda: started.append(guard.spawn(["sleep", "600"], tmp_path / "log"))
        )
        thread.start()
        thread.join(240.0)
        assert started[0].poll() is None
    assert started[0].wait(240.0) == -signal.SIGKILL


def test_chosen_ports_are_free_and_not_ephemeral():
    ports = choose_ports(8)
    assert len(set(ports)) == 8
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
        with socket.socket() as client:
            client.bind(("127.0.0.1", 0))
            assert client.getsockname()[1] > max(ports)

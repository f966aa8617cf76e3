"""Real nodes run pods, and leave nothing on the machine, however the tests end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.servers.binaries import Unavailable, do_without, find_all
from tests.servers.controlplane import PROGRAMS, ControlPlane, Wishes
from tests.servers.images import PAUSE, Images
from tests.servers.packages import ensure_packages
from tests.servers.realnodes import (
    GROUP,
    HOST,
    OWN_GROUP,
    find_groups,
    make_nodes,
    open_room,
    remove_stale_groups,
)
from tests.servers.rooms import Room
from tests.sidecar.drivers import ROOT, find_processes, wait_until

pytestmark = [pytest.mark.nodes, pytest.mark.slow]

SECONDS = 240.0
OF_OTHERS = ("mounts", "files")
"""Other tests may have some for a while, such as a small disk."""


@pytest.fixture
def machine() -> Iterator[None]:
    """A machine that may have nodes, and must be unchanged afterwards."""
    try:
        ensure_packages()
    except Unavailable as error:
        do_without(error)
    before = look_around()
    yield
    # The kernel removes a network a moment after its last process.
    end = time.monotonic() + SECONDS
    while (changed := compare(before, look_around())) and time.monotonic() < end:
        time.sleep(0.1)
    assert not changed


def compare(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the differences; not the mounts and files that are gone, because other tests end theirs."""
    changed = {}
    for name, seen in before.items():
        there, had = Counter(after[name]), Counter(seen)
        changed[name] = [*(there - had)]
        if name not in OF_OTHERS:
            changed[name] += had - there
    return {name: words for name, words in changed.items() if words}


def look_around() -> dict[str, list[str]]:
    """All that nodes could change outside of a room."""
    asked = {
        "addresses": ("ip", "-brief", "address"),
        "links": ("ip", "-brief", "link"),
        "routes": ("ip", "route", "show", "table", "all"),
        "rules": ("iptables-save",),
        "tables": ("nft", "list", "tables"),
        "networks": ("ip", "netns", "list"),
    }
    told = {name: sorted(_words(*command)) for name, command in asked.items()}
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    names = [
        path.name for each in ("/run", "/var/lib", "/var/log") for path in Path(each).iterdir()
    ]
    return {
        **told,
        "mounts": sorted(mounts),
        "files": sorted(names),
        "groups": [str(group) for group in find_groups(OWN_GROUP)],
        "switches": [Path("/proc/sys/net/ipv4/ip_forward").read_text()],
    }


def _words(*command: str) -> list[str]:
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    # Rules show the time of their request.
    return [line for line in ran.stdout.splitlines() if not line.startswith("#")]


def test_room_is_isolated(machine, tmp_path: Path):
    with Room() as room:
        room.run("ip", "link", "add", "inside", "type", "bridge", seconds=SECONDS)
        room.run("ip", "address", "add", "10.98.0.1/32", "dev", "inside", seconds=SECONDS)
        room.run("iptables", "-A", "INPUT", "-s", "10.98.0.9", "-j", "DROP", seconds=SECONDS)
        room.run("mkdir", "/var/lib/inside", seconds=SECONDS)
        assert not Path("/var/lib/inside").exists()
        assert "inside" not in "".join(_words("ip", "-brief", "link"))
        with room.entered():
            assert "10.98.0.1/32" in "".join(_words("ip", "-brief", "address"))
        assert room.run("echo", "said", seconds=SECONDS) == "said\n"


def test_room_ends_its_processes_and_buries_orphans(machine, tmp_path: Path):
    with Room() as room:
        orphan = room.spawn(["sh", "-c", "(sleep 0.1 &) ; exit 3"], tmp_path / "orphan.log")
        assert orphan.wait(SECONDS) == 3
        stays = room.spawn(["sleep", "600"], tmp_path / "stays.log")
        ended = room.spawn(["sleep", "600"], tmp_path / "ended.log")
        ended.terminate()
        assert ended.wait(SECONDS) == -signal.SIGTERM
        # The first process has buried the orphan, and still lives.
        wait_until(lambda: len(_words("pgrep", "--ns", str(room.first), ".")) == 2, what="its end")
        assert stays.poll() is None
    assert stays.returncode == -signal.SIGKILL


@contextmanager
def run_a_pod(folder: Path) -> Iterator[None]:
    programs = find_all(*PROGRAMS)
    with ExitStack() as stack:
        cleared = stack.enter_context(ExitStack())
        room = stack.enter_context(open_room(1))
        images = stack.enter_context(Images.in_cache().pause_built(room))
        stack.enter_context(room.entered())
        wishes = Wishes(host=HOST)
        plane = stack.enter_context(ControlPlane(folder / "plane", wishes, programs=programs))
        nodes = make_nodes(1, room=room, plane=plane, folder=folder)
        cleared.callback(nodes.clear)
        nodes.start(images)
        waits = {"name": "waits", "image": PAUSE, "imagePullPolicy": "Never"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "pod"},
            "spec": {"containers": [waits]},
        }
        plane.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
        plane.kubectl("wait", "--for=condition=Ready", "pod/pod", f"--timeout={SECONDS:g}s")
        yield


HOLD = """
import sys
from pathlib import Path
from tests.servers.test_realnodes import run_a_pod
with run_a_pod(Path(sys.argv[1])):
    print("runs", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short name: a kubelet has sockets far below it, with limited paths."""
    return tmp_path_factory.mktemp("node")


def test_node_leaves_nothing_behind(machine, folder: Path):
    with run_a_pod(folder):
        assert find_groups(GROUP)
    assert find_processes(str(folder)) == []
    assert not (folder / "node1").exists()


def test_killed_tests_leave_only_empty_control_groups(machine, folder: Path):
    """Their names contain the dead process, and the next run removes them."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sidecar'}:{ROOT / 'operator'}"}
    command = [sys.executable, "-c", HOLD, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == "runs\n"
        tests.kill()
    wait_until(lambda: find_processes(str(folder)) == [], what="the end of all of it")
    theirs = f"{GROUP}{tests.pid}x"
    assert find_groups(theirs)
    remove_stale_groups()
    assert find_groups(theirs) == []

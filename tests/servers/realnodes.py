"""
Real nodes for a control plane of the tests: kubelets with a containerd each, pods with a network.

All of it lives in a room (:mod:`tests.servers.rooms`), and so does the API server, because pods have to
reach it: the test itself enters the room's network. A pod is created and runs, is reached by its address
and by Services, is looked into by ``kubectl exec`` and ``kubectl logs``. There are no images but those that
were imported, no volumes but those of the node itself, and no names of Services.

Control groups are the one thing that a room does not keep to itself; they are removed with it.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tests.servers.api import Refused
from tests.servers.binaries import NODE, Unavailable, find_all
from tests.servers.controlplane import ControlPlane
from tests.servers.processes import Server
from tests.servers.rooms import NoRoom, Room
from tests.servers.stocks import SERVES_PODS, Containerd, Stock
from tests.sidecar.drivers import find_processes, is_alive, wait_until

PLUGINS = Path("/usr/lib/cni")
GROUPS = Path("/sys/fs/cgroup")
GROUP = "dljob-test-"
WORD = f"{os.getpid()}x{secrets.token_hex(4)}"
"""
The name of this run among those of this machine. Not its process id alone: in a PID namespace every run has the same small ones.
"""
OWN_GROUP = f"{GROUP}{WORD}-"
_HELD: list[TextIO] = []
"""The lock that says that this run lives."""
"""The prefix of control groups, before the name of the run."""
STEP_SECONDS = 300.0
PODS = "10.244.0.0/16"
LOST_SECONDS = 20
"""The node of a kubelet counts as lost this long after its last report."""


def open_room(nodes: int) -> Room:
    """Make a room with the addresses of ``nodes`` nodes, or raise :class:`Unavailable`."""
    try:
        room = Room()
    except NoRoom as error:
        raise Unavailable(f"no namespaces of network, mounts and processes: {error}") from error
    for number in range(1, nodes + 1):
        words = ("ip", "address", "add", f"{address_of(number)}/32", "dev", "lo")
        room.run(*words, seconds=STEP_SECONDS)
    return room


def address_of(node: int) -> str:
    return f"10.99.0.{node}"


# A kubelet refuses addresses of loopback; these are on it nevertheless, in the room.
HOST = address_of(1)
"""Where the API server is."""


class RealNode:
    """A node: its containerd and its kubelet, each to be stopped, killed, frozen and started again."""

    def __init__(
        self, number: int, *, room: Room, plane: ControlPlane, kubelet: Path, folder: Path
    ) -> None:
        self.name = f"node{number}"
        self.address = address_of(number)
        self._room = room
        self.folder = self._folder = folder
        self.groups = f"{OWN_GROUP}{self.name}"
        """How its control groups are named."""
        folder.mkdir(parents=True)
        plane.authority.issue_server(self.name, self.address).write(folder, "kubelet")
        (folder / "cni").mkdir()
        (folder / "cdi").mkdir()
        self._write("cni/10-bridge.conflist", json.dumps(_network(number, folder)))
        kubeconfig = plane.kubeconfig_for_user(f"system:node:{self.name}", ["system:nodes"])
        self.images = folder / "containerd"
        self.containerd = Containerd(
            folder, self.images, room, settings=_pods(folder), ready=SERVES_PODS
        )
        self._write("kubelet.json", json.dumps(self._kubelet(plane)))
        self.kubelet = Server(
            [
                kubelet,
                f"--config={folder / 'kubelet.json'}",
                f"--kubeconfig={kubeconfig}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                f"--root-dir={folder / 'kubelet'}",
            ],
            guard=room,
            log=folder / "kubelet.log",
            is_ready=lambda: is_ready(plane, self.name),
        )

    def start(self) -> None:
        """Start it again, as a machine that was switched on again; return when it is ready."""
        self.containerd.start()
        self.kubelet.start()

    def power_off(self) -> None:
        """End everything on it at once, its containers first of all, and report it to no other program."""
        # The programs that start containers go first, so that no container comes back.
        self.kubelet.kill()
        self.containerd.kill()
        wait_until(self._is_off, what=f"the end of all processes on {self.name}")
        shutil.rmtree(self._folder / "run", ignore_errors=True)

    def _is_off(self) -> bool:
        left = [*find_processes(str(self.containerd.socket)), *find_members(self.groups)]
        # All stop before any ends: a machine without power has no SideCar that tells how its training ended.
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
        return not left

    def clear(self) -> None:
        """Remove its control groups and its files, when its room is closed."""
        for group in find_groups(self.groups):
            _remove_group(group)
        shutil.rmtree(self._folder, ignore_errors=True)

    def make_groups(self) -> None:
        """Make the control groups below which the kubelet makes those of pods."""
        for place in iter_hierarchies():
            group = place / self.groups
            group.mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):
                # In the first version they begin empty, and nothing can be run in such a group.
                if (place / file).exists():
                    (group / file).write_text((place / file).read_text())

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text, encoding="utf-8")

    def _kubelet(self, plane: ControlPlane) -> Mapping[str, object]:
        folder = self._folder
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(plane.authority_file)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.groups}",
            "containerRuntimeEndpoint": f"unix://{self.containerd.socket}",
            "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%"},
            # Some machines still have the first version of control groups.
            "failCgroupV1": False,
            "failSwapOn": False,
            "healthzPort": 0,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeLeaseDurationSeconds": LOST_SECONDS,
            "podLogsDir": str(folder / "logs"),
            "readOnlyPort": 0,
            # How often it looks whether a Secret that a pod has mounted has changed.
            "syncFrequency": "10s",
            "tlsCertFile": str(folder / "kubelet.crt"),
            "tlsPrivateKeyFile": str(folder / "kubelet.key"),
            "volumePluginDir": str(folder / "volume-plugins"),
        }


@dataclass(frozen=True)
class RealNodes:
    """The running nodes, and the proxy that leads their pods to Services."""

    nodes: tuple[RealNode, ...]
    proxy: Server

    def __getitem__(self, name: str) -> RealNode:
        return next(node for node in self.nodes if node.name == name)

    def start(self, images: Stock) -> None:
        """Start all of them with these images, and return when they are ready."""
        for node in self.nodes:
            node.make_groups()
            images.copy_to(node.images)
            node.containerd.launch()
        for node in self.nodes:
            node.containerd.wait_until_ready()
            node.kubelet.launch()
        self.proxy.launch()
        for node in self.nodes:
            node.kubelet.wait_until_ready()

    def clear(self) -> None:
        for node in self.nodes:
            node.clear()


def make_nodes(count: int, *, room: Room, plane: ControlPlane, folder: Path) -> RealNodes:
    """Make nodes of a control plane that runs at :data:`HOST` in a room; they are not yet started."""
    programs = find_all(NODE)
    hold_groups()
    remove_stale_groups()
    nodes = tuple(
        RealNode(
            number,
            room=room,
            plane=plane,
            kubelet=programs["kubelet"],
            folder=folder / f"node{number}",
        )
        for number in range(1, count + 1)
    )
    config = folder / "proxy.json"
    config.write_text(json.dumps(_proxy(plane)))
    proxy = Server(
        [programs["kube-proxy"], f"--config={config}"],
        guard=room,
        log=folder / "proxy.log",
        is_ready=lambda: True,
    )
    return RealNodes(nodes, proxy)


def is_ready(plane: ControlPlane, name: str) -> bool:
    with plane.api() as api:
        try:
            node = api.get(f"/api/v1/nodes/{name}")
        except Refused:
            return False
    conditions = node["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


# --- control groups ---------------------------------------------------------------------


def iter_hierarchies() -> list[Path]:
    """Where control groups are made: once in their second version, for each controller in the first."""
    if (GROUPS / "cgroup.controllers").exists():
        offered = (GROUPS / "cgroup.controllers").read_text().split()
        given = " ".join(f"+{name}" for name in offered)
        (GROUPS / "cgroup.subtree_control").write_text(given)
        return [GROUPS]
    return [place for place in GROUPS.iterdir() if place.is_dir() and place.name != "unified"]


def find_groups(name: str) -> list[Path]:
    return [*GROUPS.glob(f"{name}*"), *GROUPS.glob(f"*/{name}*")]


def find_members(name: str) -> list[int]:
    """Find the living processes in control groups whose names begin so, and in those below."""
    found: set[int] = set()
    for group in find_groups(name):
        # Not by rglob, which fails where a group vanishes meanwhile.
        for folder, _, _ in os.walk(group):
            with contextlib.suppress(OSError):
                found.update(map(int, Path(folder, "cgroup.procs").read_text().split()))
    return [pid for pid in found if is_alive(pid)]


def remove_stale_groups() -> None:
    """Remove the control groups of runs that were killed: those in which no process lives, of runs that hold no lock."""
    for group in find_groups(GROUP):
        word = group.name.removeprefix(GROUP).partition("-")[0]
        if f"{GROUP}{word}-" != OWN_GROUP and not _is_held(word):
            _remove_group(group)


def _lock_of(word: str) -> Path:
    return Path("/tmp") / f"{GROUP}{word}.lock"  # noqa: S108 - the control groups are the whole machine's, too


def _is_held(word: str) -> bool:
    """Whether the run with this word lives: the kernel ends its lock with it."""
    try:
        with _lock_of(word).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    _lock_of(word).unlink(missing_ok=True)
    return False


def hold_groups() -> None:
    """Have a lock that says that this run lives, until it ends."""
    if not _HELD:
        lock = _lock_of(WORD).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        _HELD.append(lock)


def _remove_group(group: Path) -> None:
    # Their files cannot be removed, and need not be.
    for folder, _, _ in os.walk(group, topdown=False):
        wait_until(lambda: _is_removed(Path(folder)), what=f"the end of {folder}")  # noqa: B023


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        # Another run may remove it at the same time.
        return True
    except OSError:
        # Its last process is gone, and the kernel has not yet taken note of it.
        return False
    return True


# --- configuration files -------------------------------------------------------------


def _pods(folder: Path) -> str:
    return f"""
[plugins."io.containerd.grpc.v1.cri"]
  # Root of a container may lack the right to give others a better score than its own.
  restrict_oom_score_adj = true
  sandbox_image = "localhost/dljob-test-pause:1"
  # From version 2 on: what may be injected into containers, and by whom.
  enable_cdi = true
  cdi_spec_dirs = ["{folder}/cdi"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "runc"
      SystemdCgroup = false
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{folder}/nri.sock"
"""


def _network(number: int, folder: Path) -> Mapping[str, object]:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": f"10.244.{number}.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(folder / "addresses"),
    }
    bridge = {
        "type": "bridge",
        "bridge": f"pods{number}",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": addresses,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": f"node{number}", "plugins": [bridge, ports]}


def _proxy(plane: ControlPlane) -> Mapping[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": PODS,
        # All nodes share the network of the room, so one of it is enough.
        "hostnameOverride": "node1",
        "clientConnection": {"kubeconfig": str(plane.admin)},
        # Limits of the kernel are the machine's, and not to be changed.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }

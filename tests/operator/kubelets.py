"""
Played kubelets: what they report is the test's to play, what runs in the containers is real.

A pod that is bound to one of their nodes gets an address of its own on the loopback network, its
Secrets as files, and the very SideCar that its command names, with the training below it. Of what a
kubelet does here is what the operator relies on: it starts a container again that has failed, asks
it to end when its pod is being deleted and kills it when it does not, and reports each of these, and
only what has happened.
"""

import base64
import http.client
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from dljob.core.documents.rules.podrules import TRAINER
from dljob.operator.nodes.placeholders import AT_ONCE_S, is_placeholder
from dljob.operator.podspecs.bringing import SIDECAR_FOLDER
from dljob.operator.podspecs.building import TLS_FOLDER
from tests.operator.ailments import Ailments, evicted, rejected
from tests.servers.api import Api, Json, Refused
from tests.servers.controlplane import ControlPlane
from tests.servers.processes import Guard
from tests.sidecar.drivers import find_children, read_proc

LOOK_S = 0.1
END_S = 240.0
"""Far more than a killed process or a stopped thread needs to end."""
AWAY = (OSError, http.client.HTTPException, Refused)
"""The errors of a request while the API server is down or cuts its answer."""
HOSTILE = "HOSTILE"
"""The variable for the kind of a hostile SideCar; see tests/hostile."""
RESTART_S = (0.2, 0.5, 1.0)
LONGEST_MESSAGE = 4096
ROOT = Path(__file__).parents[2]
OUR_NETWORK = f"127.{1 + os.getpid() % 254}"
OUR_ADDRESSES = os.getpid() // 254 % 16 * 16
"""Several test runs share the loopback network of a machine, and each pod has the same ports."""


@dataclass
class _Container:
    """The trainer of a pod, from one start to the next."""

    pod: Json
    address: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    last_end: Json | None = None
    start_at: float = 0.0
    asked_at: float | None = None
    """When it was asked to end."""
    is_out_of_memory: bool = False
    """Whether its process was killed for that."""
    reported: object = None

    @property
    def message_file(self) -> Path:
        """Where this start of the container writes its last message."""
        return self.folder / f"message-{self.restarts}"

    def last_message(self) -> str:
        file = self.message_file
        return file.read_text(errors="replace")[:LONGEST_MESSAGE] if file.exists() else ""

    @property
    def path(self) -> str:
        metadata = self.pod["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


@dataclass
class Kubelets:
    """The kubelets of some nodes, for the pods of one namespace, in a thread."""

    plane: ControlPlane
    namespace: str
    nodes: set[str]
    folder: Path
    ails: Ailments = field(default_factory=Ailments)
    """The faults of these nodes."""
    silent: set[str] = field(default_factory=set)
    """Nodes with silent kubelets; their processes go on."""

    driver: Path | None = None
    """The folder of a played NVML for containers, if any."""

    machines: Path | None = None
    """Where it stands what the GPUs say of each node, by a folder with its name; none if each container
    sees GPUs of its own."""

    def __post_init__(self) -> None:
        self._containers: dict[str, _Container] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._guard = Guard()
        self._addresses = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(END_S)
        self._guard.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not self._thread.is_alive(), "the thread of the kubelets does not end"
        if self.error is not None:
            raise self.error

    def pids(self) -> dict[str, int]:
        """The pids of running SideCars by pod."""
        return {
            each.pod["metadata"]["name"]: each.process.pid
            for each in list(self._containers.values())
            if each.process is not None and each.process.poll() is None
        }

    def trainings(self, pod: str) -> dict[int, str]:
        """The training processes of a pod's SideCar, with their GPUs."""
        return self._find_told(pod, "CUDA_VISIBLE_DEVICES")

    def told(self, pod: str, variable: str) -> set[str]:
        """Return the values that the processes of a pod have for a variable of their environment."""
        return set(self._find_told(pod, variable).values())

    def _find_told(self, pod: str, variable: str) -> dict[int, str]:
        found = {}
        for pid in _descendants(self.pids()[pod]):
            for line in read_proc(pid, "environ").split(b"\0"):
                name, _, value = line.decode().partition("=")
                if name == variable and value:
                    found[pid] = value
        return found

    def gpus_of(self, pod: str) -> Path:
        return self.folder / pod / "gpus"

    def log(self, pod: str) -> str:
        file = self.folder / pod / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    # --- the loop

    def _run(self) -> None:
        try:
            with self.plane.api() as api:
                while not self._ended.wait(LOOK_S):
                    self._look(api)
        except BaseException as error:  # noqa: BLE001 - is raised where the test sees it
            self.error = error

    def _look(self, api: Api) -> None:
        try:
            pods = api.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        except AWAY:
            return  # The API server is down; a kubelet goes on without it.
        there = set()
        for pod in pods:
            node = pod["spec"].get("nodeName")
            if node in self.nodes - self.silent and is_placeholder(pod):
                self._hold(api, pod)
            if node not in self.nodes or TRAINER not in pod["metadata"].get("labels", {}).values():
                continue
            there.add(pod["metadata"]["uid"])
            if node not in self.silent:
                self._tend(api, pod)
        for uid in self._containers.keys() - there:
            if self._containers[uid].pod["spec"]["nodeName"] not in self.silent:
                self._kill(self._containers.pop(uid))

    def _hold(self, api: Api, pod: Json) -> None:
        """Report a pod that does nothing as running."""
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            if "deletionTimestamp" in metadata:
                # Its hook sleeps for the whole grace period.
                if metadata["deletionGracePeriodSeconds"] <= AT_ONCE_S:
                    api.delete(path, gracePeriodSeconds=0)
            elif pod["status"].get("phase") == "Pending":
                api.merge(f"{path}/status", {"status": {"phase": "Running"}})
        except AWAY:
            return  # Tried again at the next look.

    def _tend(self, api: Api, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self._containers:
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                return
            folder = self.folder / pod["metadata"]["name"]
            folder.mkdir(parents=True, exist_ok=True)
            self._addresses += 1
            high, low = divmod(self._addresses, 250)
            address = f"{OUR_NETWORK}.{OUR_ADDRESSES + high}.{low + 1}"
            self._containers[uid] = _Container(pod, address, folder)
        container = self._containers[uid]
        container.pod = pod
        try:
            status = self._advance(api, container)
            if status is not None and status != container.reported:
                api.merge(f"{container.path}/status", {"status": status})
                container.reported = status
            if status is not None and _is_over(status) and container.asked_at is not None:
                api.delete(container.path, gracePeriodSeconds=0)
        except AWAY:
            return  # Tried again at the next look.

    def _advance(self, api: Api, container: _Container) -> Json | None:
        """Advance a container by one step; return its report."""
        if found := self._take_ill(container):
            return found
        is_deleted = "deletionTimestamp" in container.pod["metadata"]
        process = container.process
        if process is not None and process.poll() is None:
            if is_deleted:
                self._ask_to_end(container)
            return _status(container, {"running": {"startedAt": _now_as(container.start_at)}})
        if process is not None:
            ended = {**_ended(process.returncode), "message": container.last_message()}
            if container.is_out_of_memory:
                ended["reason"] = "OOMKilled"
            if is_deleted or ended["exitCode"] == 0:
                container.asked_at = container.asked_at or (time.time() if is_deleted else None)
                return _status(container, {"terminated": ended})
            return self._start_again(api, container, ended)
        if is_deleted:
            container.asked_at = container.asked_at or time.time()
            return _status(container, {"terminated": _ended(137)})
        return self._start(api, container)

    def _take_ill(self, container: _Container) -> Json | None:
        """Apply the test's fault; return the report of an end."""
        name, node = container.pod["metadata"]["name"], container.pod["spec"]["nodeName"]
        if name in self.ails.out_of_memory:
            self.ails.out_of_memory.discard(name)
            container.is_out_of_memory = True
            self._kill(container)
        if name in self.ails.evicted:
            self._kill(container)
            conditions = container.pod["status"].get("conditions", [])
            status = _status(container, {"terminated": _ended(-signal.SIGKILL)})
            container.asked_at = container.asked_at or _time_of_deletion(container.pod)
            return evicted(status, conditions, self.ails.evicted[name])
        why = self.ails.rejects.get(node)
        if container.process is None and why is not None:
            container.asked_at = container.asked_at or _time_of_deletion(container.pod)
            return rejected(*why)
        return None

    def _start_again(self, api: Api, container: _Container, ended: Json) -> Json | None:
        if container.last_end is None or container.last_end["of"] != container.restarts:
            container.last_end = {"of": container.restarts, "at": time.time(), "how": ended}
        pause = RESTART_S[min(container.restarts, len(RESTART_S) - 1)]
        if time.time() < container.last_end["at"] + pause:
            return _status(container, {"waiting": {"reason": "CrashLoopBackOff"}})
        container.restarts += 1
        container.process = None
        container.is_out_of_memory = False
        return self._start(api, container)

    def _start(self, api: Api, container: _Container) -> Json | None:
        spec = _trainer(container.pod)
        waits, inits = self.ails.why_waiting(container.pod["spec"], spec["image"])
        if waits:
            return _status(container, {"waiting": waits}) | {"initContainerStatuses": inits}
        if not self._write_secret(api, container):
            # A kubelet reports an unmountable volume by an Event only.
            return _status(container, {"waiting": {"reason": "ContainerCreating"}})
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DLJOB")},
            **{each["name"]: each.get("value", "") for each in spec.get("env", ())},
            "PYTHONPATH": f"{ROOT / 'sidecar'}:{ROOT}",
            "CHAOS_NODE": container.pod["spec"]["nodeName"],
            "DLJOB_SIDECAR_LEFT": str(container.message_file),
            **self._driver_of(container),
        }
        container.process = self._guard.spawn(
            _command(spec["command"], container, environment.get(HOSTILE, "")),
            container.folder / "log",
            environment,
        )
        container.start_at = time.time()
        return _status(container, {"running": {"startedAt": _now_as(container.start_at)}})

    def _driver_of(self, container: _Container) -> dict[str, str]:
        """Give a container the driver of its own GPUs."""
        if self.driver is None:
            return {}
        if self.machines is not None:
            folder = self.machines / container.pod["spec"]["nodeName"]
        else:
            folder = self.gpus_of(container.pod["metadata"]["name"])
            folder.mkdir(exist_ok=True)
        paths = f"{self.driver}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        return {"STANDIN_NVML": str(folder), "LD_LIBRARY_PATH": paths}

    def _write_secret(self, api: Api, container: _Container) -> bool:
        namespace = container.pod["metadata"]["namespace"]
        folder = container.folder / "tls"
        folder.mkdir(exist_ok=True)
        for volume in container.pod["spec"]["volumes"]:
            name = volume.get("secret", {}).get("secretName")
            if name:
                try:
                    secret = api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")
                except Refused:
                    return False
                for file, content in secret["data"].items():
                    (folder / file).write_bytes(base64.b64decode(content))
        return True

    def _ask_to_end(self, container: _Container) -> None:
        assert container.process is not None
        if container.asked_at is None:
            container.asked_at = time.time()
            container.process.send_signal(signal.SIGTERM)
        grace = container.pod["metadata"].get("deletionGracePeriodSeconds") or 0
        if time.time() > container.asked_at + grace:
            self._kill(container)

    def _kill(self, container: _Container) -> None:
        if container.process is not None and container.process.poll() is None:
            container.process.kill()
            container.process.wait(END_S)


def _trainer(pod: Json) -> Json:
    found: Json = next(each for each in pod["spec"]["containers"] if each["name"] == TRAINER)
    return found


def _command(words: Iterable[str], container: _Container, hostile: str = "") -> list[str | Path]:
    """The command of a pod on this machine, perhaps with a liar in front."""
    ours = {
        f"{SIDECAR_FOLDER}/sidecar-start": None,
        f"--tls={TLS_FOLDER}": f"--tls={container.folder / 'tls'}",
    }
    mapped = [ours.get(word, _at_address(word, container.address)) for word in words]
    arguments = [word.replace("$$(", "$(") for word in mapped if word is not None]
    if hostile:
        return [sys.executable, "-m", "tests.hostile.liar", hostile, "--", *arguments]
    return [sys.executable, "-m", "dljob_sidecar", *arguments]


def _at_address(word: str, address: str) -> str:
    """Make a SideCar listen at its pod's address only."""
    for option in ("--listen=", "--health="):
        if word.startswith(f"{option}:"):
            return f"{option}{address}{word.removeprefix(option)}"
    return word


def _status(container: _Container, state: Json) -> Json:
    is_running = "running" in state
    is_over = "terminated" in state
    code = state.get("terminated", {}).get("exitCode")
    last = container.last_end["how"] if container.last_end is not None else None
    was_up = container.process is not None or container.restarts > 0
    phase = "Running" if was_up else "Pending"
    return {
        "phase": ("Succeeded" if code == 0 else "Failed") if is_over else phase,
        "podIP": container.address,
        "podIPs": [{"ip": container.address}],
        "startTime": container.pod["metadata"]["creationTimestamp"],
        "initContainerStatuses": None,
        "containerStatuses": [
            {
                "name": TRAINER,
                "image": _trainer(container.pod)["image"],
                "imageID": "",
                "ready": is_running,
                "started": is_running,
                "restartCount": container.restarts,
                "state": {"running": None, "waiting": None, "terminated": None} | state,
                "lastState": {"terminated": last} if last is not None else {},
            }
        ],
    }


def _time_of_deletion(pod: Json) -> float | None:
    return time.time() if "deletionTimestamp" in pod["metadata"] else None


def _is_over(status: Json) -> bool:
    return status["phase"] in ("Succeeded", "Failed")


def _ended(code: int) -> Json:
    code = code if code >= 0 else 128 - code
    return {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}


def _now_as(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _descendants(pid: int) -> Iterator[int]:
    for child in find_children(pid):
        yield child
        yield from _descendants(child)

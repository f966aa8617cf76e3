"""
Observations of jobs on a real cluster: from their documents, and from inside the containers.

The place of a job is read from its pods and processes, never from decisions. Frequent questions go to
the API server and to /proc, because a kubectl takes a hundred times as long.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.cluster.clusters import Cluster
from tests.servers.api import Api, Json
from tests.servers.kubectl import Kubectl
from tests.sidecar.drivers import find_processes, read_proc

T = TypeVar("T")

LIMIT_SECONDS = 600.0
LOOK_SECONDS = 0.3

API = {
    "dljobs": "/apis/dljob.io/v1alpha1",
    "pods": "/api/v1",
    "events": "/api/v1",
    "leases": "/apis/coordination.k8s.io/v1",
}
"""The paths of kinds with a namespace."""
SCRIPT = "train.py"
SIDECAR = "dljob-sidecar.pyz"


@dataclass(frozen=True)
class Training:
    """A training process in its container."""

    pid: int
    """On the machine."""
    gpus: tuple[str, ...]
    """As in its environment."""
    rank: str
    world: str


@dataclass(frozen=True)
class Pod:
    """A training pod, as Kubernetes shows it."""

    name: str
    uid: str
    node: str
    phase: str
    container: str
    """The id of the running container; another one after each restart."""
    restarts: int

    @property
    def identity(self) -> tuple[str, str, int]:
        """An identity that stays the same until the pod or its container restarts."""
        return self.uid, self.container, self.restarts


class View:
    """The observer of a namespace."""

    def __init__(self, cluster: Cluster, api: Api, namespace: str) -> None:
        self.cluster = cluster
        self.api = api
        self.namespace = namespace
        self.kubectl: Kubectl = cluster.kubectl.in_namespace(namespace)

    def find(self, kind: str, *, namespace: str = "", **selectors: str) -> list[Json]:
        """All objects of a kind, by labelSelector and fieldSelector."""
        place = f"{API[kind]}/namespaces/{namespace or self.namespace}/{kind}"
        found: list[Json] = self.api.get(place, **selectors)["items"]
        return found

    # --- jobs

    def job(self, name: str) -> Json:
        return self.api.get(f"{API['dljobs']}/namespaces/{self.namespace}/dljobs/{name}")

    def columns(self, name: str) -> dict[str, str]:
        header, *rows = self.kubectl("get", "dljobs").splitlines()
        titles = header.split()
        starts = [header.index(title) for title in titles]
        [row] = [row for row in rows if row.split()[0] == name]
        ends = [*starts[1:], len(row)]
        cells = zip(titles, starts, ends, strict=True)
        return {title: row[start:end].strip() for title, start, end in cells}

    def iteration(self, name: str) -> int:
        progress = self.job(name).get("status", {}).get("progress", {})
        return int(progress.get("iteration", 0))

    def events(self, name: str) -> list[tuple[str, str]]:
        """The reasons and messages of a job's Events, the oldest first."""
        found = self.find("events", fieldSelector=f"involvedObject.name={name}")
        found.sort(key=lambda event: event["metadata"]["creationTimestamp"])
        return [(event["reason"], event["message"]) for event in found]

    # --- pods and their processes

    def pods(self, name: str) -> list[Pod]:
        selected = f"dljob.io/job={name},dljob.io/role=trainer"
        found = self.find("pods", labelSelector=selected)
        nodes = {node.address: node.name for node in self.cluster.nodes.nodes}
        return [_read_pod(each, nodes) for each in found]

    def trainings(self, pod: str) -> list[Training]:
        """The training processes in a pod, with their environment."""
        found = []
        for pid in sorted(find_processes(SCRIPT)):
            environment = _pairs(read_proc(pid, "environ"))
            # The command of a SideCar contains the training's, too.
            is_sidecar = SIDECAR.encode() in read_proc(pid, "cmdline")
            if environment.get("HOSTNAME") == pod and not is_sidecar:
                found.append(_read_training(pid, environment))
        return found

    def gpus(self, name: str) -> dict[str, tuple[str, ...]]:
        """The GPUs in the environments of a job's processes, by node."""
        found: dict[str, set[str]] = {}
        for pod in self.pods(name):
            for training in self.trainings(pod.name):
                found.setdefault(pod.node, set()).update(training.gpus)
        return {node: tuple(sorted(gpus)) for node, gpus in found.items()}

    def save(self, name: str, folder: Path) -> int:
        """Have a training on one node save; return its iteration."""
        [pod] = self.pods(name)
        for training in self.trainings(pod.name):
            os.kill(training.pid, signal.SIGUSR1)
        file = folder / name / "iteration"
        self.wait(file.exists, what=f"a checkpoint of {name}")
        return self.kept_iteration(name, folder)

    def kept_iteration(self, name: str, folder: Path) -> int:
        return int((folder / name / "iteration").read_text())

    def first_step(self, pod: str) -> int:
        """The first step of the training in a container, by its log."""

        def ask() -> int | None:
            said = self.kubectl("logs", pod, "-c", "trainer", "--limit-bytes=4096")
            found = re.search(r"^step (\d+)$", said, re.MULTILINE)
            return int(found[1]) if found else None

        return self.wait(ask, what=f"the first step in {pod}")

    # --- waiting

    def wait(self, ask: Callable[[], T | None], *, what: str, seconds: float = LIMIT_SECONDS) -> T:
        end = time.monotonic() + seconds
        while True:
            answer = ask()
            if answer:
                return answer
            assert time.monotonic() < end, f"{what} has not come\n{self.tell()}"
            time.sleep(LOOK_SECONDS)

    def wait_phase(self, name: str, phase: str) -> None:
        self.wait(
            lambda: self.job(name).get("status", {}).get("phase") == phase, what=f"{name}: {phase}"
        )
        assert self.columns(name)["PHASE"] == phase

    def wait_gpus(self, name: str, **gpus: int) -> dict[str, tuple[str, ...]]:
        """Wait until a job's processes use these numbers of GPUs on these nodes, and progress."""

        def ask() -> dict[str, tuple[str, ...]] | None:
            found = self.gpus(name)
            return found if {node: len(ids) for node, ids in found.items()} == gpus else None

        found = self.wait(ask, what=f"{name} on {gpus}")
        self.wait_progress(name)
        return found

    def wait_progress(self, name: str) -> int:
        """Wait for progress of a job; return its iteration."""
        before = self.iteration(name)
        return self.wait(
            lambda: now if (now := self.iteration(name)) > before else None,
            what=f"progress of {name} beyond {before}",
        )

    def wait_event(self, name: str, reason: str) -> str:
        def ask() -> str | None:
            told = [message for is_it, message in self.events(name) if is_it == reason]
            return told[-1] if told else None

        return self.wait(ask, what=f"Event {reason} of {name}")

    def wait_scheduled(self, pod: str) -> None:
        """Wait until kube-scheduler reports that it has bound a pod."""

        def ask() -> bool:
            return "Scheduled" in [reason for reason, _ in self.events(pod)]

        self.wait(ask, what=f"kube-scheduler's Event for {pod}")

    def tell(self) -> str:
        """All that helps to explain a timeout."""
        asked = (
            ("get", "dljobs,pods", "-o", "wide"),
            ("get", "events", "--sort-by=.metadata.creationTimestamp"),
            ("describe", "dljobs"),
            ("get", "nodes", "--show-labels"),
        )
        told = [self.kubectl.try_to(*words).out for words in asked]
        return "\n".join([*told, self.cluster.describe_home()])


def _read_pod(document: Json, nodes: Mapping[str, str]) -> Pod:
    metadata, status = document["metadata"], document["status"]
    containers = status.get("containerStatuses") or [{}]
    [trainer] = [each for each in containers if each.get("name", "trainer") == "trainer"]
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        # The node whose kubelet reports the pod.
        node=nodes.get(status.get("hostIP", ""), ""),
        phase=status.get("phase", ""),
        container=trainer.get("containerID", ""),
        restarts=trainer.get("restartCount", 0),
    )


def _pairs(environ: bytes) -> dict[str, str]:
    return dict(pair.partition("=")[::2] for pair in environ.decode().split("\0"))


def _read_training(pid: int, environment: Mapping[str, str]) -> Training:
    told = environment.get("CUDA_VISIBLE_DEVICES", "")
    return Training(
        pid=pid,
        gpus=tuple(told.split(",")) if told else (),
        rank=environment.get("RANK", ""),
        world=environment.get("WORLD_SIZE", ""),
    )

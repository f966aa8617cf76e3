"""A real kube-scheduler with the shipped configuration, the extender as a process, and played kubelets."""

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import yaml

from tests.operator.kubelets import ROOT
from tests.operator.stages import wait_until
from tests.servers.api import Api, Json
from tests.servers.controlplane import ASK_SECONDS, HOST, ControlPlane, is_well
from tests.servers.nodes import add_nodes, is_untouchable, make_node, remove_nodes
from tests.servers.ports import choose_ports
from tests.servers.processes import Guard, Server

SCHEDULER = "dljob-scheduler"
CONFIGURATION = ROOT / "manifests" / "scheduler" / "scheduler-config.yaml"
GANG, ROLE, ROLES = "dljob.io/gang", "dljob.io/gang-role", "dljob.io/gang-roles"
HERE = "dljob.io/test"
"""A label of nodes and in selectors: no test uses another test's nodes."""


@dataclass
class Plugin:
    """The scheduler and its extender."""

    plane: ControlPlane
    scheduler: Server
    extender: Server
    health: int
    guard: Guard

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.health}/metrics", timeout=240.0
        ) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))

    def wait_for(self, name: str, value: float) -> None:
        wait_until(lambda: self.metric(name) == value, self.extender.last_words)


@contextmanager
def plugged(plane: ControlPlane, folder: Path, kubeconfig: Path | None = None) -> Iterator[Plugin]:
    port, health = choose_ports(2)
    folder.mkdir(parents=True, exist_ok=True)
    with Guard() as guard:
        extender = Server(
            [
                "/usr/bin/env",
                f"PYTHONPATH={ROOT / 'operator'}:{ROOT / 'sidecar'}:{ROOT / 'addons/gangs'}",
                sys.executable,
                "-m",
                "dljob_gangs",
                f"--kubeconfig={kubeconfig or plane.admin}",
                f"--listen=127.0.0.1:{port}",
                f"--health=127.0.0.1:{health}",
                f"--tls={folder / 'tls'}",
                "--make-tls",
            ],
            guard=guard,
            log=folder / "extender.log",
            is_ready=lambda: is_well(HTTPConnection(HOST, health, timeout=ASK_SECONDS), "/readyz"),
        )
        extender.start()
        wished = shipped_configuration(port, folder / "tls" / "ca.crt")
        scheduler = plane.make_scheduler(wished, name=SCHEDULER)
        scheduler.start()
        try:
            yield Plugin(plane, scheduler, extender, health, guard)
        finally:
            scheduler.kill()


def shipped_configuration(port: int, authority: Path) -> Json:
    """The installed configuration of the scheduler, with the test's extender."""
    document = yaml.safe_load(CONFIGURATION.read_text())
    (extender,) = document["extenders"]
    extender["urlPrefix"] = f"https://localhost:{port}"
    extender["tlsConfig"]["caFile"] = str(authority)
    return {key: value for key, value in document.items() if key not in ("apiVersion", "kind")}


@dataclass
class Troupe:
    """The nodes of one test, and the pods of a namespace."""

    plugin: Plugin
    api: Api
    namespace: str
    nodes: list[str] = field(default_factory=list)

    # --- nodes

    def add_nodes(self, capacities: Mapping[str, Mapping[str, str]]) -> None:
        """Add nodes of these capacities, and wait until pods can be bound to them."""
        made = [
            make_node(f"{name}-{self.namespace}", labels={HERE: self.namespace}, capacity=capacity)
            for name, capacity in capacities.items()
        ]
        self.nodes += add_nodes(self.api, made)
        paths = [f"/api/v1/nodes/{node}" for node in self.nodes]
        wait_until(lambda: not any(is_untouchable(self.api.get(path)) for path in paths))

    def node(self, name: str) -> str:
        return f"{name}-{self.namespace}"

    # --- pods

    def make_pod(self, name: str, *, cpu: str = "1", scheduler: str = SCHEDULER) -> Json:
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {}, "annotations": {}},
            "spec": {
                "schedulerName": scheduler,
                "nodeSelector": {HERE: self.namespace},
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
            },
        }

    def make_member(
        self,
        gang: str,
        role: str,
        number: int = 0,
        *,
        roles: Mapping[str, int],
        cpu: str = "1",
        scheduler: str = SCHEDULER,
    ) -> Json:
        pod = self.make_pod(f"{gang}-{role}-{number}", cpu=cpu, scheduler=scheduler)
        pod["metadata"]["labels"] = {GANG: gang, ROLE: role}
        pod["metadata"]["annotations"] = {ROLES: json.dumps(roles)}
        return pod

    def create(self, pod: Json) -> str:
        return str(self.api.post(self.path(), pod)["metadata"]["name"])

    def create_gang(self, gang: str, roles: Mapping[str, int], **options: Any) -> list[str]:
        """Create all pods that a gang needs."""
        return [
            self.create(self.make_member(gang, role, number, roles=roles, **options))
            for role, count in roles.items()
            for number in range(count)
        ]

    def path(self, name: str = "") -> str:
        base = f"/api/v1/namespaces/{self.namespace}/pods"
        return f"{base}/{name}" if name else base

    def pods(self) -> dict[str, Json]:
        return {each["metadata"]["name"]: each for each in self.api.get(self.path())["items"]}

    def bound(self) -> dict[str, str]:
        """The node of each bound pod that has not ended, by the test's name for it."""
        return {
            name: pod["spec"]["nodeName"].removesuffix(f"-{self.namespace}")
            for name, pod in self.pods().items()
            if pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running")
        }

    def wait_bound(self, names: list[str]) -> dict[str, str]:
        self.wait(lambda: set(names) <= set(self.bound()))
        found = self.bound()
        assert set(found) == set(names)
        return found

    def finish(self, names: list[str]) -> None:
        """Play the kubelets of pods that are done."""
        for name in names:
            self.api.merge(f"{self.path(name)}/status", {"status": {"phase": "Succeeded"}})

    def delete(self, name: str) -> None:
        self.api.delete(self.path(name), gracePeriodSeconds=0)

    def clear(self) -> None:
        """Delete all pods, because a waiting gang would delay all others."""
        self.api.delete(self.path(), gracePeriodSeconds=0)
        self.wait(lambda: not self.pods())

    # --- events

    def events(self, reason: str) -> list[Json]:
        items = self.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [each for each in items if each["reason"] == reason]

    def wait_told(self, reason: str, words: str, pod: str = "") -> Json:
        def told() -> Json | None:
            found = (
                each
                for each in self.events(reason)
                if words in (each.get("message") or each.get("note") or "")
                and pod in ("", each["involvedObject"]["name"])
            )
            return next(found, None)

        result: Json = self.wait(told)
        return result

    def wait(self, what: Callable[[], object]) -> Any:
        return wait_until(what, self.tell)

    def tell(self) -> str:
        told = [f"{name}: {pod['spec'].get('nodeName')}" for name, pod in self.pods().items()]
        items = self.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        told += [f"{e['involvedObject']['name']} {e['reason']}: {e['message']}" for e in items]
        return "\n".join([*told, self.plugin.extender.last_words()])


@contextmanager
def playing(plugin: Plugin, namespace: str) -> Iterator[Troupe]:
    """Play in a namespace, and clean up."""
    with plugin.plane.api() as api:
        troupe = Troupe(plugin, api, namespace)
        try:
            yield troupe
        finally:
            if not plugin.extender.is_running:
                plugin.extender.start()
            if not plugin.scheduler.is_running:
                plugin.scheduler.start()
            troupe.clear()
            remove_nodes(api, troupe.nodes)
            plugin.wait_for("dljob_gang_pods_held", 0.0)

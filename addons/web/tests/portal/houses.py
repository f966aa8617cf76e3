"""A cluster with two teams and their jobs, users with different rights, and the page's server as its own account."""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from addons.web.tests.records import SCRIPT
from dljob.control.settings import load_tree
from dljob.kube import names
from dljob.operator.reporting.configmap_writing import settings_text
from dljob.operator.settings import OperatorSettings
from tests.operator.conftest import install_crd
from tests.operator.manifests import make_manifest, path_of
from tests.operator.stages import wait_until
from tests.servers.api import Api
from tests.servers.controlplane import ControlPlane
from tests.servers.namespaces import remove_namespace, wait_for_ends
from tests.servers.nodes import add_nodes, make_node, remove_nodes
from tests.servers.ports import choose_ports
from tests.servers.processes import Guard, Server
from tests.sidecar.drivers import ROOT

Json = dict[str, Any]

HOME = "dljob-system"
LIMIT_S = 240.0
WEB_MANIFESTS = ROOT / "manifests" / "web"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ALL_JOBS = "/apis/dljob.io/v1alpha1/dljobs"
MARK = "example.com/house"
"""A label of the roles of users."""

READ_JOBS = [{"apiGroups": ["dljob.io"], "resources": ["dljobs"], "verbs": ["get", "list"]}]
READ_NODES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]

RED, BLUE = "team-red", "team-blue"


@dataclass(frozen=True)
class House:
    """All of it."""

    plane: ControlPlane
    address: str
    tokens: Mapping[str, str]
    """By the names of users."""
    server: Server
    api: Api

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """A program or a browser, with cookies of its own."""
        timeout = aiohttp.ClientTimeout(LIMIT_S)
        # Else an address that is no name keeps no cookies.
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(self.address, timeout=timeout, cookie_jar=jar) as session:
            yield session

    def suppose(self, user: str, question: Any, **headers: str) -> tuple[int, Any]:
        """Ask what if, with a user's token; returns the status and the document."""

        async def ask() -> tuple[int, Any]:
            given = {"Authorization": f"Bearer {self.tokens[user]}"} | headers
            body = question if isinstance(question, bytes) else json.dumps(question).encode()
            async with (
                self.session() as session,
                session.post("/api/v1/what-if", headers=given, data=body) as answer,
            ):
                return answer.status, await answer.json()

        return asyncio.run(ask())

    def ask(self, path: str, user: str, **headers: str) -> tuple[int, Any]:
        """Ask once with a user's token, or with none; returns the status and the document."""

        async def ask() -> tuple[int, Any]:
            given = {"Authorization": f"Bearer {self.tokens[user]}"} if user else {}
            async with (
                self.session() as session,
                session.get(path, headers=given | headers) as answer,
            ):
                is_json = answer.content_type == "application/json"
                return answer.status, await (answer.json() if is_json else answer.text())

        return asyncio.run(ask())


@contextlib.contextmanager
def inhabited(plane: ControlPlane, folder: Path) -> Iterator[House]:
    """Bring all of it onto a control plane on which there is no other job and no node; it ends with the block."""
    install_crd(plane)
    with plane.api() as api, Guard() as guard:
        # Those of the last time may be ending yet.
        wait_for_ends(api)
        wait_until(lambda: not api.get(ALL_JOBS)["items"] and not api.get("/api/v1/nodes")["items"])
        for name in (HOME, RED, BLUE):
            api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        plane.kubectl("apply", "--server-side", "-k", WEB_MANIFESTS)
        nodes = add_nodes(api, [make_node("node-1", labels=_pool(4))])
        text = settings_text(load_tree(OperatorSettings()).described())
        shown = {"metadata": {"name": names.SETTINGS}, "data": {names.SETTINGS_KEY: text}}
        api.post(f"/api/v1/namespaces/{HOME}/configmaps", shown)
        _submit(api, RED, "red-runs", [0, 1])
        _submit(api, BLUE, "blue-runs", [2])
        tokens = _add_users(api)
        kubeconfig = plane.kubeconfig_for_service_account(HOME, "dljob-web")
        address, server = serve(guard, kubeconfig, folder)
        try:
            yield House(plane, address, tokens, server, api)
        finally:
            remove_nodes(api, nodes)
            plane.kubectl("delete", "--timeout=240s", "-k", WEB_MANIFESTS)
            for kind in ("clusterroles", "clusterrolebindings"):
                api.delete(f"{RBAC}/{kind}", labelSelector=MARK)
            for name in (HOME, RED, BLUE):
                remove_namespace(api, name)


def _pool(gpus: int) -> dict[str, str]:
    return {"dljob.io/pool": "", "dljob.io/gpu-count": str(gpus), "dljob.io/gpu-type": "A100"}


def _submit(api: Api, namespace: str, name: str, gpus: list[int]) -> None:
    """Create a job, and play the operator, which has given it GPUs."""
    api.post(path_of(namespace), make_manifest(name))
    at = (datetime.now(UTC) - timedelta(seconds=100)).isoformat(timespec="seconds")
    at = at.replace("+00:00", "Z")
    nodes = [{"name": "node-1", "gpuIds": gpus}]
    decided = {"at": at, "kind": "start", "generation": 1, "message": f"{SCRIPT} for {name}"}
    status = {
        "phase": "Running",
        "submittedAt": at,
        "message": f"{SCRIPT} for {name}",
        "allocation": {"gpus": len(gpus), "gpuType": "A100", "decidedAt": at, "nodes": nodes},
        "history": [{**decided, "gpus": len(gpus), "nodes": nodes}],
    }
    api.merge(path_of(namespace, name, "status"), {"status": status})


def _add_users(api: Api) -> dict[str, str]:
    """Create accounts; two see the jobs of a team each, one also all nodes, two everything, one all jobs, one nothing."""
    users = {
        "red": [("Role", RED, READ_JOBS)],
        "blue": [("Role", BLUE, READ_JOBS), ("ClusterRole", "", READ_NODES)],
        "chief": [("ClusterRole", "", READ_JOBS + READ_NODES)],
        "deputy": [("ClusterRole", "", READ_JOBS + READ_NODES)],
        "planner": [("ClusterRole", "", READ_JOBS)],
        "stranger": [],
    }
    tokens = {}
    for name, roles in users.items():
        api.post(f"/api/v1/namespaces/{HOME}/serviceaccounts", {"metadata": {"name": name}})
        for kind, namespace, rules in roles:
            grant(api, kind, namespace, name, rules)
        tokens[name] = make_token(api, name)
    return tokens


def make_token(api: Api, name: str) -> str:
    path = f"/api/v1/namespaces/{HOME}/serviceaccounts/{name}/token"
    token: str = api.post(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    return token


def grant(api: Api, kind: str, namespace: str, name: str, rules: list[Json]) -> None:
    where = f"{RBAC}/namespaces/{namespace}" if namespace else RBAC
    metadata = {"name": name, "labels": {MARK: ""}}
    api.post(f"{where}/{kind.lower()}s", {"metadata": metadata, "rules": rules})
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": HOME}],
    }
    api.post(f"{where}/{kind.lower()}bindings", binding)


def serve(guard: Guard, kubeconfig: Path, folder: Path, *words: str) -> tuple[str, Server]:
    """Run the page's server, with further words on its command line."""
    [port] = choose_ports(1)
    address = f"http://127.0.0.1:{port}"
    command = [
        *(
            sys.executable,
            "-P",
            "-m",
            "dljob_web.portal",
            "--no-tls",
            "--kubeconfig",
            str(kubeconfig),
        ),
        *("--listen", f"127.0.0.1:{port}", "--host", "gpus.example.com"),
        "--review-seconds=1",
        *words,
    ]

    def is_ready() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S).close()
        except OSError:
            return False
        return True

    server = Server(command, guard=guard, log=folder / f"portal-{port}.log", is_ready=is_ready)
    server.start()
    return address, server

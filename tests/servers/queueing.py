"""
A real Kueue beside a control plane: its kinds, its webhooks, and its controller as a process.

Its definitions are those of the module that it is built from, with the address of this process in place of a Service.
"""

import base64
import http.client
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import yaml

from tests.servers.api import Api, Json, Refused
from tests.servers.authority import Authority
from tests.servers.binaries import KUEUE, Unavailable, demand, do_without
from tests.servers.controlplane import ControlPlane
from tests.servers.ports import choose_ports
from tests.servers.processes import Guard, Server
from tests.sidecar.drivers import wait_until

HOST = "127.0.0.1"
HOME = "kueue-system"
ACCOUNT = f"system:serviceaccount:{HOME}:kueue-controller-manager"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"
RBAC = "config/components/rbac"
KUEUE_API = "/apis/kueue.x-k8s.io/v1beta2"
CONVERTED = (
    *("clusterqueues", "cohorts", "localqueues", "multikueueclusters"),
    *("resourceflavors", "workloads"),
)
"""The kinds that Kueue itself converts between versions."""
WEBHOOKS: Mapping[str, str] = {"pod": "-v1-pod", "batch/job": "-batch-v1-job"}
"""The part of the path of the webhooks, by framework."""
ASK_SECONDS = 5.0


@cache
def find_module() -> Path:
    """The folder of Kueue's sources; skips the test without it."""
    command = ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue"]
    try:
        ran = subprocess.run(
            command, cwd=KUEUE.source, capture_output=True, text=True, check=True, timeout=240.0
        )
    except (OSError, subprocess.SubprocessError) as error:
        do_without(Unavailable(f"no sources of Kueue: {error}"))
    if not ran.stdout.strip():
        do_without(Unavailable("the sources of Kueue are not in Go's cache"))
    return Path(ran.stdout.strip())


class Kueue:
    """Kueue for one control plane; as a context manager it serves."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        *,
        frameworks: Sequence[str] = ("batch/job",),
        settings: Mapping[str, Any] | None = None,
        gates: Sequence[str] = (),
    ) -> None:
        """``settings`` are added to Kueue's configuration; ``gates`` are feature gates, such as ``PriorityBoost=true``."""
        program, self._sources = demand(KUEUE)["kueue"], find_module()
        self.plane = plane
        self._frameworks = frameworks
        self._port, health, metrics = choose_ports(3)
        self._health = health
        folder.mkdir(parents=True, exist_ok=True)
        self._authority = Authority()
        certificate, key = self._authority.issue_server(HOST).write(folder, "tls")
        config = folder / "config.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
                    "kind": "Configuration",
                    "namespace": HOME,
                    "health": {"healthProbeBindAddress": f"{HOST}:{health}"},
                    "metrics": {"bindAddress": f"{HOST}:{metrics}"},
                    "webhook": {"host": HOST, "port": self._port, "certDir": str(folder)},
                    "leaderElection": {"leaderElect": False},
                    "internalCertManagement": {"enable": False},
                    "clientConnection": {"qps": 200, "burst": 400},
                    "integrations": {
                        "frameworks": list(frameworks),
                        "externalFrameworks": ["DLJob.v1alpha1.dljob.io"],
                    },
                    **(settings or {}),
                }
            )
        )
        # It reads one certificate from a fixed place, which a mount that only it sees provides.
        place = "/etc/kueue/metrics/certs"
        shell = (
            f"mount -t tmpfs none /etc && mkdir -p {place} && cp {certificate} {key} {place}"
            f" && exec {program} --config={config} --kubeconfig={plane.kubeconfig_for_user(ACCOUNT)}"
            f" --feature-gates={','.join(('VisibilityOnDemand=false', *gates))}"
        )
        alone = ["unshare", "--mount", *(["--user", "--map-root-user"] if os.geteuid() else [])]
        self._guard = Guard()
        self.server = Server(
            [*alone, "sh", "-c", shell],
            guard=self._guard,
            log=folder / "kueue.log",
            is_ready=self._is_ready,
        )

    def __enter__(self) -> Self:
        try:
            with self.plane.api() as api:
                api.post("/api/v1/namespaces", {"metadata": {"name": HOME}})
                self._install(api)
            self.server.start()
        except BaseException:
            self._guard.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.close()

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._health, timeout=ASK_SECONDS)
        try:
            connection.request("GET", "/readyz")
            answers: bool = connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()
        return answers

    def _install(self, api: Api) -> None:
        for document in (*self._iter_kinds(), *self._iter_webhooks()):
            group = document["apiVersion"]
            plural = f"{document['kind'].lower()}s"
            name = document["metadata"]["name"]
            api.apply(f"/apis/{group}/{plural}/{name}", document, manager="test")
        for role in ("role", "manager_secrets_role"):
            self._grant(api, yaml.safe_load((self._sources / RBAC / f"{role}.yaml").read_text()))
        # It ends at once where a kind is not served.
        for kind in self._iter_kinds():
            wait_until(partial(self._is_served, api, kind), what=kind["metadata"]["name"])

    def _grant(self, api: Api, role: Json) -> None:
        kind, name = role["kind"], role["metadata"]["name"]
        where = f"{RIGHTS}/namespaces/{HOME}" if kind == "Role" else RIGHTS
        group = "rbac.authorization.k8s.io"
        bound = {
            "apiVersion": role["apiVersion"],
            "kind": f"{kind}Binding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": ACCOUNT}],
        }
        role["metadata"].pop("namespace", None)
        api.apply(f"{where}/{kind.lower()}s/{name}", role, manager="test")
        api.apply(f"{where}/{kind.lower()}bindings/{name}", bound, manager="test")

    def _is_served(self, api: Api, kind: Json) -> bool:
        try:
            for version in kind["spec"]["versions"]:
                if version["served"]:
                    plural = kind["spec"]["names"]["plural"]
                    api.get(f"/apis/{kind['spec']['group']}/{version['name']}/{plural}", limit=1)
        except Refused:
            return False
        return True

    def _client(self, path: str) -> Json:
        ca = base64.b64encode(self._authority.certificate).decode()
        return {"url": f"https://{HOST}:{self._port}{path}", "caBundle": ca}

    def _iter_kinds(self) -> Iterator[Json]:
        for file in sorted(self._sources.glob("config/components/crd/bases/*.yaml")):
            document = yaml.safe_load(file.read_text())
            if document["spec"]["names"]["plural"] in CONVERTED:
                webhook = {
                    "clientConfig": self._client("/convert"),
                    "conversionReviewVersions": ["v1"],
                }
                document["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
            yield document

    def _iter_webhooks(self) -> Iterator[Json]:
        file = self._sources / "config/components/webhook/manifests.yaml"
        wanted = ("kueue-x-k8s-io", *(WEBHOOKS[each] for each in self._frameworks))
        for document in yaml.safe_load_all(file.read_text()):
            document["metadata"]["name"] = f"kueue-{document['metadata']['name']}"
            kept = []
            for webhook in document["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                if any(each in path for each in wanted):
                    kept.append({**webhook, "clientConfig": self._client(path)})
            yield {**document, "webhooks": kept}

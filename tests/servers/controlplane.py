"""
A real control plane of Kubernetes for tests: etcd, API server, controller-manager and scheduler.

It is on 127.0.0.1, needs no root, keeps everything in one folder, and ends with the tests, even if
they are killed. It has no kubelets: nodes are made by :mod:`tests.servers.nodes`, and the work of a
kubelet is the test's to play. Real ones, which need another address and root, are in
:mod:`tests.servers.realnodes`.

Most tests share the fixture ``control_plane`` (one for each process of the test run) and a namespace of
their own from the fixture ``namespace``. A test that stops the API server, or wants an audit log or a
scheduler of its own, starts its own::

    with ControlPlane(tmp_path, Wishes(audit_policy=POLICY)) as plane:
        plane.kubectl("apply", "-f", "job.yaml")
        plane.api_server.stop(); plane.api_server.start()
        operator = plane.kubeconfig_for_service_account("dljob-system", "dljob-operator")
"""

import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.servers.api import Api
from tests.servers.authority import (
    MASTERS,
    Authority,
    make_signing_keys,
    with_certificate,
    write_kubeconfig,
)
from tests.servers.binaries import CONTROL_PLANE, ETCD, KUBECTL, demand
from tests.servers.kubectl import Kubectl
from tests.servers.namespaces import wait_for_account
from tests.servers.ports import choose_ports
from tests.servers.processes import Guard, Server

PROGRAMS = (ETCD, CONTROL_PLANE, KUBECTL)
HOST = "127.0.0.1"
SERVICES = "10.96.0.0/16"
ITSELF = ("10.96.0.1", "kubernetes.default", "kubernetes.default.svc")
"""How pods reach the API server."""
ISSUER = "https://kubernetes.default.svc"
PATIENCE_SECONDS = 86_400
"""Made nodes send no heartbeats."""
TOKEN_SECONDS = 3600
ASK_SECONDS = 5.0
UNTHROTTLED: Mapping[str, Any] = {"clientConnection": {"qps": 1000, "burst": 1000}}
"""A scheduler that its own limits do not hold up: ``Wishes(scheduler=UNTHROTTLED)``."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The wishes for a control plane that differ from the usual one."""

    host: str = HOST
    """The address of the API server. Real kubelets need another one, which they and their pods reach."""
    lost_seconds: int = PATIENCE_SECONDS
    """A node counts as lost this long after the last report of its kubelet."""
    audit_policy: Mapping[str, Any] | None = None
    """An ``audit.k8s.io/v1`` Policy; :attr:`ControlPlane.audit_log` is then written, a line an event."""
    api_server: Sequence[str] = ()
    """More arguments for the API server."""
    controllers: bool = True
    """Whether a controller-manager runs: garbage collection, service accounts, taints of nodes."""
    scheduler: Mapping[str, Any] | None = field(default_factory=dict)
    """
    Fields of the scheduler's KubeSchedulerConfiguration (``profiles``, ``extenders``,
    ``clientConnection: {qps, burst}``), or None for no scheduler.
    """


class ControlPlane:
    """
    A control plane as a context manager; entered, it serves. See the module for how it is used.

    ``api_server``, ``etcd``, ``controllers`` and ``scheduler`` are each a
    :class:`~tests.servers.processes.Server`: to be stopped, killed, frozen, and started again on the
    same port with the same data.
    """

    def __init__(
        self,
        folder: Path,
        wishes: Wishes | None = None,
        *,
        programs: Mapping[str, Path] | None = None,
    ) -> None:
        """
        Choose its ports, and write what its programs read.

        Without ``programs`` they are looked for, and the test is skipped where there are none. A
        caller that is no test gives them: ``programs=find_all(*PROGRAMS)``.
        """
        self._programs = demand(*PROGRAMS) if programs is None else programs
        self._wishes = wishes or Wishes()
        self._folder = folder
        self.authority = Authority()
        self.authority_file = folder / "ca.crt"
        folder.mkdir(parents=True, exist_ok=True)
        store, peers, api, controllers, scheduler = choose_ports(5)
        self.url = f"https://{self._wishes.host}:{api}"
        self.store_url = f"http://{HOST}:{store}"
        """The address of etcd, which asks no client for a proof of its identity."""
        self.audit_log = folder / "audit.log"
        self._write_files()
        self._guard = Guard()
        self.etcd = self._server("etcd", self._etcd_arguments(store, peers), (store, "/health"))
        self.api_server = self._server(
            "kube-apiserver", self._api_server_arguments(api, store), (api, "/readyz")
        )
        self.controllers = self._server(
            "kube-controller-manager",
            self._controllers_arguments(controllers),
            (controllers, "/healthz"),
        )
        self.scheduler = self.make_scheduler(self._wishes.scheduler or {}, port=scheduler)

    # --- its life -------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start everything, and return when pods can be created and are scheduled."""
        try:
            self.etcd.start()
            self.api_server.start()
            others = [self.controllers] if self._wishes.controllers else []
            others += [self.scheduler] if self._wishes.scheduler is not None else []
            for server in others:
                server.launch()
            for server in others:
                server.wait_until_ready()
            if self._wishes.controllers:
                with self.api() as api:
                    wait_for_account(api, "default")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End everything at once, without keeping data."""
        self._guard.close()

    def make_scheduler(
        self, configuration: Mapping[str, Any], *, name: str = "kube-scheduler", port: int = 0
    ) -> Server:
        """
        Make one more scheduler, not yet started, with fields of a KubeSchedulerConfiguration.

        Its ``profiles`` must have another ``schedulerName`` than the one that runs already.
        """
        port = port or choose_ports(1)[0]
        config = self._folder / f"{name}.yaml"
        config.write_text(json.dumps(self._scheduler_configuration(configuration)))
        kubeconfig = self._kubeconfig("scheduler")
        arguments = [f"--config={config}", *_secured(port, kubeconfig)]
        return self._server("kube-scheduler", arguments, (port, "/readyz"), log=f"{name}.log")

    # --- users and kubeconfigs ---------------------------------------------------------------

    @property
    def admin(self) -> Path:
        """The kubeconfig of a user with all rights."""
        return self._kubeconfig("admin")

    def api(self, kubeconfig: Path | None = None) -> Api:
        """Connect as the user of a kubeconfig; as the administrator if none is given."""
        return Api(kubeconfig or self.admin)

    def kubectl_as(self, kubeconfig: Path) -> Kubectl:
        return Kubectl(self._programs["kubectl"], kubeconfig)

    @property
    def kubectl(self) -> Kubectl:
        """The administrator's ``kubectl``: ``plane.kubectl("get", "pods")``."""
        return self.kubectl_as(self.admin)

    def kubeconfig_for_user(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Make a user with a certificate, who may do everything that is granted to its name and groups."""
        return self._write_kubeconfig(
            f"user-{user}", with_certificate(self.authority.issue_client(user, groups))
        )

    def kubeconfig_for_service_account(
        self, namespace: str, name: str, *, pod: Mapping[str, Any] | None = None
    ) -> Path:
        """
        Make a kubeconfig with a token of a service account, which must exist.

        A token for a ``pod``, such as kubelets fetch, names the node of the pod.
        """
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        spec: dict[str, Any] = {"expirationSeconds": TOKEN_SECONDS}
        if pod is not None:
            identity = {each: pod["metadata"][each] for each in ("name", "uid")}
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **identity}
        request = {"spec": spec}
        with self.api() as api:
            token = api.post(path, request)["status"]["token"]
        bound = f"-{pod['metadata']['name']}" if pod is not None else ""
        return self._write_kubeconfig(f"account-{namespace}-{name}{bound}", {"token": token})

    # --- programs ---------------------------------------------------------------

    def _kubeconfig(self, name: str) -> Path:
        return self._folder / f"{name}.kubeconfig"

    def _write_kubeconfig(self, name: str, user: dict[str, str]) -> Path:
        return write_kubeconfig(
            self._kubeconfig(name.replace(":", "-")),
            server=self.url,
            authority=self.authority.certificate,
            user=user,
        )

    def _write_files(self) -> None:
        self.authority_file.write_bytes(self.authority.certificate)
        hosts = dict.fromkeys((self._wishes.host, HOST, "localhost", *ITSELF))
        self.authority.issue_server(*hosts).write(self._folder, "server")
        asks = self.authority.issue_client("apiserver-kubelet-client", [MASTERS])
        asks.write(self._folder, "kubelet-client")
        private, public = make_signing_keys()
        (self._folder / "accounts.key").write_bytes(private)
        (self._folder / "accounts.pub").write_bytes(public)
        if self._wishes.audit_policy is not None:
            policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy"}
            policy_file = self._folder / "audit.yaml"
            policy_file.write_text(json.dumps({**policy, **self._wishes.audit_policy}))
        people = {
            "admin": ("admin", [MASTERS]),
            "controller-manager": ("system:kube-controller-manager", [MASTERS]),
            "scheduler": ("system:kube-scheduler", []),
        }
        for name, (user, groups) in people.items():
            certificate = self.authority.issue_client(user, groups)
            self._write_kubeconfig(name, with_certificate(certificate))

    def _server(
        self, program: str, arguments: Sequence[str], ready: tuple[int, str], *, log: str = ""
    ) -> Server:
        port, path = ready
        host = self._wishes.host if program == "kube-apiserver" else HOST
        connect = _connect_plainly if program == "etcd" else _connect
        return Server(
            [self._programs[program], *arguments],
            guard=self._guard,
            log=self._folder / (log or f"{program}.log"),
            is_ready=lambda: is_well(connect(host, port), path),
        )

    def _etcd_arguments(self, port: int, peers: int) -> list[str]:
        here = f"http://{HOST}:{port}"
        return [
            f"--data-dir={self._folder / 'etcd'}",
            # Nothing has to outlive a power cut.
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={here}",
            f"--advertise-client-urls={here}",
            f"--listen-peer-urls=http://{HOST}:{peers}",
        ]

    def _api_server_arguments(self, port: int, store: int) -> list[str]:
        folder = self._folder
        audit = [
            f"--audit-policy-file={folder / 'audit.yaml'}",
            f"--audit-log-path={self.audit_log}",
        ]
        return [
            f"--etcd-servers=http://{HOST}:{store}",
            f"--bind-address={self._wishes.host}",
            f"--advertise-address={self._wishes.host}",
            f"--secure-port={port}",
            f"--tls-cert-file={folder / 'server.crt'}",
            f"--tls-private-key-file={folder / 'server.key'}",
            f"--client-ca-file={self.authority_file}",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={folder / 'accounts.pub'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            *self._as_seen_by_nodes(),
            # Without it, it waits when it is to stop until every client has gone of its own accord.
            "--shutdown-watch-termination-grace-period=2s",
            *(audit if self._wishes.audit_policy is not None else []),
            *self._wishes.api_server,
        ]

    def _as_seen_by_nodes(self) -> list[str]:
        if self._wishes.host == HOST:
            # No client reaches it by its Service, for which an address of this host would not do.
            return ["--endpoint-reconciler-type=none"]
        shown = self._folder / "kubelet-client"
        return [
            f"--kubelet-certificate-authority={self.authority_file}",
            f"--kubelet-client-certificate={shown}.crt",
            f"--kubelet-client-key={shown}.key",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _controllers_arguments(self, port: int) -> list[str]:
        kubeconfig = self._kubeconfig("controller-manager")
        return [
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",
            # Accounts of its own for each of its controllers would take it five seconds more.
            "--use-service-account-credentials=false",
            f"--root-ca-file={self.authority_file}",
            f"--service-account-private-key-file={self._folder / 'accounts.key'}",
            f"--node-monitor-grace-period={self._wishes.lost_seconds}s",
            *_secured(port, kubeconfig),
        ]

    def _scheduler_configuration(self, wished: Mapping[str, Any]) -> Mapping[str, Any]:
        kubeconfig = {"kubeconfig": str(self._kubeconfig("scheduler"))}
        connection = {**kubeconfig, **wished.get("clientConnection", {})}
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            **wished,
            "clientConnection": connection,
        }


def _secured(port: int, kubeconfig: Path) -> list[str]:
    return [
        f"--bind-address={HOST}",
        f"--secure-port={port}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
    ]


# --- asking a server whether it is well ---------------------------------------------------


def _connect(host: str, port: int) -> http.client.HTTPConnection:
    # Only whether it is up is asked, and some of them make certificates of their own.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=ASK_SECONDS, context=context)


def _connect_plainly(host: str, port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(host, port, timeout=ASK_SECONDS)


def is_well(connection: http.client.HTTPConnection, path: str) -> bool:
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()

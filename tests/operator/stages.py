"""A stage: a real control plane, played kubelets, and real operators as processes."""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dljob.kube import names
from dljob.operator.jobs import crd
from dljob_lab.demonstrating.examples import load_example
from tests.operator.kubelets import ROOT, Kubelets
from tests.policy_stories import KIND, SPEEDS, write_speeds
from tests.servers.api import Api, Json, Refused
from tests.servers.controlplane import ControlPlane
from tests.servers.namespaces import empty_namespace, make_namespace, remove_namespace
from tests.servers.nodes import add_nodes, make_node, remove_nodes
from tests.servers.processes import Guard, Server

PATIENCE_S = 240.0
"""Far more than any wait takes."""
LEADS = "leads, in epoch"
"""An operator logs this when it begins to lead."""
POOL = {"dljob.io/pool": "", "dljob.io/gpu-type": "A100"}
TAINT = {"key": "dljob.io/pool", "effect": "NoSchedule"}
"""The taint that keeps other pods off nodes of the pool."""
PATIENT = {"lease.leaseSeconds": 60, "lease.giveUpSeconds": 50}
"""A Lease that an operator keeps on a machine that stalls now and then."""
USUAL = (
    *("namespace", "watched", "health", "store", "pods.virtualGpus", "pods.pollSeconds"),
    "publishing.seconds",
    *PATIENT,
)
"""The default settings of an operator in tests."""
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def wait_until(
    what: Callable[[], object], told: Callable[[], str] = str, patience: float = PATIENCE_S
) -> Any:
    end = time.monotonic() + patience
    while not (result := what()):
        assert time.monotonic() < end, f"waited in vain; {told()}"
        time.sleep(0.05)
    return result


def install(api: Api) -> None:
    api.apply(f"{CRDS}/{crd.NAME}", crd.definition(), manager="test", force="true")
    wait_for_crd(api)


def wait_for_crd(api: Api) -> None:
    """Wait until jobs can be created and listed; the definition has no conditions at first."""

    def is_served() -> bool:
        conditions = api.get(f"{CRDS}/{crd.NAME}").get("status", {}).get("conditions") or ()
        return any(
            each["type"] == "Established" and each["status"] == "True" for each in conditions
        )

    def can_be_listed() -> bool:
        try:
            api.get(f"/apis/{names.GROUP}/{names.VERSION}/{names.PLURAL}", limit=1)
        except Refused:
            # Its storage begins a moment after it is announced.
            return False
        return True

    wait_until(lambda: is_served() and can_be_listed())


@dataclass
class Stage:
    """The stage of a test: control plane, namespace, nodes with kubelets, and operators."""

    plane: ControlPlane
    api: Api
    namespace: str
    folder: Path
    kubelets: Kubelets
    guard: Guard
    operators: list[Server] = field(default_factory=list)
    kubeconfig: Path | None = None
    """The kubeconfig of the operators; the administrator's if none is named."""
    patience: float = PATIENCE_S
    """In seconds, for each wait."""

    def start_operator(
        self,
        *,
        waits: bool = False,
        launches: bool = False,
        program: Sequence[str] = (sys.executable, "-m", "dljob.operator"),
        settings: Mapping[str, object] | None = None,
        usual: Collection[str] = USUAL,
    ) -> Server:
        """
        Start an operator; return it when it leads, if it ``waits``, when it waits to lead, if it ``launches``, at once.

        It has the default settings in ``usual``, and ``settings``, which win.
        """
        number = len(self.operators)
        sign = "waits to lead" if waits else LEADS
        known = {
            "namespace": self.namespace,
            "watched": self.namespace,
            "health": "127.0.0.1:0",
            "store": str(self.folder / "profiles.db"),
            "pods.virtualGpus": "true",
            "pods.pollSeconds": "0.5",
            # A test that waits for progress waits for the status to show it.
            "publishing.seconds": "2",
            **PATIENT,
        }
        given = {name: known[name] for name in usual} | dict(settings or {})
        log = self.folder / f"operator-{number}.log"
        options = [f"--set={path}={value}" for path, value in given.items()]
        # An operator that is killed leaves temporary files behind.
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        operator = Server(
            [
                "/usr/bin/env",
                f"TMPDIR={temporary}",
                f"PYTHONPATH={ROOT}:{ROOT / 'operator'}:{ROOT / 'sidecar'}",
                *program,
                f"--kubeconfig={self.kubeconfig or self.plane.admin}",
                *options,
            ],
            guard=self.guard,
            log=log,
            is_ready=lambda: log.exists() and sign in log.read_text(),
        )
        self.operators.append(operator)
        if launches:
            operator.launch()
        else:
            operator.start()
        return operator

    def let_lease_end(self) -> None:
        """Let the Lease of a killed or frozen operator run out at once."""
        self.api.merge(self.lease(), {"spec": {"leaseDurationSeconds": 1}})

    def lease(self) -> str:
        base = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        return f"{base}/dljob-operator"

    def submit(self, name: str, *, iterations: int = 400, **spec: Any) -> Json:
        document = self.make_job(name, iterations=iterations)
        document["spec"] |= spec
        return self.api.post(self.path(), document)

    def make_job(self, name: str, *, iterations: int) -> Json:
        """A job that replays speeds on 1, 2 or 4 GPUs, with its checkpoints in this folder."""
        speeds = write_speeds(self.folder / "speeds.csv")
        example = load_example("replay")
        saved = self.folder / "saved" / name
        document = example.document
        document["metadata"] = {"name": name}
        document["spec"] |= {
            "gpus": {"options": sorted(SPEEDS)},
            "training": {"iterations": iterations, "batchSize": KIND[2]},
            "profile": {"model": KIND[0], "dataset": KIND[1]},
        }
        document["spec"]["checkpoint"] |= {"path": str(saved), "shared": True}
        pod = document["spec"]["template"]["spec"]
        container = pod["containers"][0]
        # It outlives the pod, and the restricted standard allows it; the played kubelets mount nothing.
        pod["volumes"] = [{"name": "saved", "csi": {"driver": "nfs.csi.k8s.io"}}]
        container["volumeMounts"] = [{"name": "saved", "mountPath": str(self.folder)}]
        container["command"] = [
            *example.command,
            f"--speeds={speeds}",
            f"--model={KIND[0]}",
            f"--batch={KIND[2]}",
            f"--iterations={iterations}",
            "--initialization=0.2",
            f"--checkpoint={saved}/iteration",
        ]
        return document

    def path(self, name: str = "") -> str:
        base = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{self.namespace}/{names.PLURAL}"
        return f"{base}/{name}" if name else base

    def job(self, name: str) -> Json:
        return self.api.get(self.path(name))

    def status(self, name: str) -> Json:
        status: Json = self.job(name).get("status", {})
        return status

    def phase(self, name: str) -> str:
        return str(self.status(name).get("phase", ""))

    def condition(self, name: str, kind: str) -> Json:
        """A condition of a job; empty if the job has none of this kind."""
        found = self.status(name).get("conditions", ())
        return next((each for each in found if each["type"] == kind), {})

    def counts(self, name: str) -> tuple[int, int]:
        """The failures of a job, and its restarts for other reasons."""
        status = self.status(name)
        return status.get("failures", 0), status.get("restarts", 0)

    def pod_path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods{name and f'/{name}'}"

    def pods(self) -> list[Json]:
        items: list[Json] = self.api.get(self.pod_path())["items"]
        return items

    def pods_of(self, name: str) -> list[Json]:
        return [
            pod for pod in self.pods() if pod["metadata"]["labels"].get(names.JOB_LABEL) == name
        ]

    def events(self, name: str) -> list[tuple[str, str]]:
        items = self.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [
            (each["reason"], each["message"])
            for each in items
            if each["involvedObject"]["name"] == name
        ]

    def wait(self, what: Callable[[], object]) -> Any:
        """Wait for something; after a timeout, print everything that could explain it."""
        return wait_until(what, self.tell, self.patience)

    def wait_for_phase(self, name: str, phase: str) -> Json:
        """Wait until a job has this phase; return its status."""

        def is_so_far() -> Json | None:
            status = self.status(name)
            return status if status.get("phase") == phase else None

        result: Json = self.wait(is_so_far)
        return result

    def is_gone(self, name: str) -> bool:
        try:
            self.job(name)
        except Refused as refused:
            return refused.code == 404
        return False

    def tell(self) -> str:
        jobs = self.api.get(self.path())["items"]
        told = [f"{each['metadata']['name']}: {each.get('status')}" for each in jobs]
        told += [f"{each['metadata']['name']}: {each['status']}" for each in self.pods()]
        told += [self.kubelets.log(each["metadata"]["name"])[-1500:] for each in self.pods()]
        told += [str(self.events(each["metadata"]["name"])) for each in jobs]
        for operator in self.operators:
            told.append(operator.last_words())
            operator.ask_for_stacks()
            told.append(operator.last_words())
        return "\n".join(told)


@contextmanager
def staged(
    plane: ControlPlane,
    namespace: str,
    folder: Path,
    nodes: Mapping[str, int],
    *,
    taints: Sequence[Mapping[str, str]] = (TAINT,),
) -> Iterator[Stage]:
    """Set a stage with these nodes and their numbers of GPUs."""
    with plane.api() as api:
        install(api)
        made = [
            make_node(name, labels=POOL | {"dljob.io/gpu-count": str(gpus)}, taints=taints)
            for name, gpus in nodes.items()
        ]
        add_nodes(api, made)
        try:
            with (
                Guard() as guard,
                Kubelets(plane, namespace, set(nodes), folder / "kubelets") as kubelets,
            ):
                yield Stage(plane, api, namespace, folder, kubelets, guard)
        finally:
            remove_nodes(api, nodes)
            # The next test with nodes of these names would take the pods for foreign ones.
            empty_namespace(api, namespace)


@contextmanager
def lasting_stage(
    plane: ControlPlane, folders: pytest.TempPathFactory, nodes: Mapping[str, int]
) -> Iterator[Stage]:
    """Set a stage for all tests of a module, in a namespace of its own."""
    with plane.api() as api:
        namespace = make_namespace(api)
        with staged(plane, namespace, folders.mktemp("stage"), nodes) as stage:
            yield stage
        remove_namespace(api, namespace)

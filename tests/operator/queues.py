"""Queues of Kueue on a stage: two teams in one cohort, and jobs in their queues."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.operator.stages import POOL, Stage, staged
from tests.servers.api import Api, Json
from tests.servers.controlplane import ControlPlane, Wishes
from tests.servers.namespaces import make_namespace
from tests.servers.processes import Server
from tests.servers.queueing import KUEUE_API, Kueue

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
CLASS_LABEL = "kueue.x-k8s.io/priority-class"
A, B = "team-a", "team-b"
FLAVOR = "a100"


VERSION = "kueue.x-k8s.io/v1beta2"


def _post(api: Api, kind: str, name: str, spec: Json, *, namespace: str = "") -> None:
    document = {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
    where = f"namespaces/{namespace}/" if namespace else ""
    api.post(f"{KUEUE_API}/{where}{kind.lower()}s", document)


@contextmanager
def kueue_of_teams(folder: Path, *, wishes: Wishes | None = None, **wanted: Any) -> Iterator[Kueue]:
    """A control plane with a Kueue and the quota of two teams."""
    with (
        ControlPlane(folder / "plane", wishes) as plane,
        Kueue(plane, folder / "kueue", **wanted) as kueue,
    ):
        with plane.api() as api:
            make_teams(api)
        yield kueue


@contextmanager
def stage_of_teams(kueue: Kueue, folder: Path) -> Iterator[Stage]:
    """Four GPUs, of which each of two teams owns two."""
    with kueue.plane.api() as api:
        namespace = make_namespace(api)
        with (
            queues_of(api, namespace),
            staged(kueue.plane, namespace, folder, {"gpu-a": 4}) as stage,
        ):
            yield stage


def start_operator(stage: Stage, **settings: object) -> Server:
    return stage.start_operator(settings={"kueue.enabled": "true", **settings})


def iteration(stage: Stage, name: str) -> int:
    return int(stage.status(name).get("progress", {}).get("iteration", 0))


def lost(stage: Stage, name: str) -> int:
    """The iterations that a job has made again."""
    return int(stage.status(name)["checkpoint"].get("lostIterations", 0))


def stop_queue(stage: Stage, team: str, policy: str) -> None:
    stage.api.merge(f"{KUEUE_API}/clusterqueues/{team}", {"spec": {"stopPolicy": policy}})


def make_teams(api: Api, gpus: int = 2, *, labels: Mapping[str, str] = POOL) -> None:
    """Two teams, which own so many GPUs each, on nodes with these labels, and lend them to each other."""
    _post(api, "ResourceFlavor", FLAVOR, {"nodeLabels": dict(labels)})
    for team in (A, B):
        make_cluster_queue(api, team, gpus)


def make_cluster_queue(api: Api, team: str, gpus: int = 2) -> None:
    spec = {
        "cohortName": "org",
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
        "resourceGroups": [quota_of(gpus)],
    }
    _post(api, "ClusterQueue", team, spec)


def add_priority_class(api: Api, name: str, value: int) -> None:
    kind = "WorkloadPriorityClass"
    document = {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "value": value}
    api.post(f"{KUEUE_API}/workloadpriorityclasses", document)


def make_local_queue(api: Api, team: str, namespace: str) -> None:
    _post(api, "LocalQueue", team, {"clusterQueue": team}, namespace=namespace)


@contextmanager
def queues_of(api: Api, namespace: str) -> Iterator[None]:
    """Queues of both teams in a namespace; at the end all quota is free again."""
    for team in (A, B):
        make_local_queue(api, team, namespace)
    yield
    api.delete(f"{KUEUE_API}/namespaces/{namespace}/workloads")
    for team in (A, B):
        usual = {"stopPolicy": "None", "resourceGroups": [quota_of(2)]}
        api.merge(f"{KUEUE_API}/clusterqueues/{team}", {"spec": usual})


def quota_of(gpus: int) -> Json:
    covered = {"name": "nvidia.com/gpu", "nominalQuota": gpus}
    return {
        "coveredResources": ["nvidia.com/gpu"],
        "flavors": [{"name": FLAVOR, "resources": [covered]}],
    }


def submit(
    stage: Stage,
    name: str,
    team: str,
    *,
    iterations: int = 10**6,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> None:
    document = stage.make_job(name, iterations=iterations)
    queue = {QUEUE_LABEL: team} if team else {}
    document["metadata"]["labels"] = {**queue, **(labels or {})}
    document["spec"] |= spec
    stage.api.post(stage.path(), document)


def workloads(stage: Stage) -> dict[str, Json]:
    found = stage.api.get(f"{KUEUE_API}/namespaces/{stage.namespace}/workloads")["items"]
    return {each["metadata"]["name"]: each for each in found}


def is_true(workload: Json, kind: str) -> bool:
    conditions = workload.get("status", {}).get("conditions", ())
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def admitted(stage: Stage) -> set[str]:
    return {name for name, each in workloads(stage).items() if is_true(each, "Admitted")}


def gpus(stage: Stage, name: str) -> int:
    """The GPUs on which a job trains; 0 while it does not."""
    status = stage.status(name)
    trains = status.get("phase") == "Running"
    return int(status.get("allocation", {}).get("gpus", 0)) if trains else 0


def submit_other(stage: Stage, team: str, gpus: int, name: str = "other") -> None:
    """Submit a Workload of another program."""
    container = {
        "name": "c",
        "image": "none",
        "resources": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
    }
    pods = {
        "name": "main",
        "count": gpus,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    spec = {"queueName": team, "podSets": [pods]}
    _post(stage.api, "Workload", name, spec, namespace=stage.namespace)


def has_gpus(stage: Stage, name: str, number: int) -> bool:
    return gpus(stage, name) == number

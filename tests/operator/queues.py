"""Queues of Kueue on a stage: two teams in one cohort, and jobs in their queues."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.operator.stages import POOL, Stage
from tests.servers.api import Api, Json
from tests.servers.queueing import KUEUE_API

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
A, B = "team-a", "team-b"
FLAVOR = "a100"


VERSION = "kueue.x-k8s.io/v1beta2"


def _post(api: Api, kind: str, name: str, spec: Json, *, namespace: str = "") -> None:
    document = {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
    where = f"namespaces/{namespace}/" if namespace else ""
    api.post(f"{KUEUE_API}/{where}{kind.lower()}s", document)


def make_teams(api: Api, gpus: int = 2, *, labels: Mapping[str, str] = POOL) -> None:
    """Two teams, which own so many GPUs each, on nodes with these labels, and lend them to each other."""
    _post(api, "ResourceFlavor", FLAVOR, {"nodeLabels": dict(labels)})
    for team in (A, B):
        spec = {
            "cohortName": "org",
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
            "resourceGroups": [quota_of(gpus)],
        }
        _post(api, "ClusterQueue", team, spec)


@contextmanager
def queues_of(api: Api, namespace: str) -> Iterator[None]:
    """Queues of both teams in a namespace; at the end all quota is free again."""
    for team in (A, B):
        _post(api, "LocalQueue", team, {"clusterQueue": team}, namespace=namespace)
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


def submit(stage: Stage, name: str, team: str, *, iterations: int = 10**6, **spec: Any) -> None:
    document = stage.make_job(name, iterations=iterations)
    document["metadata"]["labels"] = {QUEUE_LABEL: team} if team else {}
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

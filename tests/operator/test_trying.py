"""One dry run serves all jobs with the same pods."""

import asyncio
from copy import deepcopy
from typing import Any

import pytest

from dljob.kube import access
from dljob.kube.client import ApiServer
from dljob.kube.documents import JsonObject as Json
from dljob.kube.resources import DLJOBS
from dljob.operator.jobs.entries import Specs
from dljob.operator.pods.dry_runs import DryRuns
from dljob.operator.podspecs.podsettings import PodSettings
from tests.operator.manifests import make_manifest
from tests.servers.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

PATIENCE_S = 240.0


class Counting(ApiServer):
    """Counts the dry runs."""

    dry_runs = 0

    async def create(self, *args: Any, dry_run: bool = False, **named: Any) -> Json:
        self.dry_runs += dry_run
        return await super().create(*args, dry_run=dry_run, **named)


async def find_out(api: ApiServer, namespace: str, jobs: list[Json]) -> list[str]:
    return await find_out_again(api, [await api.create(DLJOBS, job, namespace) for job in jobs])


async def find_out_again(api: ApiServer, made: list[Json]) -> list[str]:
    news = asyncio.Event()
    dry_runs = DryRuns(api, Specs(), settings=PodSettings(), wake=news.set)
    for job in made:
        dry_runs.begin(job)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while None in (results := [dry_runs.result(job) for job in made]):
                await news.wait()
                news.clear()
        return list(map(str, results))
    finally:
        await dry_runs.close()


def ask(cluster: ControlPlane, namespace: str, jobs: list[Json]) -> tuple[list[str], int]:
    async def story() -> tuple[list[str], int]:
        api = Counting(access.find(str(cluster.admin)))
        try:
            return await find_out(api, namespace, jobs), api.dry_runs
        finally:
            await api.close()

    return asyncio.run(story())


def with_image(name: str, image: str) -> Json:
    job = deepcopy(make_manifest(name))
    job["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return job


@pytest.mark.story
def test_one_dry_run_serves_all_similar_jobs(cluster: ControlPlane, namespace: str):
    jobs = [with_image(f"job-{number}", f"image-{number % 3}") for number in range(20)]
    assert ask(cluster, namespace, jobs) == ([""] * 20, 3)


# Pod specs that a job's schema accepts and Kubernetes refuses, by a word of its error.
NO_PODS: dict[str, Json] = {
    "tolerations": {"tolerations": {"key": "spot"}},
    "nodeAffinity": {"affinity": {"nodeAffinity": ["node-1"]}},
    "nodeSelector": {"nodeSelector": ["disk"]},
    "terminationGracePeriodSeconds": {"terminationGracePeriodSeconds": "30"},
    "volumes": {"volumes": "data"},
    "quantities": {"containers": [{"resources": {"requests": {"cpu": [1]}}}]},
}


def with_pod(name: str, changes: Json) -> Json:
    """Make a job with these fields in its pod or trainer."""
    job = deepcopy(make_manifest(name))
    spec = job["spec"]["template"]["spec"]
    for field, value in changes.items():
        if field == "containers":
            spec[field][0] |= value[0]
        else:
            spec[field] = value
    return job


def test_invalid_pod_spec_is_explained_by_kubernetes(cluster: ControlPlane, namespace: str):
    jobs = [with_pod(f"wrong-{number}", changes) for number, changes in enumerate(NO_PODS.values())]
    verdicts, _ = ask(cluster, namespace, jobs)
    for word, verdict in zip(NO_PODS, verdicts, strict=True):
        assert verdict.startswith("Kubernetes would refuse its pods: ")
        assert word in verdict
        assert verdict.endswith("; correct spec.template")


MISSPELLED: dict[str, Json] = {
    'unknown field "spec.nodeSelectors"': {"nodeSelectors": {"zone": "b"}},
    'unknown field "spec.volumez"': {"volumez": []},
    'unknown field "spec.containers[0].resource"': {
        "containers": [{"resource": {"requests": {"memory": "100Gi"}}}]
    },
    'unknown field "metadata.lables"': {},
}


def test_misspelt_field_of_a_template_is_named(cluster: ControlPlane, namespace: str):
    jobs = [with_pod(f"typo-{number}", spec) for number, spec in enumerate(MISSPELLED.values())]
    jobs[-1]["spec"]["template"]["metadata"] = {"lables": {"team": "a"}, "creationTimestamp": None}
    verdicts, _ = ask(cluster, namespace, jobs)
    for words, verdict in zip(MISSPELLED, verdicts, strict=True):
        assert words in verdict
        assert "correct these names in spec.template or remove them" in verdict


def test_job_with_pods_keeps_its_misspelt_template(cluster: ControlPlane, namespace: str):
    """Kubernetes dropped the field from the existing pods, so it is no reason to stop the job."""

    async def story() -> list[str]:
        api = ApiServer(access.find(str(cluster.admin)))
        try:
            made = await api.create(DLJOBS, with_pod("typo", {"volumez": []}), namespace)
            has_pods = {**made, "status": {"pods": [{"node": "n1", "serial": 1}]}}
            return await find_out_again(api, [has_pods])
        finally:
            await api.close()

    assert asyncio.run(story()) == [""]


def test_refusal_names_no_other_job(cluster: ControlPlane, namespace: str):
    for field in ("nodeAffinity", "volumes"):
        jobs = [with_pod(f"alike-{field.lower()}-{number}", NO_PODS[field]) for number in range(3)]
        verdicts, asked = ask(cluster, namespace, jobs)
        assert asked == 1
        assert len(set(verdicts)) == 1
        assert "alike" not in verdicts[0]
    missing = {"serviceAccountName": "robot"}
    jobs = [with_pod(f"alike-{number}", missing) for number in range(3)]
    [verdict] = set(ask(cluster, namespace, jobs)[0])
    assert verdict.startswith("Kubernetes would refuse its pods: error looking up service account")
    assert "alike" not in verdict


QUOTA = {"spec": {"hard": {"pods": "0"}}}
COUNTS_CPU = {"spec": {"hard": {"limits.cpu": "4"}}}
RANGE = {"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}, "min": {"memory": "1Gi"}}]}}
SMALL = {"containers": [{"resources": {"limits": {"cpu": "2", "memory": "2Gi"}}}]}
PRIVILEGED = {"containers": [{"securityContext": {"privileged": True}}]}


def refuses(cluster: ControlPlane, namespace: str, rule: tuple[str, Json], changes: Json) -> str:
    """Set a rule that refuses the pods of a job; return the report."""
    kind, body = rule

    async def story() -> str:
        api = ApiServer(access.find(str(cluster.admin)))
        try:
            made = await api.create(DLJOBS, with_pod("job", changes), namespace)
            async with asyncio.timeout(PATIENCE_S):
                # The API server enforces a new rule a moment later.
                while not (verdicts := await find_out_again(api, [made]))[0]:
                    pass
            return verdicts[0]
        finally:
            await api.close()

    with cluster.api() as user:
        if kind == "label":
            user.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": body}})
        elif kind:
            path = f"/api/v1/namespaces/{namespace}/{kind}"
            user.post(path, {"metadata": {"name": "rule"}, **body})
    return asyncio.run(story())


ENFORCED = {"pod-security.kubernetes.io/enforce": "baseline"}


@pytest.mark.parametrize(
    ("rule", "changes", "word", "remedy"),
    [
        (("resourcequotas", QUOTA), {}, "exceeded quota", "have the ResourceQuota rule raised"),
        (("resourcequotas", COUNTS_CPU), {}, "failed quota", "in resources of each container"),
        (
            ("limitranges", RANGE),
            SMALL,
            "maximum cpu usage",
            "amounts that the LimitRange of the namespace allows",
        ),
        (("label", ENFORCED), PRIVILEGED, "PodSecurity", "labelled baseline:latest"),
        (("", {}), {"serviceAccountName": "absent"}, "absent", "create the service account"),
        (("", {}), {"priorityClassName": "top"}, "top", "have the PriorityClass top created"),
        (("", {}), {"runtimeClassName": "gpu"}, "gpu", "have the RuntimeClass gpu created"),
    ],
)
def test_remedy_is_for_the_refusing_rule(
    cluster: ControlPlane,
    namespace: str,
    rule: tuple[str, Json],
    changes: Json,
    word: str,
    remedy: str,
):
    told = refuses(cluster, namespace, rule, changes)
    assert told.startswith("Kubernetes would refuse its pods: ")
    assert word in told
    assert remedy in told
    assert "correct spec.template" not in told

"""Whether pods would be taken is asked once for all jobs that are alike."""

import asyncio
from copy import deepcopy
from typing import Any

import pytest

from dloperator import access
from dloperator.apiserver import ApiServer, Json
from dloperator.jobs import Specs
from dloperator.podmaking import PodSettings
from dloperator.resources import DLJOBS
from dloperator.trying import Templates
from tests.operator.manifests import make_manifest
from tests.servers.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

PATIENCE_S = 60.0


class Counting(ApiServer):
    """Counts the dry runs."""

    dry_runs = 0

    async def create(self, *args: Any, dry_run: bool = False, **named: Any) -> Json:
        self.dry_runs += dry_run
        return await super().create(*args, dry_run=dry_run, **named)


async def find_out(api: ApiServer, namespace: str, jobs: list[Json]) -> list[str]:
    """Submit jobs, and return what is found out about each."""
    made = [await api.create(DLJOBS, job, namespace) for job in jobs]
    news = asyncio.Event()
    templates = Templates(api, Specs(), PodSettings(), news.set)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while None in (verdicts := [templates.verdict(job) for job in made]):
                await news.wait()
                news.clear()
        return [str(verdict) for verdict in verdicts]
    finally:
        await templates.close()


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


def test_one_of_many_that_are_alike_is_tried_for_all(cluster: ControlPlane, namespace: str):
    jobs = [with_image(f"alike-{number}", "training") for number in range(20)]
    assert ask(cluster, namespace, jobs) == ([""] * 20, 1)


def test_each_kind_of_pod_is_tried(cluster: ControlPlane, namespace: str):
    jobs = [with_image(f"job-{number}", f"image-{number % 3}") for number in range(9)]
    assert ask(cluster, namespace, jobs) == ([""] * 9, 3)


def test_what_is_wrong_with_one_is_told_of_it_alone(cluster: ControlPlane, namespace: str):
    wrong = with_image("wrong", "training")
    wrong["spec"]["template"]["spec"]["volumes"] = [{"name": "Not A Name", "emptyDir": {}}]
    verdicts, _ = ask(cluster, namespace, [with_image("right", "training"), wrong])
    assert verdicts[0] == ""
    assert "Not A Name" in verdicts[1]

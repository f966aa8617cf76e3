"""Plans and logs on a real control plane: which users get an answer, and that nothing changes."""

import asyncio
import base64
import itertools
import json
import zlib

import pytest

from addons.web.tests.page_api import API, insist
from addons.web.tests.portal.houses import (
    ALL_JOBS,
    BLUE,
    HOME,
    READ_JOBS,
    READ_NODES,
    RED,
    grant,
    make_token,
)
from dljob.core.documents.profilefile import render_all
from dljob.core.profiles import JobType, Profile
from dljob.kube import names
from tests.operator.manifests import make_manifest

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

ACCOUNTS = f"/api/v1/namespaces/{HOME}/serviceaccounts"
CONFIGMAPS = f"/api/v1/namespaces/{HOME}/configmaps"
CREATE = [{"apiGroups": ["dljob.io"], "resources": ["dljobs"], "verbs": ["create"]}]
READ_PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
KIND = JobType("bert")
READ_LOGS = [{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}]


def plan(house, token, *documents):
    async def ask():
        headers = {"Authorization": f"Bearer {token}"}
        body = json.dumps(documents).encode()
        async with (
            house.session() as session,
            session.post("/api/v1/plan", headers=headers, data=body) as answer,
        ):
            return answer.status, await answer.json()

    return asyncio.run(ask())


def make_job(name, namespace=RED, **spec):
    document = make_manifest(name, **spec)
    document["metadata"] |= {"namespace": namespace} if namespace else {}
    return document


@pytest.fixture(scope="module")
def owner(house):
    """The token of a user who sees everything, and submits jobs in one namespace."""
    house.api.post(ACCOUNTS, {"metadata": {"name": "owner"}})
    grant(house.api, "ClusterRole", "", "owner", READ_JOBS + READ_NODES)
    grant(house.api, "Role", RED, "owner", CREATE)
    return make_token(house.api, "owner")


def read_versions(house):
    """Read the version of each job, which any change would raise."""
    return {
        (job["metadata"]["namespace"], job["metadata"]["name"]): job["metadata"]["resourceVersion"]
        for job in house.api.get(ALL_JOBS)["items"]
    }


def test_each_answer_is_as_it_is_described(house, owner):
    users = ("chief", "blue", "red", "stranger")
    looks = [path for path, operations in API["paths"].items() if "get" in operations]
    for path, user in itertools.product(looks, users):
        status, told = house.ask(path.replace("{name}", f"{RED}/red-runs"), user)
        if isinstance(told, dict):
            insist("GET", path, status, told)
    for user in ("chief", "red"):
        insist("POST", "/api/v1/what-if", *house.suppose(user, {}))
    for name in ("new", "red-runs"):
        insist("POST", "/api/v1/plan", *plan(house, owner, make_job(name)))


def test_futures_and_plans_use_published_knowledge(house, owner):
    def notes():
        status, told = plan(house, owner, make_job("new"))
        assert status == 200, told
        _, futures = house.suppose("chief", {})
        return [
            sum("profiles cannot be read" in each for each in found)
            for found in (told["notices"], futures["notes"])
        ]

    assert notes() == [1, 1]
    learned = zlib.compress(json.dumps({"profiles": render_all([Profile(KIND)])}).encode())
    data = {names.LEARNED_KEY: base64.b64encode(learned).decode()}
    house.api.post(CONFIGMAPS, {"metadata": {"name": names.LEARNED}, "binaryData": data})
    try:
        assert notes() == [0, 0]
    finally:
        house.api.delete(f"{CONFIGMAPS}/{names.LEARNED}")


@pytest.mark.story
def test_a_plan_shows_the_decision_and_changes_nothing(house, owner):
    before = read_versions(house)
    status, told = plan(house, owner, make_job("new", gpus={"options": [1]}))
    assert status == 200, told
    [effect] = told["items"]
    assert (effect["job"], effect["submitted"], effect["step"]) == (f"{RED}/new", True, "start")
    assert effect["new"]["nodes"] == [{"name": "node-1", "gpuIds": [3]}]
    # All GPUs are not free, so a wider job waits for others.
    status, told = plan(house, owner, make_job("wide", gpus={"options": [4]}))
    assert (status, told["items"][0]["step"]) == (200, "wait")
    assert "ahead" in told["items"][0]["queue"]
    assert read_versions(house) == before


def test_wrong_documents_come_back_with_their_fields(house, owner):
    wrong = make_job("new", gpus={"options": [0]})
    status, told = plan(house, owner, make_job("right"), wrong)
    assert status == 400
    assert told["problems"][0]["document"] == 1
    assert told["problems"][0]["path"].startswith("spec.gpus")
    status, told = plan(house, owner, make_job("new", namespace=""))
    assert (status, told["problems"][0]["path"]) == (400, "metadata.namespace")
    status, told = plan(house, owner, make_job("red-runs"))
    assert (status, told["problems"][0]["path"]) == (400, "metadata.name")


def test_users_plan_only_permitted_jobs(house, owner):
    for token, job in ((owner, make_job("new", BLUE)), (house.tokens["chief"], make_job("new"))):
        status, told = plan(house, token, job)
        assert status == 403
        assert "may not create dljobs in namespace" in told["error"]
    # Whoever sees a part is refused before the API server is asked about the job.
    for user in ("red", "blue", "planner"):
        status, told = plan(house, house.tokens[user], make_job("new"))
        assert status == 403
        assert "plans are made with all jobs and all GPUs" in told["error"]
        assert "ClusterRoleBinding" in told["error"]


def test_a_log_is_read_with_the_rights_of_the_user(house):
    path = f"/api/v1/logs/{RED}/red-runs"
    status, told = house.ask(path, "red")
    assert status == 403
    assert f"may not list pods in namespace {RED}" in told["error"]
    assert house.ask(path, "blue")[0] == 404
    labels = {names.JOB_LABEL: "red-runs", names.ROLE_LABEL: "trainer"}
    pod = {
        "metadata": {"name": "red-runs-1", "labels": labels},
        "spec": {"nodeName": "node-1", "containers": [{"name": "trainer", "image": "x"}]},
    }
    house.api.post(f"/api/v1/namespaces/{RED}/pods", pod)
    for name, rules, status, sentence in (
        ("sees", READ_PODS, 403, f"may not get pods/log in namespace {RED}"),
        # The kubelets are played, so that none answers.
        ("reads", READ_LOGS, 502, "the API server at"),
    ):
        house.api.post(ACCOUNTS, {"metadata": {"name": name}})
        grant(house.api, "Role", RED, name, READ_JOBS + rules)
        token = make_token(house.api, name)
        assert house.ask(path, "", Authorization=f"Bearer {token}")[0] == status
        assert sentence in house.ask(path, "", Authorization=f"Bearer {token}")[1]["error"]

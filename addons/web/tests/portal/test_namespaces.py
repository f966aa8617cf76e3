"""A page that is limited to some namespaces, as an account that may read jobs there alone."""

import pytest

from addons.web.tests.portal.houses import (
    BLUE,
    HOME,
    READ_JOBS,
    READ_NODES,
    RED,
    House,
    grant,
    serve,
)
from tests.servers.processes import Guard

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

REVIEWS = [
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["subjectaccessreviews"],
        "verbs": ["create"],
    },
]
READ_EVENTS = [{"apiGroups": [""], "resources": ["events"], "verbs": ["list"]}]
NAME = "web-of-red"


@pytest.fixture
def limited(house, tmp_path):
    house.api.post(f"/api/v1/namespaces/{HOME}/serviceaccounts", {"metadata": {"name": NAME}})
    grant(house.api, "ClusterRole", "", NAME, REVIEWS + READ_NODES)
    grant(house.api, "Role", RED, NAME, READ_JOBS + READ_EVENTS)
    kubeconfig = house.plane.kubeconfig_for_service_account(HOME, NAME)
    with Guard() as guard:
        address, server = serve(guard, kubeconfig, tmp_path, f"--namespace={RED}")
        yield House(house.plane, address, house.tokens, server, house.api)


def test_it_shows_the_jobs_of_its_namespaces_and_asks_for_no_others(limited):
    for user in ("chief", "red"):
        status, jobs = limited.ask("/api/v1/jobs", user)
        assert status == 200, jobs
        assert [job["metadata"]["namespace"] for job in jobs["items"]] == [RED]
        status, page = limited.ask("/api/v1/page", user)
        assert status == 200, page
        assert [job["name"] for job in page["jobs"]] == [f"{RED}/red-runs"]
        assert page["title"] == RED
    _, nodes = limited.ask("/api/v1/nodes", "chief")
    states = [gpu["state"] for gpu in nodes["items"][0]["gpus"]]
    assert states[:2] == ["in use", "in use"]
    assert BLUE not in str(nodes)
    status, told = limited.suppose("chief", {})
    assert status == 200, told
    assert [[job["job"] for job in each["jobs"]] for each in told["futures"]] == [
        [f"{RED}/red-runs"]
    ] * 2
    assert BLUE not in str(told)

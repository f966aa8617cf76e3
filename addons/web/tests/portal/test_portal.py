"""The page of a cluster on a real control plane: each user sees what the API server's own reviews allow, and no more."""

import asyncio
import json
import re
from pathlib import Path

import pytest
import yaml

from addons.web.tests.portal.houses import BLUE, HOME, RED, inhabited, make_token
from dljob.kube.reviews import MOST_NEW
from dljob_web.portal.gate import COOKIE, SESSION_PROOF
from tests.loops import on_loop
from tests.operator.stages import wait_until
from tests.servers.audits import read_events
from tests.servers.controlplane import ControlPlane, Wishes
from tests.sidecar.drivers import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

PATHS = [
    "/api/v1/page",
    "/api/v1/record",
    "/api/v1/usage.csv",
    "/api/v1/jobs",
    f"/api/v1/jobs/{RED}/red-runs",
    "/api/v1/queue",
    "/api/v1/nodes",
    "/api/v1/policies",
]


@pytest.mark.story
def test_without_a_token_or_without_rights_nothing_is_seen(house):
    status, page = house.ask("/", "")
    assert status == 200
    assert "red-runs" not in page
    for path in PATHS:
        for headers in ({}, {"Authorization": "Bearer nonsense"}):
            status, told = house.ask(path, "", **headers)
            assert (status, set(told)) == (401, {"error"}), path
        status, told = house.ask(path, "stranger")
        assert status == 403, path
        assert "RoleBinding" in told["error"]
        assert "red" not in json.dumps(told)


@pytest.mark.story
def test_a_user_sees_jobs_of_the_own_namespace_and_no_word_of_others(house):
    status, jobs = house.ask("/api/v1/jobs", "red")
    assert status == 200
    assert [job["metadata"]["namespace"] for job in jobs["items"]] == [RED]
    status, told = house.ask(f"/api/v1/jobs/{RED}/red-runs", "red")
    assert (status, told["job"]["metadata"]["name"]) == (200, "red-runs")
    theirs = f"{BLUE}/blue-runs"
    for hidden in (theirs, f"{RED}/%2E", f"{RED}/%2E%2E", f"{RED}/..%2F{theirs}"):
        assert house.ask(f"/api/v1/jobs/{hidden}", "red")[0] == 404, hidden
    for path in ("page", "record", "usage.csv", "jobs", "queue", "nodes"):
        status, told = house.ask(f"/api/v1/{path}", "red")
        assert status == 200, path
        words = set(re.findall(r"[\w-]+", json.dumps(told)))
        assert not words & {"blue-runs", BLUE}, path


def states(house, user):
    [node] = house.ask("/api/v1/nodes", user)[1]["items"]
    return {gpu["index"]: gpu["state"] for gpu in node["gpus"]}


def test_by_the_right_to_list_nodes_other_jobs_are_blocks_without_a_word_on_them(house):
    assert states(house, "red") == {0: "in use", 1: "in use"}
    assert states(house, "blue") == {0: "held", 1: "held", 2: "in use", 3: "free"}
    assert states(house, "chief") == {0: "in use", 1: "in use", 2: "in use", 3: "free"}
    _, page = house.ask("/api/v1/page", "chief")
    assert {job["name"] for job in page["jobs"]} == {f"{RED}/red-runs", f"{BLUE}/blue-runs"}
    _, page = house.ask("/api/v1/page", "blue")
    first, second, mine, free = page["nodes"][0]["lanes"]
    assert first["others"] == second["others"] != []
    assert mine["others"] == free["others"] == first["spans"] == free["spans"] == []
    sums = page["sums"]
    assert sums["held_by_others"] == pytest.approx(2 * sums["trained"], rel=0.1)
    assert sums["idle"] > 0
    assert any("may not see" in sentence for sentence in page["missing"])
    # An option of a command is no remedy for a user who looks at a page.
    assert any("store.type in the chart" in sentence for sentence in page["missing"])
    assert not any("--store" in sentence for sentence in page["missing"])


def test_a_name_that_is_not_the_servers_is_refused(house):
    assert house.ask("/", "", Host="evil.example.com")[0] == 403
    assert house.ask("/api/v1/page", "chief", Host="evil.example.com")[0] == 403
    assert house.ask("/api/v1/page", "chief", Host="gpus.example.com")[0] == 200


@pytest.mark.story
@on_loop
async def test_a_session_keeps_the_token_out_of_the_browser_and_ends_when_the_user_goes(house):
    token = make_token(house.api, "red")
    async with house.session() as browser:
        async with browser.post(
            "/api/v1/session", headers={"Authorization": f"Bearer {token}"}
        ) as answer:
            assert answer.status == 200
            [set_cookie] = answer.headers.getall("Set-Cookie")
            proof = (await answer.json())["proof"]
        assert token not in set_cookie
        for word in ("HttpOnly", "Secure", "SameSite=Strict", "Path=/"):
            assert word in set_cookie
        cookie = set_cookie.partition(";")[0]
        assert cookie.startswith(f"{COOKIE}=")
        # A browser sends the cookie to the servers of others on this host as well.
        async with browser.get("/api/v1/jobs", headers={"Cookie": cookie}) as answer:
            assert answer.status == 401
        async with browser.delete("/api/v1/session", headers={"Cookie": cookie}) as answer:
            assert answer.status == 200, "the browser forgets the cookie, and the session goes on"
        sent = {"Cookie": cookie, SESSION_PROOF: proof}
        async with browser.get("/api/v1/jobs", headers=sent) as answer:
            assert (answer.status, len((await answer.json())["items"])) == (200, 1)
        # A page of another server can neither end it nor begin one.
        foreign = {**sent, "Origin": "http://evil.example.com"}
        async with browser.delete("/api/v1/session", headers=foreign) as answer:
            assert answer.status == 403
        async with browser.get("/api/v1/jobs", headers=sent) as answer:
            assert answer.status == 200
        async with browser.delete("/api/v1/session", headers=sent) as answer:
            assert answer.status == 200
        async with browser.get("/api/v1/jobs", headers=sent) as answer:
            assert answer.status == 401


WEB = f"system:serviceaccount:{HOME}:dljob-web"
POLICY = {
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "users": [WEB]}, {"level": "None"}],
}


def granted() -> set[tuple[str, str]]:
    text = Path(ROOT / "manifests" / "web" / "rbac.yaml").read_text(encoding="utf-8")
    return {
        (verb, resource)
        for document in yaml.safe_load_all(text)
        # Not the Role of users who forward a port.
        if document["metadata"]["name"] == "dljob-web"
        for rule in document.get("rules", ())
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


def used(log: Path) -> set[tuple[str, str]]:
    """
    Return the rights that the audit log shows, and hold that each of their requests was allowed.
    """
    rights = set()
    for event in read_events(log):
        assert event["user"]["username"] == WEB
        reference = event.get("objectRef")
        if reference is None or "resource" not in reference:
            continue
        assert event["annotations"]["authorization.k8s.io/decision"] == "allow", event["requestURI"]
        rights.add((event["verb"], reference["resource"]))
    return rights


def test_server_needs_exactly_its_rights(tmp_path):
    wishes = Wishes(audit_policy=POLICY, scheduler=None)
    with ControlPlane(tmp_path / "plane", wishes) as plane, inhabited(plane, tmp_path) as house:
        for path in ("page", "nodes", f"jobs/{RED}/red-runs"):
            house.ask(f"/api/v1/{path}", "chief")
        house.suppose("chief", {})
        # The log is written a moment later.
        wait_until(
            lambda: used(plane.audit_log) == granted(),
            lambda: f"either unused or not granted: {used(plane.audit_log) ^ granted()}",
        )


def test_a_token_for_another_audience_is_none(house):
    path = f"/api/v1/namespaces/{HOME}/serviceaccounts/chief/token"
    spec = {"audiences": ["vault"], "expirationSeconds": 3600}
    token = house.api.post(path, {"spec": spec})["status"]["token"]
    assert house.ask("/api/v1/page", "", Authorization=f"Bearer {token}")[0] == 401


def test_tokens_that_are_made_up_hold_back_no_user(house):
    assert house.ask("/api/v1/page", "red")[0] == 200

    async def story():
        async with house.session() as session:

            async def guess(number):
                headers = {"Authorization": f"Bearer guess-{number}"}
                async with session.get("/api/v1/page", headers=headers) as answer:
                    return answer.status

            statuses = await asyncio.gather(*(guess(number) for number in range(3 * MOST_NEW)))
            # How many are held back depends on the machine.
            assert set(statuses) <= {401, 429}

    asyncio.run(story())
    assert house.ask("/api/v1/page", "red")[0] == 200


async def session_of(answer):
    """Return the headers of a session that a login has begun."""
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    return {"Cookie": cookie, SESSION_PROOF: (await answer.json())["proof"]}


def test_a_token_that_is_no_longer_valid_ends_its_session(house):
    house.api.post(f"/api/v1/namespaces/{HOME}/serviceaccounts", {"metadata": {"name": "leaves"}})
    token = make_token(house.api, "leaves")

    async def ask(sent):
        async with (
            house.session() as session,
            session.get("/api/v1/policies", headers=sent) as answer,
        ):
            return answer.status

    async def log_in():
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            house.session() as session,
            session.post("/api/v1/session", headers=headers) as answer,
        ):
            # Tokens that were made up before make those wait that are new.
            return answer.status != 429 and await session_of(answer)

    cookie = wait_until(lambda: asyncio.run(log_in()))
    assert asyncio.run(ask(cookie)) == 403, "known, without rights"
    house.api.delete(f"/api/v1/namespaces/{HOME}/serviceaccounts/leaves")
    wait_until(lambda: asyncio.run(ask(cookie)) == 401)


@on_loop
async def test_a_login_ends_the_session_before(house):
    async with house.session() as browser:

        async def log_in(user, **headers):
            given = {"Authorization": f"Bearer {house.tokens[user]}", **headers}
            async with browser.post("/api/v1/session", headers=given) as answer:
                return await session_of(answer)

        async def ask(sent):
            async with browser.get("/api/v1/policies", headers=sent) as answer:
                return answer.status

        first = await log_in("red")
        assert await ask(first) == 200
        second = await log_in("blue", **first)
        assert (await ask(first), await ask(second)) == (401, 200)

"""Each user sees of each object what ``kubectl auth can-i`` says; words of jobs that are attacks stay text."""

import base64
import itertools
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from addons.web.tests.devtools import opened
from addons.web.tests.portal.houses import BLUE, HOME, RED
from addons.web.tests.portal.test_portal_browser import TEXT, log_in
from addons.web.tests.records import SCRIPT
from dljob_wire.harmless import HARMFUL
from tests.loops import on_loop
from tests.operator.manifests import make_manifest, path_of
from tests.operator.stages import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

AT = "2026-01-31T08:00:00Z"
NUMBERS = {RED: 73_417_341, BLUE: 84_528_452}
"""Iterations of the jobs that wait; no other number has these digits."""
PATHS = ("page", "record", "usage.csv", "jobs", "queue", "nodes", "policies", "what-if")
SHOWS_JOBS = ("page", "record", "jobs")
ATTACK = f"{SCRIPT}\x1b[2J\x9b31m\u202e\u2028\x07"


def reason_of(namespace: str) -> str:
    return f"because-{namespace}-said"


@pytest.fixture
def hostile(house):
    """A job in each namespace that waits, with an attack in each field that takes one."""
    for namespace, number in NUMBERS.items():
        name = f"{namespace}-waits"
        house.api.post(path_of(namespace), make_manifest(name))
        told = f"{reason_of(namespace)} {ATTACK}"
        node = {"name": f"node {ATTACK}", "gpuIds": [0]}
        status = {
            "phase": "Queued",
            "submittedAt": AT,
            "message": told,
            "queue": {"ahead": 0, "unknownBecause": told},
            "conditions": [
                {
                    "type": "Informed",
                    "status": "False",
                    "reason": "Attacked",
                    "message": told,
                    "lastTransitionTime": AT,
                }
            ],
            "progress": {"iteration": number, "iterationsTotal": 2 * number},
            "history": [
                *(
                    {"at": AT, "kind": kind, "generation": 1, "message": told, "gpus": 1}
                    | {"nodes": [node], "gpuType": ATTACK[:60]}
                    for kind in ("start", "stop")
                )
            ],
        }
        house.api.merge(path_of(namespace, name, "status"), {"status": status})
    names = [f"{namespace}/{namespace}-waits" for namespace in NUMBERS]
    wait_until(lambda: is_shown(house, *names))
    yield house
    for namespace in NUMBERS:
        house.api.delete(path_of(namespace, f"{namespace}-waits"))
    # Other tests find the page as it was, with each set of rights.
    answers = [*itertools.product(("page", "jobs", "queue"), house.tokens)]
    wait_until(lambda: not any("-waits" in read_text(house, *answer) for answer in answers))


def read_text(house, path: str, user: str = "chief") -> str:
    return json.dumps(house.ask(f"/api/v1/{path}", user)[1])


def is_shown(house, *names: str) -> bool:
    told = [read_text(house, path) for path in ("page", "queue")]
    return all(name in each for name in names for each in told)


def can_list(house, user: str, resource: str, namespace: str = "") -> bool:
    """Ask ``kubectl auth can-i``."""
    account = f"system:serviceaccount:{HOME}:{user}"
    where = ("-n", namespace) if namespace else ("-A",)
    words = ("auth", "can-i", "list", resource, *where, "--as", account)
    said = house.plane.kubectl.try_to(*words).out.strip()
    assert said in ("yes", "no"), said
    return bool(said == "yes")


def check_answer(told: Any, *, seen: bool, namespace: str, must_name: bool) -> None:
    """Hold that an answer has all words about the jobs of a namespace, or none."""
    text = json.dumps(told)
    if seen:
        assert f"{namespace}-waits" in text or not must_name
        return
    words = (namespace, f"{namespace.removeprefix('team-')}-runs", reason_of(namespace))
    for word in (*words, str(NUMBERS[namespace])):
        assert not re.search(rf"\b{word}\b", text), word


def check_harmless(told: Any) -> None:
    # A record for programs has the words as they are, escaped as JSON.
    plain = [told] if isinstance(told, str) else list(texts_of(told))
    found = [each for each in plain if HARMFUL.search(re.sub(r"\r?\n", "", each))]
    assert not found, found


def texts_of(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        yield from (text for item in document.items() for each in item for text in texts_of(each))
    elif isinstance(document, list):
        yield from (text for each in document for text in texts_of(each))


@pytest.mark.story
def test_each_user_sees_objects_as_can_i_says(hostile):
    seen = set()
    for user in hostile.tokens:
        nodes = can_list(hostile, user, "nodes")
        allowed = {each: can_list(hostile, user, "dljobs", each) for each in NUMBERS}
        seen.add((nodes, *allowed.values()))
        answers = {path: hostile.ask(f"/api/v1/{path}", user) for path in PATHS}
        for namespace, name in itertools.product(NUMBERS, ("runs", "waits")):
            job = f"{namespace if name == 'waits' else namespace.removeprefix('team-')}-{name}"
            path = f"jobs/{namespace}/{job}"
            answer = hostile.ask(f"/api/v1/{path}", user)
            if allowed[namespace]:
                assert answer[0] == 200, (user, path)
                answers[path] = answer
                continue
            # As for a job that is not there.
            status, told = hostile.ask(f"/api/v1/jobs/{namespace}/absent", user)
            error = told["error"].replace("absent", job)
            assert answer == (status, {"error": error}), (user, path)
            assert status == (404 if nodes or any(allowed.values()) else 403)
        for (path, (_, told)), namespace in itertools.product(answers.items(), NUMBERS):
            check_harmless(told)
            must_name = path in SHOWS_JOBS
            check_answer(told, seen=allowed[namespace], namespace=namespace, must_name=must_name)
        status, told = answers["nodes"]
        if status == 200:
            [gpus] = [each["gpus"] for each in told["items"]] or [[]]
            held = 2 * allowed[RED] + allowed[BLUE]
            assert len(gpus) == (4 if nodes else held), user
            assert sum("job" in gpu for gpu in gpus) == held, user
    # The users differ: nothing, a team each, all jobs, and all jobs with all nodes.
    assert len(seen) == 5, seen


def test_a_token_that_the_api_server_does_not_accept_shows_nothing(hostile):
    token = hostile.tokens["chief"]
    key = load_pem_private_key(hostile.plane.admin.with_name("accounts.key").read_bytes(), None)
    path = f"/api/v1/namespaces/{HOME}/serviceaccounts/chief/token"
    other = {"spec": {"audiences": ["vault"], "expirationSeconds": 3600}}
    past = {"exp": int(time.time()) - 60, "iat": int(time.time()) - 3660}
    tokens = {
        "none": "",
        "accepted": sign(token, key),
        "foreign": sign(token, ec.generate_private_key(ec.SECP256R1())),
        "expired": sign(token, key, nbf=past["iat"], **past),
        "for another audience": hostile.api.post(path, other)["status"]["token"],
    }
    for kind, each in tokens.items():
        headers = {"Authorization": f"Bearer {each}"} if each else {}
        for view in (*PATHS, f"jobs/{RED}/red-runs"):
            status, told = hostile.ask(f"/api/v1/{view}", "", **headers)
            if kind == "accepted":
                assert status == 200, view
            else:
                assert (status, set(told)) == (401, {"error"}), (kind, view)
                assert "red" not in json.dumps(told)


def sign(token: str, key: Any, **claims: int) -> str:
    """Sign the claims of a token again, with some changed."""
    head, body, _ = token.split(".")
    given = json.loads(base64.urlsafe_b64decode(body + "=="))
    signed = f"{head}.{encode(json.dumps(given | claims).encode())}"
    signature = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{encode(b''.join(each.to_bytes(32) for each in signature))}"


def encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


@on_loop
async def test_nothing_runs_and_nothing_is_shown_raw_in_a_browser(hostile, chromium, tmp_path):
    address = f"{hostile.address}/#view=lanes&gpu=0&at=1"
    async with opened(chromium, address, tmp_path / "profile") as page:
        await log_in(page, hostile.tokens["chief"])
        await page.until("document.querySelector('canvas') !== null")
        shown = []
        for place in (
            *({"view": view} for view in ("lanes", "now", "jobs", "usage", "whatif")),
            *({"view": "jobs", "job": f"{each}/{each}-waits"} for each in NUMBERS),
        ):
            await page.evaluate(f"location.hash = new URLSearchParams({json.dumps(place)})")
            sign_of_life = (
                "document.querySelectorAll('main h2, main table, canvas, form').length > 0"
            )
            await page.until(sign_of_life)
            if "job" in place:
                await page.until(f"{TEXT}.includes('Now: ')")
            if place["view"] == "now":
                await page.until(f"{TEXT}.includes('wait')")
            shown.append(await page.evaluate(f"{TEXT} + document.title"))
            made = "document.querySelectorAll('#page :is(script, img, u, b:not(.entry b))').length"
            assert await page.evaluate(made) == 0, place
            titles = "[...document.querySelectorAll('#page *')].flatMap((each) => [each.title, each.ariaLabel]).join()"
            shown.append(await page.evaluate(titles))
        text = "\n".join(shown)
        assert "document.title='stolen'" in text
        assert reason_of(RED) in text
        raw = HARMFUL.search(text.replace("\n", ""))
        assert raw is None, text[max(0, raw.start() - 80) : raw.end()]
        assert await page.evaluate("document.title") != "stolen"
        # The browser complains of answers that are refusals: before the login, and of logs.
        others = [each for each in page.complaints if "/api/v1/logs/" not in each]
        assert all("401" in each for each in others), others

"""
The what-if questions on the page of a cluster on a real control plane: which users get an answer,
and when a game ends.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from dataclasses import replace

import pytest

from tests.operator.stages import PATIENCE_S, wait_until
from tests.portal.houses import BLUE, HOME, RED, serve
from tests.servers.processes import Guard
from tests.sidecar.drivers import find_children, read_proc, read_state

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

BOTH = {f"{RED}/red-runs", f"{BLUE}/blue-runs"}
QUESTION = {"job": f"{RED}/red-runs", "most": 1, "another": f"{BLUE}/blue-runs"}
PLAYS = b"supposing"
"""In the command line of each process that plays."""
SCRIPT = "</script><script>alert(1)</script>\x1b[31m"


def games_of(house):
    return find_children(house.server.pid)


def stop_game(house, before, asked):
    """Stop the process that answers, and return it; None where it has ended first, as it may on a machine that stalls."""

    def begun():
        # The server waits until its child has begun the program, and would wait for a stopped one for ever.
        return {each for each in games_of(house) - before if PLAYS in read_proc(each, "cmdline")}

    wait_until(lambda: asked.done() or begun())
    new = begun()
    if not new:
        return None
    [game] = new
    with contextlib.suppress(ProcessLookupError):
        os.kill(game, signal.SIGSTOP)
    # The signal takes a moment, in which the process may still end.
    wait_until(lambda: read_state(game) in "TZX")
    return game if read_state(game) == "T" else None


@pytest.mark.story
def test_a_user_who_sees_everything_gets_two_futures_of_all_jobs(house):
    assert house.ask("/api/v1/what-if", "chief") == (200, {"allowed": True, "reason": ""})
    status, told = house.suppose("chief", QUESTION)
    assert status == 200, told
    now, then = told["futures"]
    assert {job["job"] for job in now["jobs"]} == BOTH
    assert {job["job"] for job in then["jobs"]} == BOTH | {f"{BLUE}/blue-runs-2"}
    gpus = {job["job"]: job["gpus"] for job in now["jobs"]}
    assert gpus[f"{RED}/red-runs"] == 2
    gpus = {job["job"]: job["gpus"] for job in then["jobs"]}
    assert gpus[f"{RED}/red-runs"] == 1
    assert any("profiles cannot be read" in note for note in told["notes"])
    # All of that was play.
    _, jobs = house.ask("/api/v1/jobs", "chief")
    assert len(jobs["items"]) == 2


def test_a_user_who_sees_a_part_is_refused_with_the_remedy_and_no_word_of_others(house):
    questions = [
        {},
        {"job": f"{RED}/red-runs", "most": 1},
        {"job": f"{BLUE}/blue-runs", "most": 1},
        {"job": f"{BLUE}/none", "most": 1},
        {"another": f"{BLUE}/blue-runs"},
        {"cordon": "node-1"},
        {"policy": "none"},
        b"{",
    ]
    for user, missing in (("blue", "DLJobs in all namespaces;"), ("planner", "nodes;")):
        status, told = house.ask("/api/v1/what-if", user)
        assert (status, told["allowed"]) == (200, False)
        assert f"you may not list {missing}" in told["reason"]
        assert "ClusterRoleBinding" in told["reason"]
        answers = [house.suppose(user, each) for each in questions]
        # The answer is the same for jobs that exist and for those that do not.
        assert answers == [(403, {"error": told["reason"]})] * len(questions)


def test_without_a_token_or_from_the_page_of_another_server_there_is_no_answer(house):
    assert house.suppose("stranger", {})[0] == 403
    assert house.suppose("chief", {}, Authorization="Bearer nonsense")[0] == 401
    status, told = house.suppose("chief", {}, Origin="http://evil.example.com")
    assert (status, told["error"]) == (403, "this request comes from a page of another server")
    assert house.suppose("chief", {}, Host="evil.example.com")[0] == 403


HOSTILE = [
    ({"job": SCRIPT, "most": 1}, "job: there is no job </script>"),
    ({"cordon": SCRIPT}, "cordon: there is no node </script>"),
    ({"policy": "/etc/passwd:Class"}, "policy: "),
    ({SCRIPT: 1}, "</script>"),
    (b"[" * 50_000, "the question is no JSON"),
    (b"[]", "the question is no JSON object"),
]


def test_hostile_words_come_back_as_json_and_without_what_a_terminal_obeys(house):
    for question, problem in HOSTILE:
        status, told = house.suppose("chief", question)
        assert status == 400, told
        assert told["error"].startswith(problem)
        assert "\x1b" not in told["error"]
    assert house.suppose("chief", {"job": "x" * 100_000})[0] == 413, "a question that is too large"


@contextlib.asynccontextmanager
async def held(house, user):
    """Ask, and stop the process that answers, so that it never does; yields the request and that process."""
    async with house.session() as session:
        headers = {"Authorization": f"Bearer {house.tokens[user]}"}
        end = time.monotonic() + PATIENCE_S
        while True:
            before = games_of(house)
            asked = asyncio.create_task(
                session.post("/api/v1/what-if", headers=headers, data=json.dumps(QUESTION))
            )
            game = await asyncio.to_thread(stop_game, house, before, asked)
            if game is not None:
                break
            # It ended first, was still busy with the question before, or had no time left: none is a fault.
            answer = await asked
            assert answer.status in (200, 429, 504), await answer.text()
            assert time.monotonic() < end, "each process ended before it could be stopped"
        try:
            yield asked, game
        finally:
            asked.cancel()
            await asyncio.wait({asked})


def test_a_user_has_one_question_at_a_time_and_it_ends_when_the_viewer_leaves(house):
    async def story():
        async with held(house, "chief") as (_, first):
            status, told = await asyncio.to_thread(house.suppose, "chief", {})
            assert (status, told["error"].partition(";")[0]) == (
                429,
                "another question of yours is being answered",
            )
            async with held(house, "deputy") as (_, second):
                # There is no room for a third one, but others look.
                status, told = await asyncio.to_thread(house.suppose, "chief", {})
                assert (status, told["error"].partition(";")[0]) == (
                    429,
                    "another question is being answered",
                )
                assert (await asyncio.to_thread(house.ask, "/api/v1/page", "red"))[0] == 200
                assert games_of(house) == {first, second}
            # A process that is stopped does not end by itself.
            await asyncio.to_thread(wait_until, lambda: games_of(house) == {first})
        await asyncio.to_thread(wait_until, lambda: not games_of(house))

    asyncio.run(story())
    wait_until(lambda: house.suppose("chief", {})[0] == 200)


def test_a_question_that_takes_too_long_is_given_up_with_the_remedy(house, tmp_path):
    kubeconfig = house.plane.kubeconfig_for_service_account(HOME, "dljob-web")

    async def story(brief):
        async with held(brief, "chief") as (asked, _):
            answer = await asked
            told = await answer.json()
            assert answer.status == 504
            assert told["error"].startswith(
                "the answer takes longer than 2 s here; ask with kubectl"
            )
            assert not games_of(brief)

    with Guard() as guard:
        address, server = serve(guard, kubeconfig, tmp_path, "--what-if-seconds=2")
        asyncio.run(story(replace(house, address=address, server=server)))

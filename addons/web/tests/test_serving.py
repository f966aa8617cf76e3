"""
The live page's server, without a browser: which requests are answered, and how often the source is
asked.
"""

import asyncio
import itertools
import threading
import time

import pytest

from addons.web.tests.records import SCRIPT, hostile_record
from addons.web.tests.served import FUTURES, LIMIT_S, QUESTION, TOKEN, Told, served
from dljob.core.recording.record import decode, encode
from dljob_web.answering import SourceError
from dljob_web.document import policy
from dljob_web.page_data import make_page_data
from dljob_web.serving import MOST_EXPLAINED, MOST_PLANNED, Asking

GUARDED = (
    *("api/v1/page", "api/v1/record", "api/v1/usage.csv", "api/v1/jobs", "api/v1/jobs/evil"),
    *("api/v1/queue", "api/v1/nodes", "api/v1/logs/evil", "api/v1/none", "api/"),
)

SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def run(look, source=None, **options):
    async def go():
        async with served(source or Told(), **options) as ask:
            await look(ask)

    asyncio.run(go())


def asked(test):
    source = Told()
    return lambda: run(lambda ask: test(ask, source), source)


@asked
async def test_missing_token_gets_nothing(ask, source):
    wrong = ("", TOKEN, f"Bearer {TOKEN}x", "Bearer ", f"Basic {TOKEN}", f"bearer{TOKEN}")
    for path, given in itertools.product(GUARDED, (*wrong, "Bearer \xfc")):
        answer = await ask(path, Authorization=given)
        assert answer.status == 401, (path, given)
        assert answer.json["error"].startswith("the token is missing or wrong")
        assert "evil" not in answer.text + str(answer.headers)
    assert source.asked == 0


@asked
async def test_the_page_itself_has_nothing_in_it(ask, source):
    answer = await ask("", Authorization="")
    assert answer.status == 200
    assert "evil" not in answer.text
    assert TOKEN not in answer.text
    assert 'id="data"' not in answer.text


@asked
async def test_every_answer_has_strict_headers(ask, source):
    for path, token in itertools.product(("", "api/v1/page", "x"), ("", f"Bearer {TOKEN}")):
        headers = (await ask(path, Authorization=token)).headers
        assert SAFE.items() <= dict(headers).items()
        allowed = headers["Content-Security-Policy"]
        assert allowed == f"{policy(live=True)}; frame-ancestors 'none'"
        assert "connect-src 'self'" in allowed
        assert "unsafe" not in allowed
        assert "Server" not in headers
        assert not [name for name in headers if name.startswith("Access-Control")]


@asked
async def test_it_is_asked_by_any_address_of_the_loopback_and_by_no_name_that_others_can_choose(
    ask, source
):
    foreign = ["evil.example:80", "127.0.0.1.evil.example", "localhost.", "[::1", "192.0.2.1"]
    # So that a tunnel leads to it.
    for host in ("127.0.0.1", "127.0.0.1:9", "localhost:9000", "LOCALHOST", "[::1]:1"):
        assert (await ask("api/v1/page", Host=host)).status == 200, host
    for host in (*foreign, "a b"):
        for path in ("", "api/v1/page"):
            answer = await ask(path, Host=host)
            assert answer.status == 403, host
            assert "asked by its address" in answer.json["error"]


def test_where_other_machines_reach_it_its_address_and_its_name_are_right():
    async def look(ask):
        for host in ("192.0.2.1:80", "gpu-7.lan", "GPU-7.lan:80"):
            assert (await ask("api/v1/page", Host=host)).status == 200
        assert (await ask("api/v1/page", Host="gpu-8.lan")).status == 403

    run(look, loopback=False, names=("gpu-7.lan",))


@asked
async def test_page_data_equals_the_file(ask, source):
    answer = await ask("api/v1/page")
    assert answer.json["jobs"][0]["name"] == SCRIPT
    data = make_page_data(hostile_record())
    assert answer.json["sums"]["csv"] == data.sums.csv
    assert answer.json["length"] == data.length
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert (await ask("api/v1/usage.csv")).text == data.sums.csv
    plain = await ask("api/v1/page", Accept_Encoding="identity")
    assert "Content-Encoding" not in plain.headers
    assert plain.json == answer.json


@asked
async def test_record_equals_its_file(ask, source):
    whole = await ask("api/v1/record")
    assert whole.text == "".join(encode(hostile_record()))
    part = decode((await ask("api/v1/record?since=1050")).text.splitlines(keepends=True), "answer")
    assert part.header.since == 1050
    # The lines before that time show the state of that time.
    assert 0 < len(part.lines) < len(hostile_record().lines)
    for wrong in ("x", "-1", "nan", "inf", ""):
        answer = await ask(f"api/v1/record?since={wrong}")
        assert answer.status == 400
        assert answer.json["error"].startswith(f"since: {wrong!r} is no time")


@asked
async def test_unchanged_data_is_not_sent_again(ask, source):
    tag = (await ask("api/v1/page")).headers["ETag"]
    # Time passes, and a picture of it would be the same.
    source.go_on(0.1)
    same = await ask("api/v1/page", If_None_Match=tag)
    assert (same.status, same.text) == (304, "")
    source.go_on(50.0)
    while (newer := await ask("api/v1/page", If_None_Match=tag)).status == 304:
        pass
    assert newer.status == 200
    assert newer.json["length"] > make_page_data(hostile_record()).length
    assert newer.headers["ETag"] != tag


def test_fifty_viewers_cost_one_look():
    source = Told()

    async def look(ask):
        answers = await asyncio.gather(*(ask("api/v1/page") for _ in range(50)))
        assert {answer.status for answer in answers} == {200}
        assert source.asked == 1

    run(look, source, every_s=3600.0)


@asked
async def test_absent_source_is_reported_and_retried(ask, source):
    source.problem = SourceError("no dljob up answers; start one")
    answer = await ask("api/v1/page")
    assert (answer.status, answer.json) == (503, {"error": "no dljob up answers; start one"})
    source.problem = None
    while (await ask("api/v1/page")).status != 200:
        pass


@asked
async def test_missing_data_is_refused_in_a_sentence(ask, source):
    answer = await ask("api/v1/none")
    assert (answer.status, answer.json) == (404, {"error": "GET /api/v1/none: Not Found"})
    refused = await ask.post("api/v1/page", {})
    assert refused.status == 405
    assert refused.headers["Allow"] == "GET,HEAD"


def test_one_question_is_answered_at_a_time():
    begun, may_end = threading.Event(), threading.Event()

    class Slow(Told):
        def what_if(self, question, *, is_gone):
            begun.set()
            assert may_end.wait(LIMIT_S)
            return super().what_if(question, is_gone=is_gone)

    async def look(ask):
        first = asyncio.create_task(ask.post("api/v1/what-if", QUESTION))
        assert await asyncio.to_thread(begun.wait, LIMIT_S)
        refused = await ask.post("api/v1/what-if", QUESTION)
        assert refused.status == 429
        assert "another question of yours is being answered" in refused.json["error"]
        # Others look meanwhile.
        assert (await ask("api/v1/page")).status == 200
        may_end.set()
        assert (await first).json == FUTURES

    run(look, Slow())


def test_the_play_learns_that_its_viewer_has_left():
    begun, ended = threading.Event(), threading.Event()

    class Endless(Told):
        def what_if(self, question, *, is_gone):
            begun.set()
            while not is_gone():
                time.sleep(0.01)
            ended.set()
            return FUTURES

    async def look(ask):
        asked = asyncio.create_task(ask.post("api/v1/what-if", QUESTION))
        assert await asyncio.to_thread(begun.wait, LIMIT_S)
        asked.cancel()
        assert await asyncio.to_thread(ended.wait, LIMIT_S)

    run(look, Endless())


def test_a_viewer_has_one_turn_and_all_of_them_a_few():
    asking = Asking(most=2)
    with asking.turn("ann"):
        with pytest.raises(SourceError, match="another question of yours"), asking.turn("ann"):
            pass
        with asking.turn("bob"):
            with pytest.raises(SourceError, match="another question is being") as caught:
                asking.turn("eve").__enter__()
            assert caught.value.status == 429
        with asking.turn("eve"):
            pass
    with asking.turn("ann"):
        pass


@asked
async def test_a_question_is_json(ask, source):
    assert (await ask.post("api/v1/what-if", {})).json == {"error": "it is {}"}
    assert (await ask.send("api/v1/what-if", b"{")).json == {"error": "the question is no JSON"}
    # Nested deeper than a reader follows, and bytes that are no text.
    for wrong in (b"[" * 60_000, b'"\xff"', b"\x80"):
        refused = await ask.send("api/v1/what-if", wrong)
        assert (refused.status, refused.json["error"]) == (400, "the question is no JSON")
    assert (await ask.send("api/v1/what-if", b" " * 100_000)).status == 413


@asked
async def test_withheld_futures_have_a_reason(ask, source):
    assert (await ask("api/v1/what-if")).json == {"allowed": True, "reason": ""}
    source.withheld = "you may not; ask an administrator"
    told = await ask("api/v1/what-if")
    assert told.json == {"allowed": False, "reason": source.withheld}
    refused = await ask.post("api/v1/what-if", QUESTION)
    assert (refused.status, refused.json) == (403, {"error": source.withheld})


@asked
async def test_a_plan_is_for_a_job_a_list_or_the_items_of_one(ask, source):
    one, other = ({"metadata": {"name": name}} for name in "ab")
    right: tuple[tuple[object, list[str]], ...] = (
        (one, ["a"]),
        ([one, other], ["a", "b"]),
        ({"kind": "DLJobList", "items": [other]}, ["b"]),
    )
    for body, names in right:
        told = (await ask.post("api/v1/plan", body)).json
        assert [effect["job"] for effect in told["items"]] == names
    wrong: tuple[object, ...] = ([], {"items": []}, [one, 3], "a", None)
    for body in wrong:
        refused = await ask.post("api/v1/plan", body)
        assert refused.status == 400
        assert refused.json["error"].startswith("the request has no DLJob; send one")
    refused = await ask.post("api/v1/plan", [one] * (MOST_PLANNED + 1))
    assert (refused.status, "plan at most 20" in refused.json["error"]) == (400, True)


@asked
async def test_problems_of_documents_come_with_their_fields(ask, source):
    problem = {"document": 0, "path": "spec.gpus", "message": "spec.gpus: give options"}

    def plan(documents, token):
        raise SourceError("spec.gpus: give options", status=400, problems=[problem])

    source.plan = plan
    refused = await ask.post("api/v1/plan", {"metadata": {}})
    assert refused.status == 400
    assert refused.json == {"error": "spec.gpus: give options", "problems": [problem]}


@asked
async def test_a_log_is_of_the_node_that_is_named(ask, source):
    source.log = [SCRIPT]
    told = (await ask("api/v1/logs/team/a?node=n2")).json
    assert (told["job"], told["node"], told["lines"]) == ("team/a", "n2", [SCRIPT])
    source.problem = SourceError("red may not get pods/log", status=403)
    assert (await ask("api/v1/logs/log")).status == 403


@asked
async def test_jobs_queue_and_gpus_equal_the_command(ask, source):
    source.jobs = [
        {"metadata": {"name": "a"}, "status": {"queue": {"ahead": 0}, "phase": "Queued"}}
    ]
    source.nodes = [{"name": "node-0", "gpuType": "", "gpus": [{"index": 0, "state": "free"}]}]
    assert (await ask("api/v1/jobs")).json == {"items": source.jobs}
    assert (await ask("api/v1/nodes")).json == {"items": source.nodes}
    assert [item["job"] for item in (await ask("api/v1/queue")).json["items"]] == ["a"]
    assert (await ask("api/v1/jobs/a")).json["message"] == "waits"
    missing = await ask("api/v1/jobs/team/b")
    assert (missing.status, missing.json) == (404, {"error": "team/b: there is no such job"})


def test_many_questions_about_jobs_take_few_threads_and_few_answers_are_kept(monkeypatch):
    monkeypatch.setattr("dljob_web.serving.MOST_KEPT", 12)

    class Slow(Told):
        def __init__(self):
            super().__init__()
            self.counting = threading.Lock()
            self.now = self.most = 0
            self.full = threading.Event()

        def explain(self, name):
            with self.counting:
                self.now += 1
                self.asked += 1
                self.most = max(self.most, self.now)
                if self.now == MOST_EXPLAINED:
                    self.full.set()
            assert self.full.wait(LIMIT_S)
            # Long enough for one more to come in, if it may.
            threading.Event().wait(0.05)
            with self.counting:
                self.now -= 1
            return {"name": name}

    source = Slow()

    async def look(ask):
        answers = await asyncio.gather(*(ask(f"api/v1/jobs/{number}") for number in range(12)))
        assert {answer.status for answer in answers} == {200}
        assert source.most == MOST_EXPLAINED
        for number in (*range(13), 12):
            await ask(f"api/v1/jobs/{number}")
        assert source.asked == 13
        await ask("api/v1/jobs/0")
        assert source.asked == 14

    run(look, source, every_s=3600.0)

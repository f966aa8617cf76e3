"""A server works on one request of a user at a time, and lists thousands of jobs in parts."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from dljob.control.sidecars.peers import Peer
from dljob.local.api import turns
from dljob.local.api.jobs import job_documents
from dljob.local.api.refusals import RefusedError
from dljob.local.api.turns import Turns
from tests.local.stages import job_document

WORK_S = 0.05


@pytest.fixture(autouse=True)
def peers(monkeypatch):
    monkeypatch.setattr(turns, "read_peer", lambda uid: Peer(1, uid, uid))


def request_of(uid):
    closing: list[None] = []
    transport = SimpleNamespace(
        get_extra_info=lambda _: uid, is_closing=lambda: bool(closing), close=closing.append
    )
    return SimpleNamespace(transport=transport)


async def work(taken, request, ended):
    async with taken.take(request):
        # As the event loop is kept busy.
        time.sleep(WORK_S)
    ended.append(request)


def test_a_user_waits_for_one_request_of_another_who_sends_many():
    many, one = [request_of(1) for _ in range(10)], request_of(2)

    async def story():
        taken = Turns()
        ended: list[SimpleNamespace] = []
        tasks = [asyncio.create_task(work(taken, each, ended)) for each in (*many, one)]
        began = time.monotonic()
        await asyncio.gather(*tasks)
        assert ended == [many[0], one, *many[1:]]
        # The pauses between its requests are for others.
        assert time.monotonic() - began >= 2 * 9 * WORK_S

    asyncio.run(story())


def test_a_request_whose_client_has_hung_up_takes_no_turn():
    first, gone = request_of(1), request_of(1)

    async def story():
        taken = Turns()
        ended: list[SimpleNamespace] = []
        tasks = [asyncio.create_task(work(taken, each, ended)) for each in (first, gone)]
        await asyncio.sleep(0)
        gone.transport.close(None)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(outcomes[1], RefusedError)
        assert ended == [first]

    asyncio.run(story())


def test_jobs_that_are_removed_while_they_are_listed_do_no_harm(up, ask, monkeypatch):
    names = [f"job-{number}" for number in range(4)]
    ask.submit(*(job_document(name) for name in names))
    gone = iter(names[2:])

    def parts(jobs):
        for job in jobs:
            yield [job]
            for each in gone:
                up.stage.registry.cancel(each, keep_checkpoints=False)
                up.stage.registry.forget(each)

    monkeypatch.setattr(job_documents, "_parts", parts)
    assert [each["metadata"]["name"] for each in ask.get("/v1/jobs")["items"]] == names[:2]

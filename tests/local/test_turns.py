"""A server works on one request of a user at a time, and lists thousands of jobs in parts."""

import asyncio
import time
from types import SimpleNamespace

from dljob.local.api.jobs import job_documents
from dljob.local.api.refusals import RefusedError
from dljob.local.api.requests import CALLER, Turns
from dljob.local.environments import Submitter
from tests.local.stages import job_document

WORK_S = 0.05


class Request(dict[object, object]):
    """A request of a user, whose client can hang up."""

    def __init__(self, uid):
        super().__init__({CALLER: Submitter("", uid, uid)})
        self.transport: SimpleNamespace | None = SimpleNamespace(is_closing=lambda: False)

    def hang_up(self):
        self.transport = None


async def work(taken, request, ended):
    async with taken.take(request):
        # As the event loop is kept busy.
        time.sleep(WORK_S)
    ended.append(request)


def test_flood_of_one_user_delays_others_by_one_request():
    many, one = [Request(1) for _ in range(10)], Request(2)

    async def story():
        taken = Turns()
        ended: list[Request] = []
        tasks = [asyncio.create_task(work(taken, each, ended)) for each in (*many, one)]
        began = time.monotonic()
        await asyncio.gather(*tasks)
        assert ended == [many[0], one, *many[1:]]
        # The pauses between its requests are for others.
        assert time.monotonic() - began >= 2 * 9 * WORK_S

    asyncio.run(story())


def test_a_request_whose_client_has_hung_up_takes_no_turn():
    first, gone = Request(1), Request(1)

    async def story():
        taken = Turns()
        ended: list[Request] = []
        tasks = [asyncio.create_task(work(taken, each, ended)) for each in (first, gone)]
        await asyncio.sleep(0)
        gone.hang_up()
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

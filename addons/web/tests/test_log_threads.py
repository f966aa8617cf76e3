"""Reads of logs from nodes that do not answer hold up nothing else."""

import asyncio
import threading

import pytest

from dljob_web.answering import SourceError
from dljob_web.log_threads import MOST_EACH, LogThreads
from dljob_web.portal import portal


def test_hanging_reads_of_one_user_leave_threads_for_others():
    async def story() -> None:
        gate = threading.Event()
        logs = LogThreads(longest_s=60.0)
        hanging = [
            asyncio.create_task(logs.read("ada", lambda: gate.wait(60.0))) for _ in range(MOST_EACH)
        ]
        await asyncio.sleep(0)
        with pytest.raises(SourceError, match="do not answer") as refused:
            await logs.read("ada", str)
        assert refused.value.status == 503
        assert await logs.read("bob", lambda: "step 1") == "step 1"
        # The loop's own threads are free.
        assert await asyncio.to_thread(lambda: "page") == "page"
        gate.set()
        assert await asyncio.gather(*hanging) == [True] * MOST_EACH
        assert await logs.read("ada", lambda: "step 2") == "step 2"

    asyncio.run(story())


def test_a_viewer_waits_for_a_node_for_a_bounded_time():
    async def story() -> None:
        gate = threading.Event()
        with pytest.raises(SourceError, match="does not answer for the output") as late:
            await LogThreads(longest_s=0.01).read("ada", lambda: gate.wait(60.0))
        gate.set()
        assert late.value.status == 504

    asyncio.run(story())


def test_the_error_of_a_read_reaches_its_viewer():
    def fail() -> None:
        raise SourceError("there is no such job", status=404)

    with pytest.raises(SourceError, match="no such job"):
        asyncio.run(LogThreads().read("ada", fail))


def test_a_page_whose_threads_all_wait_is_not_healthy(monkeypatch):
    async def story() -> list[int]:
        loop, gate = asyncio.get_running_loop(), threading.Event()
        found = [(await portal.tell_health(None)).status]  # type: ignore[arg-type]
        waiting = [loop.run_in_executor(None, gate.wait, 60.0) for _ in range(64)]
        monkeypatch.setattr(portal, "HEALTHY_S", 0.01)
        found.append((await portal.tell_health(None)).status)  # type: ignore[arg-type]
        gate.set()
        await asyncio.gather(*waiting)
        return found

    assert asyncio.run(story()) == [200, 503]

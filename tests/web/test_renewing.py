"""How soon a value is made again: after its share of work, not of waiting, and soon after a failure."""

import asyncio
import threading
import time

import pytest

from dlweb import renewing
from dlweb.renewing import SHARE, Renewed

WAIT_S = 0.6
WORK_S = 0.1


def test_waiting_is_no_work():
    def make(before):
        threading.Event().wait(WAIT_S)
        return (before or 0) + 1

    async def look():
        value = Renewed(make, every_s=0.0)
        # Less than the pause that would follow if the waiting counted as work.
        async with asyncio.timeout(WAIT_S / SHARE):
            while await value.get() < 2:
                pass

    asyncio.run(look())


def test_work_is_followed_by_a_pause(monkeypatch):
    # A machine that stalls must not outlast the pause.
    monkeypatch.setattr(renewing, "SHARE", SHARE / 100)

    def make(before):
        work()
        return (before or 0) + 1

    async def look():
        value = Renewed(make, every_s=0.0)
        assert [await value.get(), await value.get()] == [1, 1]

    asyncio.run(look())


def test_after_a_failure_it_is_made_again_soon_however_much_work_that_was():
    asked = []

    def make(_):
        asked.append(1)
        work()
        if len(asked) == 1:
            raise OSError("does not answer")
        return "here"

    async def look():
        value = Renewed(make, every_s=0.0)
        with pytest.raises(OSError, match="does not answer"):
            await value.get()
        assert await value.get() == "here"

    asyncio.run(look())


def work():
    began = time.thread_time()
    while time.thread_time() - began < WORK_S:
        pass

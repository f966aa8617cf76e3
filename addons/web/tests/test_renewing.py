"""How soon a value is made again: after its share of work, not of waiting, and soon after a failure."""

import asyncio
from types import SimpleNamespace

import pytest

from addons.web.tests.served import LIMIT_S
from dljob_web import renewing
from dljob_web.renewing import SHARE, Renewed


@pytest.fixture
def clock(monkeypatch):
    """What the time is, and how much of it went into work."""
    clock = SimpleNamespace(now=0.0, worked=0.0)
    time = SimpleNamespace(monotonic=lambda: clock.now, thread_time=lambda: clock.worked)
    monkeypatch.setattr(renewing, "time", time)
    monkeypatch.setattr(renewing, "PATIENCE_S", LIMIT_S)
    return clock


def test_waiting_is_no_work(clock):
    def make(before):
        clock.now += 60.0
        return (before or 0) + 1

    async def look():
        value = Renewed(make, every_s=0.0)
        assert [await value.get(), await value.get()] == [1, 2]

    asyncio.run(look())


def test_work_is_followed_by_a_pause_and_a_failure_by_none(clock):
    asked = []

    def make(_):
        asked.append(1)
        clock.worked += 1.0
        if len(asked) == 1:
            raise OSError("does not answer")
        return len(asked)

    async def look():
        value = Renewed(make, every_s=0.0)
        with pytest.raises(OSError, match="does not answer"):
            await value.get()
        assert [await value.get(), await value.get()] == [2, 2]
        clock.now += 1.0 / SHARE
        assert await value.get() == 3

    asyncio.run(look())

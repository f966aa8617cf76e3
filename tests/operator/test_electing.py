"""The Lease outlives a long computation, but not an event loop that hangs."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from dljob.control.situation.ports import Fenced
from dljob.kube import access
from dljob.kube.client import ApiServer
from dljob.kube.leases import RISEN, Election, LeaseSettings
from tests.loops import on_loop

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

SHORT = LeaseSettings(
    lease_seconds=12.0,
    renew_seconds=0.2,
    give_up_seconds=10.0,
    look_seconds=0.2,
    stuck_seconds=60.0,
)
"""Long enough for an API server that stalls for a few seconds."""
BLOCKED_S = 15.0
"""Longer than the Lease."""
GENEROUS_S = 240.0


@pytest.fixture
def candidate(control_plane, namespace):
    """Makes candidates on the running event loop."""

    @asynccontextmanager
    async def make(identity: str, settings: LeaseSettings) -> AsyncIterator[Election]:
        found = access.find(str(control_plane.admin))
        api = ApiServer(found)
        try:
            yield Election(
                api,
                namespace,
                identity=identity,
                settings=settings,
                connect=lambda: ApiServer(found),
            )
        finally:
            await api.close()

    return make


def in_thread(story: Callable[[], Coroutine[Any, Any, None]]) -> threading.Thread:
    """Play another process, with an event loop of its own."""
    thread = threading.Thread(target=lambda: asyncio.run(story()), daemon=True)
    thread.start()
    return thread


@on_loop
async def test_busy_leader_keeps_the_lease(candidate):
    has_won = threading.Event()

    async def rival() -> None:
        async with candidate("rival", SHORT) as election:
            await election.win()
            has_won.set()

    async with candidate("busy", SHORT) as election:
        await election.win()
        keeping = asyncio.create_task(election.keep())
        await asyncio.sleep(0)
        thread = in_thread(rival)
        end = time.monotonic() + BLOCKED_S
        while time.monotonic() < end:
            sum(range(10_000))  # Blocks this event loop.
        assert not has_won.is_set()
        assert election.is_leading
        await asyncio.sleep(0)
        assert not keeping.done()
        keeping.cancel()
        await asyncio.wait({keeping})
        await election.leave()
        await asyncio.to_thread(thread.join, GENEROUS_S)
        assert has_won.is_set(), "a leader that leaves is replaced at once"


@on_loop
async def test_leader_with_a_hanging_event_loop_loses_the_lease(candidate):
    has_won = threading.Event()

    async def rival() -> None:
        async with candidate("rival", SHORT) as election:
            await election.win()
            has_won.set()

    hangs_soon = replace(SHORT, stuck_seconds=1.0)
    async with candidate("hangs", hangs_soon) as election:
        await election.win()
        keeping = asyncio.create_task(election.keep())
        await asyncio.sleep(0)
        thread = in_thread(rival)
        # Blocks this event loop, as an endless computation does.
        assert has_won.wait(GENEROUS_S)
        assert not election.is_leading
        with pytest.raises(Fenced, match="has not turned for 1 s"):
            await keeping
        await asyncio.to_thread(thread.join, GENEROUS_S)


@on_loop
async def test_leader_continues_in_a_later_epoch(candidate, control_plane, namespace):
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{SHORT.name}"
    async with candidate("restored", SHORT) as election, candidate("rival", SHORT) as rival:
        assert await election.win() == 1
        assert not await election.is_overtaken()
        keeping = asyncio.create_task(election.keep())
        async with asyncio.timeout(GENEROUS_S):
            await election.rise(18, "a SideCar obeys epoch 17")
        with control_plane.api() as api:
            lease = api.get(path)
        assert lease["spec"]["leaseTransitions"] == election.epoch == 18
        assert lease["metadata"]["annotations"] == {RISEN: "a SideCar obeys epoch 17"}
        assert not await election.is_overtaken()
        keeping.cancel()
        await asyncio.wait({keeping})
        await election.leave()
        # The next leader has a higher epoch, and the Lease shows the change.
        assert await rival.win() == 19
        assert await election.is_overtaken()

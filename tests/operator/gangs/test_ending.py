"""The extender ends when it is to, also when there is news just then."""

import asyncio

import pytest

from dljob.kube import access
from dljob_gangs.running import Gangs, GangSettings
from tests.loops import after_turns
from tests.servers.authority import Authority, write_kubeconfig

LONGEST_S = 240.0
"""No law of ours: after this time something hangs."""


@pytest.mark.parametrize("turns", range(6))
def test_one_that_is_cancelled_as_news_comes_ends(tmp_path, turns):
    kubeconfig = write_kubeconfig(
        tmp_path / "kubeconfig",
        server="https://127.0.0.1:1",
        authority=Authority().certificate,
        user={"token": "none"},
    )

    async def story():
        gangs = Gangs(access.find(str(kubeconfig), ""), GangSettings(), instance="one")
        looking = asyncio.create_task(gangs._update_on())
        # It looks once, and then waits for news.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gangs._hear("a pod", False)
        after_turns(turns, looking.cancel)
        await asyncio.wait({looking}, timeout=LONGEST_S)
        await gangs._api.close()
        return looking.cancelled()

    assert asyncio.run(story())

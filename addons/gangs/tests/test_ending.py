"""The extender ends when it is cancelled, even if news arrives at that moment."""

import asyncio

import pytest

from dljob.kube import access
from dljob_gangs.running import Gangs, GangSettings
from tests.loops import after_turns
from tests.servers.authority import Authority, write_kubeconfig

LONGEST_S = 240.0
"""Far more than it takes."""


@pytest.mark.parametrize("turns", range(6))
def test_cancel_wins_over_concurrent_news(tmp_path, turns):
    kubeconfig = write_kubeconfig(
        tmp_path / "kubeconfig",
        server="https://127.0.0.1:1",
        authority=Authority().certificate,
        user={"token": "none"},
    )

    async def story():
        gangs = Gangs(access.find(str(kubeconfig), ""), GangSettings(), instance="one")
        looking = asyncio.create_task(gangs._update_on())
        # It looks once, then waits for news.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gangs._hear("a pod", False)
        after_turns(turns, looking.cancel)
        await asyncio.wait({looking}, timeout=LONGEST_S)
        await gangs._api.close()
        return looking.cancelled()

    assert asyncio.run(story())

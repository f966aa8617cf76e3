"""A controller ends when it is cancelled, even if news arrives at that moment."""

import asyncio
from typing import cast

import pytest

from dljob.control.loop import Controller
from dljob.control.pacing import Pace
from dljob.control.scheduling import Options
from dljob.control.situation.dialer import Dialer
from dljob.control.situation.ports import Observation, Platform
from dljob.core import policies
from dljob.core.model import Node
from tests.control.callers import living
from tests.control.governing import PlayedMemory, PlayedMetrics


class EmptyPlatform:
    """A platform without jobs."""

    async def observe(self) -> Observation:
        return Observation({}, (Node.of("node", 1),))

    async def record(self, statuses: object) -> None:
        """Keep nothing."""


@pytest.mark.parametrize("turns", range(6))
@living
async def test_cancel_wins_over_concurrent_news(turns):
    metrics = PlayedMetrics()
    controller = Controller(
        cast(Platform, EmptyPlatform()),
        cast(Dialer, None),
        learning=PlayedMemory(),
        metrics=metrics,
        options=Options(policy=policies.make("fifo"), pace=Pace(rest_share=0.0)),
        epoch=1,
    )
    control = asyncio.create_task(controller.run())
    while metrics.cycles < 1:
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    controller.wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    control.cancel()
    done, _ = await asyncio.wait({control}, timeout=240.0)
    assert done
    assert control.cancelled()

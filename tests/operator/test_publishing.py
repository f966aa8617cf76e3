"""A failure to publish progress ends nothing, unless another operator leads by now."""

import asyncio
import logging
from typing import Any, cast

import pytest

from dlcontrol.situation.ports import Fenced
from dloperator.reporting.publishing import Publisher, Publishing

PATIENCE_S = 240.0


class Broken:
    """A scene that cannot be looked at."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def entries(self) -> Any:
        raise self._error


def publish(error: Exception, looks: int) -> None:
    async def story() -> None:
        seen = asyncio.Semaphore(0)

        def look() -> Any:
            seen.release()
            return Broken(error)

        nothing = cast("Any", None)
        publisher = Publisher(
            nothing, look, snapshot=nothing, settings=Publishing(look_seconds=0.0)
        )
        running = asyncio.create_task(publisher.run())

        async def watch() -> None:
            for _ in range(looks):
                await seen.acquire()

        watching = asyncio.create_task(watch())
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        if running.done():
            running.result()
        running.cancel()

    asyncio.run(story())


def test_what_cannot_be_shown_is_told_once_and_tried_again(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.ERROR):
        publish(ValueError("no such number"), looks=5)
    assert [record.message for record in caplog.records] == [
        "progress cannot be written; it is tried again"
    ]


def test_who_no_longer_leads_publishes_no_more():
    with pytest.raises(Fenced):
        publish(Fenced("another operator leads"), looks=1000)

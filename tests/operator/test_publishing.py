"""Progress is published when users see a difference; only a new leader ends the publisher."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from dljob.control.deciding.snapshots import take_snapshot
from dljob.control.situation.ports import Fenced
from dljob.control.situation.status import Status
from dljob.core.model import JobId, Phase
from dljob.core.profiles import Costs
from dljob.operator.reporting.publishing import Publisher, Publishing
from tests.control import scenes

PATIENCE_S = 240.0


class Broken:
    """A scene that raises at each look."""

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


def test_failure_is_logged_once_and_retried(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.ERROR):
        publish(ValueError("no such number"), looks=5)
    assert [record.message for record in caplog.records] == [
        "progress cannot be written; it is tried again"
    ]


def test_former_leader_stops_publishing():
    with pytest.raises(Fenced):
        publish(Fenced("another operator leads"), looks=1000)


class Figures:
    """Keeps all published figures."""

    def __init__(self) -> None:
        self.published: list[Status] = []

    async def publish(self, _job: JobId, status: Status, *, remaining: object) -> None:
        self.published.append(status)


HOURS = 40 * 3600.0
"""A job for which a hundredth takes more than five minutes."""


def writes_of_an_hour(speed_at: Callable[[float], float], length: float) -> int:
    """Play an hour of a job at this speed; count the writes."""
    figures, now = Figures(), [0.0]
    job = scenes.cast("a", {"n0": (0,)}, phase=Phase.RUNNING, iterations_total=length)
    scene = scenes.make_scene(job)
    publisher = Publisher(
        cast("Any", figures),
        lambda: scene,
        snapshot=lambda scene: take_snapshot(scene, profiles={}, costs=Costs()),
        settings=Publishing(),
        clock=lambda: now[0],
    )
    status = scene.entries[JobId("a")].status

    async def play() -> None:
        nonlocal status
        while now[0] < 3600.0:
            speed = speed_at(now[0])
            farther = status.iteration + round(10 * speed)
            status = replace(status, iteration=farther, speed=speed)
            await publisher.publish(scene.with_statuses({JobId("a"): status}))
            now[0] += 10.0

    asyncio.run(play())
    return len(figures.published)


@pytest.mark.parametrize(
    ("speed_at", "length", "writes"),
    [
        pytest.param(lambda _: 1.0, HOURS, 11, id="steady: every five minutes"),
        pytest.param(lambda _: 1.0, 10_000.0, 35, id="short: each hundredth"),
        pytest.param(lambda now: 1.0 if now < 610 else 2.0, HOURS, 12, id="new speed: in a minute"),
        pytest.param(lambda _: 0.0, HOURS, 0, id="no progress"),
    ],
)
def test_pace_follows_visible_changes(speed_at, length, writes):
    assert writes_of_an_hour(speed_at, length) == writes

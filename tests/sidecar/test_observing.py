"""What is told of the training at once, and what when it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dlsidecar.gauging import Gauges
from dlsidecar.observing import Observer
from dlsidecar.settings import Settings, Training
from dlwire.messages import Post

pytestmark = pytest.mark.processes


def live_through(story: Callable[[Observer, list[int]], Awaitable[None]]) -> None:
    async def lived() -> None:
        told: list[int] = []
        gauges = Gauges()
        settings = Settings(Training(command=("true",)))
        observer = Observer(settings, changed=lambda: told.append(1), gauges=gauges)
        try:
            await story(observer, told)
        finally:
            observer.close()
            gauges.close()

    asyncio.run(lived())


def test_the_first_iteration_of_each_start_is_told_at_once_and_no_other():
    async def story(observer: Observer, told: list[int]) -> None:
        for start in (1, 2):
            observer.begin_start()
            observer.post(Post(iteration=10 * start))
            assert len(told) == start
            observer.post(Post(iteration=10 * start + 1))
            assert len(told) == start
            observer.end_start()

    live_through(story)


def test_the_last_words_of_one_start_are_not_taken_for_the_first_of_the_next():
    async def story(observer: Observer, told: list[int]) -> None:
        observer.begin_start()
        observer.take_groups({"iteration": "10"})
        observer.begin_start()
        observer.take_groups({"iteration": "12"}, is_late=True)
        assert observer.progress().iteration == 12
        assert len(told) == 1
        observer.take_groups({"iteration": "13"})
        assert len(told) == 2
        # From its two words nobody could tell a pace: they are of two starts.
        assert observer.progress().iterations_per_second == 0.0

    live_through(story)

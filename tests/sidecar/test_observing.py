"""What is told of the training at once, and what when it is asked for."""

from __future__ import annotations

import asyncio

import pytest

from dlsidecar.gauging import Gauges
from dlsidecar.observing import Observer
from dlsidecar.settings import Settings, Training
from dlwire.messages import Post

pytestmark = pytest.mark.processes


def test_the_first_iteration_of_each_start_is_told_at_once_and_no_other():
    told = []

    async def story() -> None:
        gauges = Gauges()
        observer = Observer(
            Settings(Training(command=("true",))), changed=lambda: told.append(1), gauges=gauges
        )
        for start in (1, 2):
            observer.begin_start()
            observer.post(Post(iteration=10 * start))
            assert len(told) == start
            observer.post(Post(iteration=10 * start + 1))
            assert len(told) == start
            observer.end_start()
        observer.close()
        gauges.close()

    asyncio.run(story())


def test_what_one_start_did_wrong_is_not_held_against_the_next():
    async def story() -> None:
        gauges = Gauges()
        settings = Settings(Training(command=("true",), progress_file="progress"))
        observer = Observer(settings, changed=lambda: None, gauges=gauges)
        observer.begin_start()
        observer.take_file(b"step 5\n")
        observer.complain("OutputLost", "of the machine, and not of the training")
        assert [one.name for one in observer.problems()] == ["ProgressNotUnderstood", "OutputLost"]
        observer.begin_start()
        assert [one.name for one in observer.problems()] == ["OutputLost"]
        gauges.close()

    asyncio.run(story())

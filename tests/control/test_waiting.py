"""A cycle that lasts long names the place where it waits, once."""

import asyncio
import re

import pytest

from dljob.control.acting.task_pool import do_all
from dljob.control.pacing import Pace, find_places, warned_after
from dljob.control.situation.ports import Fenced
from tests.control.callers import living
from tests.control.test_loop import controlled

HURRIED = Pace(slow_seconds=0.05, stuck_seconds=0.4)


async def write(answer: asyncio.Event) -> None:
    await answer.wait()


def in_order(said: str, *names: str) -> bool:
    return re.search(".*".join(rf"py:\d+ in {name}\b" for name in names), said) is not None


@living
async def test_places_go_through_tasks_to_the_innermost():
    answer, given = asyncio.Event(), asyncio.Event()
    given.set()
    task = asyncio.create_task(do_all([write(given), write(answer)]))
    for _ in range(3):
        await asyncio.sleep(0)
    places = find_places(task)
    assert in_order(" ".join(places), "do_all", "write", "Event.wait"), places
    assert places[0].startswith("control/acting/task_pool.py:")
    answer.set()
    await task


@living
async def test_hanging_cycle_says_once_where_it_waits(caplog):
    controller, _, _ = controlled(HURRIED)

    async def observe_for_ever():
        await asyncio.Event().wait()

    controller.observer.observe = observe_for_ever
    with pytest.raises(Fenced, match=r"^a cycle has not ended for 0\.4 s$"):
        await controller.run()
    [record] = caplog.records
    assert record.levelname == "WARNING"
    said = record.getMessage()
    assert said.startswith("a cycle has lasted for 0.05 s so far; it waits at ")
    assert in_order(said, "Controller.cycle", "test_hang.*observe_for_ever", "Event.wait"), said


@living
async def test_usual_cycle_warns_of_nothing(caplog):
    with warned_after(0.05):
        pass
    await asyncio.sleep(0.1)
    assert not caplog.records

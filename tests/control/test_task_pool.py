"""Tasks whose last ones go on while other work begins."""

import asyncio
import gc

import pytest

from dljob.control.acting.task_pool import Slots, TaskPool
from tests.control.callers import living


class Piece:
    """A piece of work that ends on request."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.ended = False

    async def work(self) -> None:
        await self.may_end.wait()
        self.ended = True


def begin(count):
    trailing: TaskPool[int | str] = TaskPool()
    pieces = [Piece() for _ in range(count)]
    for number, piece in enumerate(pieces):
        trailing.start(number, piece.work())
    return trailing, pieces


async def slots(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


async def fail() -> None:
    raise OSError("no")


@living
async def test_failure_is_raised_at_once_and_ever_after():
    trailing, _ = begin(2)
    waiting = asyncio.create_task(trailing.wait_until_few())
    await slots()
    trailing.start("fails", fail())
    for most in (0, 99):
        with pytest.raises(OSError, match="no"):
            await asyncio.wait_for(waiting, 240.0)
        waiting = asyncio.create_task(trailing.wait_until_few(most))
    with pytest.raises(OSError, match="no"):
        await waiting
    await trailing.end()


@living
async def test_further_failures_cause_no_warnings():
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    trailing: TaskPool[int] = TaskPool()
    for number in range(3):
        trailing.start(number, fail())
    await slots()
    with pytest.raises(OSError, match="no"):
        trailing.check()
    del trailing
    gc.collect()
    await slots()
    assert complaints == []


@living
async def test_cancelled_wait_cancels_all_tasks():
    trailing, pieces = begin(3)
    waiting = asyncio.create_task(trailing.wait_until_few())
    await slots()
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=240.0)
    assert waiting.cancelled()
    for piece in pieces:
        piece.may_end.set()
    await slots()
    assert not any(piece.ended for piece in pieces)
    assert not any(number in trailing for number in range(3))


@living
async def test_slots_limit_the_work_until_it_is_cut_short():
    is_cut, at_work, given = False, [], []
    may_end = asyncio.Event()
    slots = Slots(2, lambda: is_cut)

    async def work(number) -> None:
        async with slots.one() as is_mine:
            given.append((number, is_mine))
            at_work.append(number)
            await may_end.wait()

    tasks = [asyncio.create_task(work(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert at_work == [0, 1]
    is_cut = True
    may_end.set()
    await asyncio.gather(*tasks)
    assert given == [(0, True), (1, True), (2, False), (3, False), (4, False)]
    await work(5)
    assert given[-1] == (5, True), "a free slot is granted"

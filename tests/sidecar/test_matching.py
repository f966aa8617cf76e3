"""Lines are matched in a helper process, and each match belongs to one start."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from dljob_sidecar.linux.spawning import Reaper
from dljob_sidecar.observing.expressions import MOST_OPEN_BYTES, Matcher
from dljob_sidecar.observing.matching import UNMATCHED
from tests.sidecar.clients import live_through

pytestmark = pytest.mark.processes


Story = Callable[["Reading"], Awaitable[None]]
STEP = r"step (?P<iteration>\d+)"
STUCK = STEP + r"|(a+)+b$"


class Reading:
    """A matcher, and its results so far."""

    def __init__(self, expression: str) -> None:
        self.steps: list[int] = []
        self.late: list[int] = []
        self.problems: list[str] = []
        self.unmatched: list[str] = []
        self._news = asyncio.Event()
        reaper = Reaper()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, reaper.reap)
        self.matcher = Matcher(
            reaper=reaper,
            on_match=self._take,
            on_problem=lambda name, _: self.problems.append(name),
            progress=expression,
        )
        self.matcher.begin()

    def _take(self, found: dict[str, str], is_late: bool) -> None:
        if "iteration" in found:
            (self.late if is_late else self.steps).append(int(found["iteration"]))
        elif UNMATCHED in found:
            self.unmatched.append(found[UNMATCHED])
        self._news.set()

    async def wait_for(self, step: int) -> None:
        while step not in self.steps:
            self._news.clear()
            await self._news.wait()

    async def take_first_step(self) -> None:
        """Wait for an answer, so that the helper runs."""
        self.matcher.feed(b"step 1\n")
        await self.wait_for(1)

    def send(self, signum: signal.Signals) -> None:
        assert self.matcher.pid is not None
        os.kill(self.matcher.pid, signum)

    def kill_helper(self) -> None:
        self.send(signal.SIGKILL)

    def stop_next_helper(self) -> None:
        start = self.matcher._start

        def start_stopped() -> None:
            setattr(self.matcher, "_start", start)  # noqa: B010 - it is a method
            start()
            self.send(signal.SIGSTOP)

        setattr(self.matcher, "_start", start_stopped)  # noqa: B010 - it is a method

    def close(self) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        last = self.matcher.pid
        self.matcher.stop()
        if last is not None:
            os.waitpid(last, 0)


def reading(expression: str) -> Callable[[Story], Callable[[], None]]:
    """Make a test from a coroutine with a matcher."""

    def decorate(story: Story) -> Callable[[], None]:
        async def whole() -> None:
            reading = Reading(expression)
            try:
                await story(reading)
            finally:
                reading.close()

        return lambda: live_through(whole())

    return decorate


@reading(STEP)
async def test_earlier_lines_are_late(reading: Reading) -> None:
    reading.matcher.feed(b"step 2\n")
    # Its answer cannot have come, because no other task had a turn.
    reading.matcher.begin()
    reading.matcher.feed(b"step 3\n")
    await reading.wait_for(3)
    assert (reading.late, reading.steps, reading.problems) == ([2], [3], [])


@reading(STEP)
async def test_large_burst_is_read_to_its_last_line(reading: Reading) -> None:
    # Several times the size of a pipe at once.
    reading.matcher.feed(b"x" * 600_000 + b"\nstep 2\n")
    await reading.wait_for(2)
    assert not reading.problems


@reading(STEP)
async def test_last_line_is_reported_until_one_matches(reading: Reading) -> None:
    reading.matcher.feed(b"hello\n\n")
    while not reading.unmatched:
        await asyncio.sleep(0.01)
    reading.matcher.feed(b"step 1\nworld\n")
    await reading.wait_for(1)
    reading.matcher.feed(b"more\nstep 2\n")
    await reading.wait_for(2)
    assert reading.unmatched == ["hello"]


@reading(STEP)
async def test_overflow_drops_whole_lines(reading: Reading) -> None:
    half = b"step 2"
    line = b"nothing\n" * (MOST_OPEN_BYTES // 8)
    reading.matcher.feed(b"step 1\n" + line[: MOST_OPEN_BYTES - 7 - len(half)] + half)
    reading.matcher.feed(b"9\nstep 5\n")
    await reading.wait_for(1)
    while not reading.matcher.is_idle:
        await asyncio.sleep(0.01)
    reading.matcher.feed(b"3\nstep 4\n")
    await reading.wait_for(4)
    assert reading.steps == [1, 4]


@reading(STEP)
async def test_next_helper_reads_the_lines_of_a_killed_one(reading: Reading) -> None:
    await reading.take_first_step()
    reading.kill_helper()
    reading.matcher.feed(b"step 2\n")
    reading.matcher.feed(b"step 3\n")
    await reading.wait_for(3)
    assert reading.steps == [1, 2, 3]
    assert not reading.problems


@reading(STEP)
async def test_rest_of_a_lost_line_is_dropped(reading: Reading) -> None:
    reading.matcher.feed(b"step 1\nstep 2")
    await reading.wait_for(1)
    reading.kill_helper()
    reading.matcher.feed(b"step 3\nstep 4\n")
    await reading.wait_for(4)
    assert reading.steps == [1, 4]


@reading(STUCK)
async def test_reading_continues_after_a_slow_line(reading: Reading) -> None:
    await reading.take_first_step()
    reading.matcher.feed(b"a" * 40 + b"\n")
    reading.matcher.feed(b"what is left of that line\nstep 2\n")
    await reading.wait_for(2)
    assert reading.problems == ["ExpressionTooSlow"]


@reading(STEP)
async def test_line_that_kills_every_helper_is_skipped(reading: Reading) -> None:
    await reading.take_first_step()
    reading.stop_next_helper()
    reading.send(signal.SIGSTOP)
    reading.matcher.feed(b"step 2\n")
    reading.matcher.feed(b"\nstep 3\n")
    # The stopped helper does not answer, and its successor is stopped at its start.
    first = reading.matcher.pid
    reading.kill_helper()
    while reading.matcher.pid == first:
        await asyncio.sleep(0.01)
    reading.kill_helper()
    await reading.wait_for(3)
    assert reading.steps == [1, 3]

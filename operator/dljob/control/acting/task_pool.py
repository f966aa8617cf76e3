"""Runs tasks at the same time: some and waits for all, or a bounded pool in the background."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)


async def do_all(work: Iterable[Awaitable[object]]) -> None:
    """Run all tasks at the same time; raise the first failure once all have ended."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


class Slots:
    """Runs a limited number of tasks at a time; after :meth:`cut`, tasks that are still queued do
    not start."""

    def __init__(self, most: int, is_cut: Callable[[], bool]) -> None:
        self._free = asyncio.Semaphore(max(1, most))
        self._is_cut = is_cut
        self.left = 0
        """The number of tasks that were left."""

    @asynccontextmanager
    async def one(self) -> AsyncIterator[bool]:
        """Wait for a free slot; yield False if the task has to be left for the next cycle."""
        # The first tasks start in any case, so that there is always progress.
        has_to_wait = self._free.locked()
        async with self._free:
            is_given = not (has_to_wait and self._is_cut())
            self.left += not is_given
            yield is_given


class TaskPool(Generic[K]):
    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._failure: BaseException | None = None
        self._one_has_ended = asyncio.Event()

    def __contains__(self, key: K) -> bool:
        return key in self._tasks

    def start(self, key: K, work: Coroutine[Any, Any, None]) -> None:
        """Start a task; no other task with this key may be running."""
        assert key not in self._tasks, f"it is under way for {key} already"
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[key] = task

        def note_end(task: asyncio.Task[None]) -> None:
            del self._tasks[key]
            # Read the outcome of all tasks, or asyncio logs that an exception was never retrieved.
            failure = None if task.cancelled() else task.exception()
            self._failure = self._failure or failure
            self._one_has_ended.set()

        task.add_done_callback(note_end)

    def check(self) -> None:
        """Raise the failure of a task, if one has failed."""
        if self._failure is not None:
            raise self._failure

    async def wait_until_few(self, most: int = 0) -> None:
        """Wait until at most this number of tasks is running; raises the failure of a task."""
        try:
            # One caller at a time: a second would replace the event for which the first waits.
            while self._failure is None and len(self._tasks) > most:
                # A new event each time, because it belongs to the event loop of its waiter.
                self._one_has_ended = asyncio.Event()
                await self._one_has_ended.wait()
        except asyncio.CancelledError:
            await self.end()
            raise
        self.check()

    async def end(self) -> None:
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

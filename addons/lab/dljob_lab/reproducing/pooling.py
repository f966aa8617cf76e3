"""
Plays that do not depend on each other, shared among the processors.

Called by the reproductions that take minutes. Results come in the order of the tasks, so the number of
processors changes nothing.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def play_all(
    play: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    step: Callable[[], None] = lambda: None,
) -> Iterator[Result]:
    """Play each task once; call ``step`` after each. Both ``play`` and a task can be pickled."""
    with _start_processes(len(tasks)) as pool:
        for result in pool.map(play, tasks):
            step()
            yield result


@contextmanager
def _start_processes(tasks: int) -> Iterator[ProcessPoolExecutor]:
    """As many as are of use, and none any longer when this ends, however it ends."""
    pool = ProcessPoolExecutor(
        max(1, min(tasks, os.cpu_count() or 1)),
        # Fresh interpreters, because a fork would copy the thread that draws the progress bar.
        multiprocessing.get_context("spawn"),
        initializer=_leave_interrupts_to_parent,
    )
    try:
        yield pool
    finally:
        # It waits for the tasks that are being played, and drops those that have not begun.
        pool.shutdown(cancel_futures=True)


def _leave_interrupts_to_parent() -> None:
    # Ctrl-C reaches each process of the terminal's group. The parent ends
    # the pool; a worker that dies by itself would break it with a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

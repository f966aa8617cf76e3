"""
Tasks on all cores: results come as they are ready, and are put in order by those who read them.

:mod:`dljob_lab.verbs.compare` calls :func:`run_tasks`. Each process takes one task after the other. A task
that fails – a policy that breaks a law, a trace that cannot be read – fails alone: its error is
its result, which no journal keeps.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from dljob_lab.comparing.tasks import Task, Values

AHEAD = 2
"""The number of tasks that each process gets ahead, so that it need not wait for its next one."""


ENDED = "its process was ended, perhaps for lack of memory; try with fewer --jobs"


class Failure(NamedTuple):
    """A task that came to no result, and why."""

    message: str


Result = Values | Failure


class Finished(NamedTuple):
    """A task, by its number, and what became of it."""

    number: int
    result: Result


def run_tasks(tasks: Sequence[tuple[int, Task]], *, processes: int) -> Iterator[Finished]:
    """Perform tasks, each known by a number, in the order in which they end."""
    if processes <= 1 or len(tasks) <= 1:
        yield from (Finished(index, perform(task)) for index, task in tasks)
        return
    yield from _run_in_pool(tasks, min(processes, len(tasks)))


def perform(task: Task) -> Result:
    """Perform a task; what goes wrong is its result."""
    try:
        return task.perform()
    except Exception as error:  # noqa: BLE001 - an exception of a policy concerns its task alone
        return Failure(f"{type(error).__name__}: {error}")


def _run_in_pool(tasks: Sequence[tuple[int, Task]], processes: int) -> Iterator[Finished]:
    queue = iter(tasks)
    under_way: dict[Future[Result], int] = {}
    with open_pool(processes) as pool:
        for future in _iter_done(pool, queue, under_way=under_way, most=processes * AHEAD):
            if isinstance(future.exception(), BrokenProcessPool):
                break
            yield Finished(under_way.pop(future), future.result())
    # A process that was ended ends its pool, and it cannot be known which task was the cause. So all
    # that were under way have failed, and the others go on in another pool.
    if under_way:
        yield from (Finished(number, Failure(ENDED)) for number in under_way.values())
        yield from _run_in_pool(list(queue), processes)


def _iter_done(
    pool: ProcessPoolExecutor,
    queue: Iterator[tuple[int, Task]],
    *,
    under_way: dict[Future[Result], int],
    most: int,
) -> Iterator[Future[Result]]:
    """Keep ``most`` tasks under way, and yield those that are done; the caller takes them out."""
    while True:
        for number, task in islice(queue, most - len(under_way)):
            under_way[_submit(pool, task)] = number
        if not under_way:
            return
        yield from wait(under_way, return_when=FIRST_COMPLETED).done


def _submit(pool: ProcessPoolExecutor, task: Task) -> Future[Result]:
    try:
        return pool.submit(perform, task)
    except BrokenProcessPool as error:
        # The pool broke since the last result; the task goes the way of those under way.
        failed: Future[Result] = Future()
        failed.set_exception(error)
        return failed


@contextmanager
def open_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool whose processes are ended at once if its user does not come to the end."""
    # Not by fork: a progress bar has a thread, whose locks the children would inherit.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_prepare_worker)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        # A simulation may take minutes, and its result is not wanted any more.
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    pool.shutdown()


def _prepare_worker() -> None:
    """Leave to the parent what concerns the user."""
    # Ctrl-C reaches all processes of a terminal; the parent ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard output is for results; a solver in C prints to it now and then.
    os.dup2(2, 1)

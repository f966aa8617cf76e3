"""
Plays that do not depend on each other, shared among the processors.

Called by the reproductions that take minutes. Results come in the order of the tasks, so the number of
processors changes nothing.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from dljob_lab.comparing.running import open_pool

Task = TypeVar("Task")
Result = TypeVar("Result")


def play_all(
    play: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    step: Callable[[], None] = lambda: None,
) -> Iterator[Result]:
    """Play each task once; call ``step`` after each. Both ``play`` and a task can be pickled."""
    # As many processes as are of use.
    with open_pool(max(1, min(len(tasks), os.cpu_count() or 1))) as pool:
        for result in pool.map(play, tasks):
            step()
            yield result

"""Facts about the training that are reported at once, and facts that are reported on request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dljob_sidecar.observing.facts import Observer
from dljob_sidecar.observing.gpus.gpu_thread import GpuThread
from dljob_sidecar.settings import Settings
from dljob_wire.messages import Post
from dljob_wire.training import Training
from tests.sidecar.clients import live_through

Story = Callable[[Observer, list[int]], Awaitable[None]]


def observed(story: Story) -> Callable[[], None]:
    """Make a test of a story with an observer and what it reports at once."""

    async def live() -> None:
        told: list[int] = []
        gpu_thread = GpuThread()
        settings = Settings(Training(command=("true",)))
        observer = Observer(settings, changed=lambda: told.append(1), gpu_thread=gpu_thread)
        try:
            await story(observer, told)
        finally:
            observer.close()
            gpu_thread.close()

    return lambda: live_through(live())


@observed
async def test_the_first_iteration_of_each_start_is_told_at_once_and_no_other(
    observer: Observer, told: list[int]
) -> None:
    for start in (1, 2):
        observer.begin_start()
        observer.post(Post(iteration=10 * start))
        assert len(told) == start
        observer.post(Post(iteration=10 * start + 1))
        assert len(told) == start
        observer.end_start()


@observed
async def test_that_no_line_matches_is_told_while_it_runs_and_is_over_with_the_first_that_does(
    observer: Observer, told: list[int]
) -> None:
    observer.unmatched_seconds = -1.0
    observer.begin_start()
    observer.take_unmatched("Epoch 1 done", is_late=False)
    observer.poll()
    observer.take_unmatched("Epoch 2 done", is_late=False)
    observer.poll()
    (problem,) = observer.problems()
    assert problem.name == "ProgressNotMatched"
    assert "'Epoch 2 done'" in problem.message
    observer.take_groups({"iteration": "3"})
    assert observer.problems() == ()


@observed
async def test_a_line_that_was_never_matched_is_told_at_the_end_however_soon_that_comes(
    observer: Observer, told: list[int]
) -> None:
    observer.begin_start()
    observer.take_unmatched("nothing of it", is_late=True)
    observer.take_unmatched("bye", is_late=False)
    observer.end_start()
    (problem,) = observer.problems()
    assert "'bye'" in problem.message


@observed
async def test_how_far_apart_reports_are_is_the_shortest_way_between_two(
    observer: Observer, told: list[int]
) -> None:
    observer.begin_start()
    for iteration in (100, 100, 400, 500, 700):
        observer.post(Post(iteration=iteration))
    assert observer.progress().interval == 100


@observed
async def test_the_last_words_of_one_start_are_not_taken_for_the_first_of_the_next(
    observer: Observer, told: list[int]
) -> None:
    observer.begin_start()
    observer.take_groups({"iteration": "10"})
    observer.begin_start()
    observer.take_groups({"iteration": "12"}, is_late=True)
    assert observer.progress().iteration == 12
    assert len(told) == 1
    observer.take_groups({"iteration": "13"})
    assert len(told) == 2
    # No pace follows from these two reports: they are of two starts.
    assert observer.progress().iterations_per_second == 0.0

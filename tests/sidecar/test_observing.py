"""Facts about the training that are reported at once, or on request."""

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
    """Make a test from a coroutine with an observer and its immediate reports."""

    async def live() -> None:
        changes: list[int] = []
        gpu_thread = GpuThread()
        settings = Settings(Training(command=("true",)))
        observer = Observer(settings, changed=lambda: changes.append(1), gpu_thread=gpu_thread)
        try:
            await story(observer, changes)
        finally:
            observer.close()
            gpu_thread.close()

    return lambda: live_through(live())


@observed
async def test_first_iteration_of_a_start_is_reported_at_once(
    observer: Observer, changes: list[int]
) -> None:
    for start in (1, 2):
        observer.begin_start()
        observer.post(Post(iteration=10 * start))
        assert len(changes) == start
        observer.post(Post(iteration=10 * start + 1))
        assert len(changes) == start
        observer.end_start()


@observed
async def test_unmatched_lines_are_reported_until_one_matches(
    observer: Observer, changes: list[int]
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
async def test_unmatched_line_is_reported_at_the_end(
    observer: Observer, changes: list[int]
) -> None:
    observer.begin_start()
    observer.take_unmatched("nothing of it", is_late=True)
    observer.take_unmatched("bye", is_late=False)
    observer.end_start()
    (problem,) = observer.problems()
    assert "'bye'" in problem.message


@observed
async def test_report_interval_is_the_shortest_gap(observer: Observer, changes: list[int]) -> None:
    observer.begin_start()
    for iteration in (100, 100, 400, 500, 700):
        observer.post(Post(iteration=iteration))
    assert observer.progress().interval == 100


@observed
async def test_late_lines_do_not_count_for_the_next_start(
    observer: Observer, changes: list[int]
) -> None:
    observer.begin_start()
    observer.take_groups({"iteration": "10"})
    observer.begin_start()
    observer.take_groups({"iteration": "12"}, is_late=True)
    assert observer.progress().iteration == 12
    assert len(changes) == 1
    observer.take_groups({"iteration": "13"})
    assert len(changes) == 2
    # Reports of two starts give no speed.
    assert observer.progress().iterations_per_second == 0.0

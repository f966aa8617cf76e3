"""A queue behaves like a sorted list of jobs, and shares unchanged blocks."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core.queues import BLOCK_SIZE, FEW, Queue
from tests.core.examples import few_examples


@dataclass(frozen=True)
class Waiting:
    """The order that a queue needs of a job, and a note that may change."""

    order: int
    note: str = ""

    @property
    def id(self) -> str:
        return f"job-{self.order}"


def make_queue(count: int) -> Queue[Waiting]:
    return Queue.of(Waiting(order) for order in range(count))


changes = st.lists(st.tuples(st.sampled_from(["put", "drop", "touch"]), st.integers(0, 400)))


@few_examples(40)
@given(count=st.integers(0, 300), changes=changes)
def test_queue_behaves_like_a_sorted_list(count: int, changes: list[tuple[str, int]]) -> None:
    queue = make_queue(count)
    jobs = {order: Waiting(order) for order in range(count)}
    for change, order in changes:
        if change == "put" or order not in jobs:
            jobs[order] = Waiting(order, "new")
            queue = queue.put(jobs[order])
        elif change == "drop":
            queue = queue.drop(jobs.pop(order))
        else:
            jobs[order] = Waiting(order, "touched")
            queue = queue.put(jobs[order])
    expected = [jobs[order] for order in sorted(jobs)]
    assert list(queue) == expected
    assert len(queue) == len(expected)
    assert queue[:] == tuple(expected)
    assert all(0 < len(block) < 2 * BLOCK_SIZE for block in queue.blocks)


def test_changed_queue_shares_other_blocks():
    before = make_queue(10 * BLOCK_SIZE)
    after = before.put(Waiting(5 * BLOCK_SIZE + 3, "changed"))
    assert sum(a is not b for a, b in zip(before.blocks, after.blocks, strict=True)) == 1
    assert before[5 * BLOCK_SIZE + 3].note == ""


def test_block_computes_each_answer_once():
    asked: list[int] = []

    def least(jobs: tuple[Waiting, ...]) -> int:
        asked.append(len(jobs))
        return min(job.order for job in jobs)

    (block,) = make_queue(3).blocks
    assert [block.ask(least), block.ask(least)] == [0, 0]
    assert asked == [3]
    assert (block[0].order, [job.order for job in block[1:]]) == (0, [1, 2])


@pytest.mark.parametrize("wanted", [0, 1, FEW, FEW + 1, 200])
def test_selected_jobs_keep_queue_order(wanted: int):
    queue = make_queue(300)
    names = [f"job-{order}" for order in reversed(range(0, 300, 300 // max(wanted, 1)))][:wanted]
    found = queue.select({*names, "unknown"} if wanted else set())
    assert list(found) == sorted(names, key=lambda name: int(name[4:]))


def test_dropping_an_unknown_job_fails():
    with pytest.raises(ValueError, match="job-7 is not in the queue"):
        make_queue(3).drop(Waiting(7))


def test_empty_block_disappears():
    (only,) = make_queue(1)
    assert make_queue(1).drop(only).blocks == ()
    assert list(Queue[Waiting]().put(only)) == [only]

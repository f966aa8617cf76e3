"""``training.batches``: the same global batches on any number of ranks, and each sample of an epoch once."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob import training
from dljob.training import Batch, Batches


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "DLJOB_RANK", "DLJOB_WORLD_SIZE", "DLJOB_BATCH_SIZE"):
        # Set first, so that it is removed again afterwards.
        monkeypatch.setenv(name, "")


def become(rank: int, world: int, *, batch_size: int = 0) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), DLJOB_BATCH_SIZE=str(batch_size or ""))


def take_step(states: Batches, world: int, batch_size: int) -> list[Batch]:
    """Return the parts of all ranks in the next global batch."""
    before, parts = states.state_dict(), []
    for rank in range(world):
        become(rank, world, batch_size=batch_size)
        states.load_state_dict(before)
        parts.append(next(iter(states)))
    return parts


def used(parts: list[Batch]) -> list[int]:
    """Return the samples of a global batch in their order."""
    counted = [part.samples if part.weight else [] for part in parts]
    turns = itertools.zip_longest(*counted)
    return [sample for turn in turns for sample in turn if sample is not None]


@given(
    length=st.integers(1, 40),
    seed=st.integers(0, 5),
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 50)), min_size=1, max_size=30),
)
def test_each_sample_of_an_epoch_is_taken_once(length, seed, sizes):
    batches = training.batches(length, 7, seed=seed)
    taken: list[int] = []
    for number, (world, batch_size) in enumerate(sizes, start=1):
        parts = take_step(batches, world, batch_size)
        assert {part.step for part in parts} == {number}
        assert sum(part.weight for part in parts) == pytest.approx(world)
        # The parts differ by one sample at most, and none is empty.
        assert all(part.samples for part in parts)
        taken += used(parts)
    epochs = [taken[begin : begin + length] for begin in range(0, len(taken), length)]
    for epoch in epochs:
        assert max(Counter(epoch).values()) == 1
    for epoch in epochs[:-1]:
        assert sorted(epoch) == list(range(length))


def test_order_depends_on_seed_and_epoch_alone():
    become(0, 1)
    length = 100

    def order(seed: int) -> list[list[int]]:
        return [each.samples for each in training.batches(length, length, seed=seed, epochs=2)]

    first, second = order(0)
    assert order(0) == [first, second]
    assert first != second
    assert order(1)[0] != first
    assert sum(sample == place for place, sample in enumerate(first)) < 10


def test_global_batches_are_the_same_on_any_number_of_ranks():
    alone, four = training.batches(50, 8, seed=3), training.batches(50, 8, seed=3)
    for _ in range(20):
        assert sorted(used(take_step(four, 4, 8))) == sorted(used(take_step(alone, 1, 8)))
    assert alone.state_dict() == four.state_dict() == {"step": 20, "taken": 160}


def test_batches_end_after_steps_or_epochs():
    become(0, 1)
    assert [each.step for each in training.batches(10, 4, steps=3)] == [1, 2, 3]
    whole = list(training.batches(10, 4, epochs=2))
    assert [len(each.samples) for each in whole] == [4, 4, 4, 4, 4]
    assert [each.epoch for each in whole] == [0, 0, 0, 1, 1]
    assert [len(each.samples) for each in training.batches(10, 4, epochs=1)] == [4, 4, 2]


def test_doubled_batch_counts_as_two_iterations(monkeypatch):
    become(0, 1)
    batches = training.batches(100, 4, steps=10)
    sizes, iterations = [], []
    for batch in batches:
        sizes.append(len(batch.samples))
        iterations.append(batches.iterations)
        if batch.step == 3:
            become(0, 1, batch_size=8)
            monkeypatch.setenv("DLJOB_LEARNING_RATE_FACTOR", "2.0")
    # Ten steps of the first size, the last of them half a step of the new size.
    assert sizes == [4, 4, 4, 8, 8, 8, 4]
    assert iterations == [1, 2, 3, 5, 7, 9, 10]
    # A process that starts with the new size continues to count in the first one.
    after = training.batches(100, 4, steps=10)
    after.load_state_dict({"step": 3, "taken": 12})
    assert [len(each.samples) for each in after] == [8, 8, 8, 4]
    assert after.iterations == 10


def test_rank_without_a_sample_takes_part_with_no_weight():
    become(2, 3)
    (batch,) = training.batches(2, 3, epochs=1)
    assert len(batch.samples) == 1
    assert batch.weight == 0.0


def test_batches_without_samples_are_refused():
    for length, batch_size in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least one sample"):
            training.batches(length, batch_size)


class ReadingAhead:
    """A loader whose workers are two batches ahead, as those of a DataLoader."""

    def __init__(self, batches: Batches) -> None:
        self._sampler = batches.ahead()
        self.begun = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.begun += 1
        ready: list[list[int]] = []
        for samples in self._sampler:
            ready.append(samples)
            if len(ready) > 2:
                yield ready.pop(0)
        yield from ready


def test_loader_begins_again_after_a_change(monkeypatch):
    become(0, 2)
    batches = training.batches(12, 4, seed=1, steps=9)
    loader = ReadingAhead(batches)
    seen = []
    for batch, data in batches.over(loader):
        assert data == batch.samples
        seen.append(batch.step)
        if batch.step == 5:
            become(0, 4)
            monkeypatch.setattr(training._Live, "changes", training._Live.changes + 1)
    assert seen == list(range(1, 10))
    assert loader.begun == 2
    assert len(batch.samples) == 1

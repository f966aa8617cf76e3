"""GPUs that users are owed change hands in a played world, and jobs do not change all the time."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dljob.control.situation.status import ConditionType
from dljob.core.model import JobId, Phase
from dljob.core.placement.limits import NamespaceLimits, namespace_of
from dljob.sim import policies
from tests.control.governing import Government, governed, has_begun, status, submit, told

OPTIONS = tuple(range(1, 9))


@contextmanager
def shared(policy: str, **weights: int) -> Iterator[Any]:
    with governed({"n0": 8}, policies.make(policy, {})) as government:
        limits = NamespaceLimits(shares=weights or {"*": 1})
        government.options = replace(government.options, limits=limits)
        government.begin()
        yield government


def held(government: Government) -> Counter[str]:
    counts: Counter[str] = Counter()
    for job, entry in government.world.entries.items():
        placement = entry.status.placement
        counts[namespace_of(job)] += placement.gpus if placement is not None else 0
    return counts


def changes(government: Government, *jobs: JobId) -> int:
    return sum(status(government, job).reshapes for job in jobs)


def test_owed_gpus_come_back_and_are_lent_again():
    with shared("max-min") as government:
        jobs = [submit(government, f"a/{number}", options=OPTIONS) for number in range(3)]
        government.world.run(120, until=lambda: has_begun(government, *jobs))
        assert held(government)["a"] == 8
        new = submit(government, "b/1", options=OPTIONS)
        government.world.run(120, until=lambda: has_begun(government, new))
        assert held(government) == {"a": 4, "b": 4}
        assert all(status(government, job).phase is not Phase.QUEUED for job in jobs)
        texts = [text for job in jobs for reason, text in told(government, job)]
        assert any("given back to b, which is owed 4 GPUs" in text for text in texts)
        government.world.change(new, suspend=True)
        government.world.run(120)
        assert held(government)["a"] == 8


def test_condition_says_how_many_gpus_are_borrowed():
    with shared("max-min") as government:
        wide = submit(government, "a/1", options=OPTIONS)
        small = submit(government, "b/1", options=(1,))

        def lent(job: JobId) -> tuple[str, str] | None:
            quota = status(government, job).condition(ConditionType.QUOTA_RESERVED)
            return quota and (quota.reason, quota.message)

        def is_lent() -> bool:
            return lent(wide) == ("Borrowed", "borrows 3 of 7 GPUs")

        government.world.run(120, until=is_lent)
        assert is_lent()
        assert lent(small) == ("Owed", "borrows none of 1 GPU")
        new = submit(government, "b/2", options=OPTIONS)
        government.world.run(120, until=lambda: has_begun(government, new))
        assert lent(wide) == ("Owed", "borrows none of 4 GPUs")
        government.world.change(wide, suspend=True)
        government.world.run(120)
        assert lent(wide) is None
        assert lent(new) == ("Owed", "borrows none of 7 GPUs")


def test_use_outlives_the_controller():
    with shared("fifo") as government:
        first = submit(government, "a/1", options=(8,))
        government.world.run(600)
        government.world.change(first, suspend=True)
        government.world.run(60)
        government.succeed(60)
        jobs = [submit(government, f"{user}/2", options=(8,)) for user in "ab"]
        government.world.run(120, until=lambda: has_begun(government, jobs[1]))
        assert held(government) == {"a": 0, "b": 8}


def test_shares_in_balance_change_no_job():
    with shared("max-min", a=2, b=1, c=1) as government:
        jobs = [submit(government, f"{user}/{n}", options=OPTIONS) for n in "12" for user in "abc"]
        government.world.run(180, until=lambda: has_begun(government, *jobs))
        government.world.run(60)
        before = changes(government, *jobs)
        government.world.run(600)
        assert held(government) == {"a": 4, "b": 2, "c": 2}
        assert changes(government, *jobs) == before


def test_odd_gpu_goes_round_in_turns():
    with shared("max-min") as government:
        jobs = [submit(government, f"{user}/1", options=OPTIONS) for user in "abc"]
        government.world.run(180, until=lambda: has_begun(government, *jobs))
        before, fewest = changes(government, *jobs), Counter[str]()
        for _ in range(60):
            government.world.run(60)
            fewest.update(user for user, gpus in held(government).items() if gpus == 2)
        # Each has been the one with two GPUs, and no more than two jobs change in a turn.
        assert fewest.keys() == {"a", "b", "c"}
        assert changes(government, *jobs) - before <= 2 * 3600 / 150


def test_minimum_beyond_the_share_takes_turns():
    with shared("fifo") as government:
        large, small = submit(government, "a/1", options=(8,)), submit(government, "b/1")
        government.world.run(120, until=lambda: has_begun(government, large))
        seen = Counter[JobId]()
        for _ in range(60):
            government.world.run(60)
            seen.update(job for job in (large, small) if status(government, job).placement)
        assert seen.keys() == {large, small}
        assert any("given back to b" in text for _, text in told(government, large))

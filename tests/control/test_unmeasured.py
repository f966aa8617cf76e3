"""
Unmeasured jobs in a played world with the product's learning and the default policy.

The tests compare times: a user waits in vain for all that a job loses to a decision.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import pytest

from dljob.control.scheduling import Options
from dljob.core import policies
from dljob.core.model import Checkpoint, Job, JobId, Limits, Training
from dljob.core.predicting.predictor import Predictor
from dljob.core.profiles import JobType
from dljob.core.recording.record import Decided
from dljob.store.rows import read_history
from tests.builders import make_job
from tests.control.governing import Government
from tests.control.played import Manner, World
from tests.control.training import Trainings

DEFAULT = Options(policy=policies.make("foresight"))
LONG_S = 2000.0
MOST_LOST_S = 5.0


@contextmanager
def play(gpus: int) -> Iterator[Government]:
    """A world without misfortunes, under the defaults of ``dljob up``."""
    world = World("unmeasured", {"n0": gpus})
    government = Government(
        world, DEFAULT.policy, rules=DEFAULT.rules, pace=DEFAULT.pace, learns=True
    )
    government.begin()
    Trainings(world).begin()
    try:
        yield government
    finally:
        government.close()


def own_job(name: str, iterations: int, options: tuple[int, ...] = (1,), retries: int = 3) -> Job:
    """A job of ``dljob run``: of a type of its own, with a checkpoint to try."""
    return make_job(
        name,
        options=options,
        requested=options[0],
        model=JobType.of_one_job(JobId(name)).model,
        checkpoint=Checkpoint(signal="SIGUSR1", path="ck", shared=True),
        limits=Limits(backoff_limit=retries),
        training=Training(iterations=iterations),
    )


def submit(government: Government, job: Job, manner: Manner) -> JobId:
    government.world.submit(job, manner=manner)
    government.wake()
    return job.id


def decisions(government: Government, job: JobId) -> list[Decided]:
    """The decisions about a job, oldest first."""
    assert government.notebook is not None
    rows = reversed(government.notebook.history(job, limit=1000))
    return [line for _, line in read_history(rows) if isinstance(line, Decided)]


def finish(government: Government, job: JobId) -> float:
    """Play to the end of a job; return its time."""
    world = government.world
    world.run(LONG_S, until=lambda: world.courses[job].is_done)
    return world.courses[job].done_at


def play_fast(rival: Manner | None) -> float:
    with play(1) as government:
        fast = submit(government, own_job("fast", 20_000), Manner({1: 100.0}, save_seconds=0.1))
        government.world.run(30.0)
        if rival is not None:
            submit(government, own_job("never", 300), rival)
        return finish(government, fast)


@pytest.mark.parametrize("is_mute", [False, True])
def test_measured_job_loses_nothing_to_one_without_steps(is_mute: bool):
    never = Manner({1: 1.0}, import_seconds=inf, crashes_after_seconds=40.0, is_mute=is_mute)
    assert play_fast(never) <= play_fast(None) + MOST_LOST_S


SAVE_S = 30.0


def play_slow(options: tuple[int, ...]) -> tuple[float, list[Decided]]:
    """Return the job's end, and the decided changes of its GPUs."""
    with play(2) as government:
        submit(government, own_job("hold", 25), Manner({1: 1.0}))
        slow = own_job("slow", 1200, options)
        job = submit(government, slow, Manner({1: 5.0, 2: 10.0}, save_seconds=SAVE_S))
        government.world.run(150.0)
        snapshot = government.leader.controller.scheduler.snapshot(government.scene)
        price = Predictor.of(snapshot).restart_cost(slow, options[-1])
        assert price == pytest.approx(SAVE_S, abs=2.0)
        done_at = finish(government, job)
        return done_at, [each for each in decisions(government, job) if each.old is not None]


def test_change_costs_as_much_as_its_trial_showed():
    alone_at, _ = play_slow((1,))
    done_at, (change,) = play_slow((1, 2))
    assert change.expected is not None
    assert change.expected.pause_seconds == pytest.approx(SAVE_S, abs=3.0)
    assert change.cost_seconds == pytest.approx(SAVE_S, abs=3.0)
    # The change pays: the rest takes half as long, after one more checkpoint.
    assert done_at <= change.at + SAVE_S + (alone_at - change.at) / 2 + MOST_LOST_S
    assert done_at < alone_at - SAVE_S


@pytest.mark.parametrize("apart_seconds", [0.0, 5.0, 60.0])
def test_slow_starters_start_at_most_twice(apart_seconds: float):
    manner = Manner(
        {1: 5.0, 2: 9.0, 3: 12.0, 4: 14.0},
        import_seconds=20.0,
        warm_up_seconds=10.0,
        warm_up_pace=0.3,
        save_seconds=1.0,
    )
    with play(4) as government:
        world = government.world
        for name in "abc":
            submit(government, own_job(name, 20_000, (1, 2, 3, 4)), manner)
            world.run(apart_seconds)
        world.run(600.0)
        assert max(course.starts for course in world.courses.values()) <= 2

"""
A job that ends while its user changes it does not begin again, in a small world without misfortunes.

The witness refuses a second beginning. :mod:`tests.control.test_stories` has stories of a large one.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dljob.core import policies
from dljob.core.model import Checkpoint, JobId, Mechanism, Phase, Training
from tests.builders import make_job
from tests.control.governing import Government
from tests.control.played import Temper, World
from tests.control.training import Trainings

JOB = JobId("job")
CHANGES = ["suspend", "options", "rival"]
ONE_NODE = {"n0": 4}
TWO_NODES = {"n0": 2, "n1": 2}


def end_while(
    change: str,
    mechanism: Mechanism,
    seed: int,
    *,
    leaves_s: float = 2.0,
    nodes: Mapping[str, int] = ONE_NODE,
    dies_at: int | None = None,
    absent_s: float = 0.01,
) -> Phase:
    """
    Change the job during its evaluation.

    A pod ends ``leaves_s`` after its SideCar has left. The controller is killed at its call
    ``dies_at`` after the change; another one begins ``absent_s`` later.
    """
    world = World(f"ends/{seed}", nodes, Temper(leave_seconds=(leaves_s, leaves_s)))
    government = Government(world, policies.make("max-min"), mechanism)
    try:
        training = Training(iterations=40, batch_size=64)
        job = make_job(
            JOB,
            options=(1, 2, 4) if len(nodes) == 1 else (2, 4),
            training=training,
            checkpoint=Checkpoint(shared=True),
        )
        world.submit(job, evaluates_seconds=3.0)
        reign = government.begin()
        Trainings(world).begin()
        course = world.courses[JOB]
        world.run(300.0, until=lambda: course.iteration >= course.total)
        if change == "suspend":
            world.change(JOB, suspend=True)
            world.after(6.0, lambda: _resume(government))
        elif change == "options":
            world.change(
                JOB,
                gpus=replace(job.gpus, options=(fewer := job.gpus.options[0],), requested=fewer),
            )
        else:
            world.submit(replace(job, id=JobId("rival"), priority=1))
        if dies_at is not None:
            reign.leash.kill_at = reign.leash.calls + dies_at
            government.when_over(reign, absent_s, government.begin)
        government.wake()
        world.run(300.0, until=lambda: world.entries[JOB].status.is_final)
        assert world.witness.ends >= 1
        return world.entries[JOB].status.phase
    finally:
        government.close()


def _resume(government: Government) -> None:
    government.world.change(JOB, suspend=False)
    government.wake()


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("change", CHANGES)
def test_job_that_ends_during_a_change_completes(change, mechanism):
    for seed in range(3):
        assert end_while(change, mechanism, seed) is Phase.COMPLETED


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("change", CHANGES)
def test_job_whose_containers_leave_one_by_one_completes(change, mechanism):
    assert end_while(change, mechanism, 0, leaves_s=0.0) is Phase.COMPLETED
    for seed in range(10):
        ended = end_while(change, mechanism, seed, leaves_s=0.3, nodes=TWO_NODES)
        assert ended is Phase.COMPLETED, seed


CALLS = 60
"""At least the number of calls of a controller from the change to the end of the job."""


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("change", CHANGES)
def test_killed_controller_does_not_hide_the_end(change, mechanism, step):
    for call in range(1, CALLS, step):
        for absent_s in (0.01, 9.0):
            ended = end_while(
                change, mechanism, call, nodes=TWO_NODES, dies_at=call, absent_s=absent_s
            )
            assert ended is Phase.COMPLETED, (call, absent_s)

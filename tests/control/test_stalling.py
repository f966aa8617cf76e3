"""Trainings that hang: reported, ended and started again, in a played world."""

from dljob.core.model import JobId, Phase, Progress, Training
from tests.builders import make_job
from tests.control.governing import Government, governed, has_begun, status, told
from tests.control.training import Trainings

JOB = JobId("job")


def hang(government: Government) -> None:
    """One of its containers stands still, so that all wait for it."""
    processes = min(government.world.witness.living, key=lambda each: each.node)
    processes.hang = True
    government.world.witness.spoil(processes)


def test_hanging_job_restarts_and_completes():
    with governed({"n0": 2, "n1": 2}) as government:
        progress = Progress(http=True, stall_seconds=10.0, restart_seconds=30.0)
        training = Training(iterations=400)
        job = make_job(JOB, options=(4,), training=training, progress=progress)
        world = government.world
        world.submit(job, iterations=400)
        government.begin()
        Trainings(world).begin()
        world.run(30.0)
        assert has_begun(government, JOB)
        hang(government)
        world.run(15.0)
        assert "Stalled" in dict(told(government, JOB))
        assert status(government, JOB).failures == 0
        government.succeed()
        world.run(300.0, until=lambda: status(government, JOB).is_final)
        assert (status(government, JOB).phase, status(government, JOB).failures) == (
            Phase.COMPLETED,
            1,
        )
        wanted = ("Stalled", "StalledForTooLong", "Moving", "Finished")
        assert [each for each, _ in told(government, JOB) if each in wanted] == list(wanted)

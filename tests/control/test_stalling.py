"""Trainings that hang: reported, ended and started again, in a played world."""

from collections.abc import Iterator
from contextlib import contextmanager

from dlcore import policies
from dlcore.model import JobId, Limits, Phase, Progress, Training
from tests.builders import make_job
from tests.control.governing import Government
from tests.control.played import World
from tests.control.training import Trainings

JOB = JobId("job")


@contextmanager
def trained(restart_seconds: float | None, backoff_limit: int = 3) -> Iterator[Government]:
    """A job over two nodes that trains, and a controller."""
    world = World("stalling", {"n0": 2, "n1": 2})
    government = Government(world, policies.make("adaptive"))
    job = make_job(
        JOB,
        options=(4,),
        training=Training(iterations=400),
        progress=Progress(http=True, stall_seconds=10.0, restart_seconds=restart_seconds),
        limits=Limits(backoff_limit=backoff_limit),
    )
    try:
        world.submit(job, iterations=400)
        government.begin()
        Trainings(world).begin()
        world.run(30.0)
        assert status(government).phase is Phase.RUNNING
        yield government
    finally:
        government.close()


def status(government: Government):
    return government.world.entries[JOB].status


def hang(government: Government) -> None:
    """One of its containers does nothing any more, so that all wait for it."""
    processes = min(government.world.witness.living, key=lambda each: each.node)
    processes.hang = True
    government.world.witness.spoil(processes)


def told(government: Government) -> list[str]:
    return [reason for reign in government.reigns for _, reason, _ in reign.platform.told]


def test_a_job_that_hangs_is_started_anew_and_comes_to_its_end():
    with trained(restart_seconds=30.0) as government:
        hang(government)
        government.world.run(15.0)
        assert "Stalled" in told(government)
        assert status(government).failures == 0
        government.world.run(300.0, until=lambda: status(government).is_final)
        assert (status(government).phase, status(government).failures) == (Phase.COMPLETED, 1)
        after = told(government)[told(government).index("Stalled") :]
        wanted = ("Stalled", "StalledForTooLong", "Moving", "Finished")
        assert tuple(reason for reason in after if reason in wanted) == wanted


def test_a_controller_that_comes_later_knows_for_how_long_it_hangs():
    with trained(restart_seconds=60.0) as government:
        hang(government)
        government.world.run(40.0)
        government.kill(government.leader)
        government.begin()
        government.world.run(35.0)
        assert status(government).failures == 1


def test_a_job_that_always_hangs_has_failed_in_the_end():
    with trained(restart_seconds=30.0, backoff_limit=2) as government:
        for _ in range(3):
            hang(government)
            government.world.run(60.0, until=lambda: status(government).phase is not Phase.RUNNING)
            government.world.run(
                40.0, until=lambda: status(government).phase in (Phase.RUNNING, Phase.FAILED)
            )
        assert (status(government).phase, status(government).failures) == (Phase.FAILED, 3)
        government.world.run(30.0)
        assert not government.world.witness.living


def test_where_its_user_does_not_want_that_it_is_only_told():
    with trained(restart_seconds=None) as government:
        hang(government)
        government.world.run(500.0)
        assert told(government).count("Stalled") == 1
        assert status(government).failures == 0

"""Jobs on hold by an administrator: no decision changes them until the release."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dljob.control.situation.quarantine import find_held
from dljob.control.situation.status import ConditionType
from dljob.core.model import JobId, Phase
from tests.control.governing import Government, governed, has_begun, status, submit, told


@contextmanager
def held(*namespaces: str) -> Iterator[tuple[Any, JobId]]:
    """Train team-a/runs on one of four GPUs, then hold these namespaces."""
    with governed() as government:
        government.begin()
        job = submit(government, "team-a/runs", options=(1, 4))
        government.world.run(60, until=lambda: has_begun(government, job))
        hold(government, *namespaces)
        yield government, job


def hold(government: Government, *namespaces: str) -> None:
    government.world.holds = dict.fromkeys(namespaces, "the storage is full")
    government.wake()
    government.world.run(20)


def aside(government: Government, job: JobId) -> Any:
    return status(government, job).condition(ConditionType.SET_ASIDE)


def gpus(government: Government, job: JobId) -> int:
    placement = status(government, job).placement
    return placement.gpus if placement is not None else 0


@pytest.mark.parametrize("namespace", ["team-a", "*"])
def test_held_job_keeps_its_gpus_and_says_why(namespace: str):
    with held(namespace) as (government, job):
        before = gpus(government, job), status(government, job).generation
        government.world.change(job, priority=5)
        government.world.run(120)
        assert (gpus(government, job), status(government, job).generation) == before
        assert status(government, job).phase is Phase.RUNNING
        condition = aside(government, job)
        assert (condition.status, condition.reason) == (True, "OnHold")
        assert "(the storage is full)" in condition.message
        assert [reason for reason, _ in told(government, job)].count("SetAside") == 1


def test_job_submitted_during_a_hold_starts_after_it():
    with held("team-b") as (government, _):
        late, other = submit(government, "team-b/late"), submit(government, "team-a/other")
        government.world.run(60)
        assert gpus(government, late) == 0
        assert aside(government, late).reason == "OnHold"
        assert has_begun(government, other)
        hold(government)
        government.world.run(60, until=lambda: has_begun(government, late))
        assert has_begun(government, late)
        assert not aside(government, late).status


def test_job_that_needs_held_gpus_waits_for_room():
    with held() as (government, job):
        government.world.run(60, until=lambda: gpus(government, job) == 4)
        hold(government, "team-a")
        other = submit(government, "team-b/other")
        government.world.run(60)
        assert gpus(government, job) == 4
        scheduled = status(government, other).condition(ConditionType.SCHEDULED)
        assert scheduled.reason == "NoRoom"
        assert "job team-a/runs is set aside" in scheduled.message


def test_hold_outlives_the_controller():
    with held("team-b") as (government, _):
        late = submit(government, "team-b/late")
        government.succeed(run=60)
        assert gpus(government, late) == 0


def test_users_cancel_and_suspend_held_jobs():
    with held("*") as (government, job):
        government.world.change(job, suspend=True)
        government.wake()
        government.world.run(60, until=lambda: status(government, job).phase is Phase.SUSPENDED)
        assert status(government, job).phase is Phase.SUSPENDED
        government.world.cancel(job)
        government.wake()
        government.world.run(60, until=lambda: job not in government.world.entries)
        assert job not in government.world.entries


def test_namespace_hold_wins_over_the_global_hold():
    with held() as (government, job):
        found = find_held(government.world.entries, {"team-a": "", "*": "an upgrade"})
        assert "the jobs of namespace team-a:" in found[job]
        assert (
            "all jobs (an upgrade):"
            in find_held(government.world.entries, {"*": "an upgrade"})[job]
        )

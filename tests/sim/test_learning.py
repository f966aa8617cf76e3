"""A world in which decisions know only observed values (``--known none``)."""

import math
from typing import Any

import pytest

from dljob.core.contract import Decision, View
from dljob.core.model import Checkpoint, GpuDemand, Job, JobId, JobState, Limits, Training
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.sim import policies
from dljob.sim.clusters import Machines, build_packed
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.jobs.workloads import Course, TracedJob, Workload
from dljob.sim.results.records import Record
from dljob_wire.messages import Shape
from tests.builders import FakePolicy

NODES = build_packed([Machines(1, 4)])
COSTS = Costs(process_initialization=20.0, checkpoint=5.0, process_termination=1.0)
KIND = JobType.of_one_job("job")


class Watching(FakePolicy):
    """Decides as max-min, and records its view of the first job."""

    def __init__(self) -> None:
        self._inner = policies.make("max-min")
        self.shown: list[tuple[float, JobState, Any]] = []

    def allocate(self, view: View) -> Decision:
        profile = view.predictor.profiles.get(KIND)
        states = (*view.running, *view.pending)
        self.shown += [(view.now, each, profile) for each in states if each.id == "job"]
        return self._inner.allocate(view)


def play(
    course: Course, *, iterations: float = 400.0, believed: float | None = None
) -> tuple[Record, Watching]:
    job = Job(
        id=JobId("job"),
        gpus=GpuDemand(options=(1,), requested=1),
        training=Training(iterations=int(iterations)),
        type=KIND,
        limits=Limits(backoff_limit=2),
        checkpoint=Checkpoint(shared=True, signal="SIGUSR1"),
    )
    truth = Profile(KIND, speeds={Shape(1, 1, ""): Speed(2.0)}, costs=COSTS)
    traced = TracedJob(job, iterations, course=course, believed=believed)
    workload = Workload("one", (traced,), {KIND: truth}, {})
    setting = Setting(nodes=NODES, costs=Costs(), period_s=5.0, trial_s=None, learns=True)
    watching = Watching()
    return World(workload, setting, policy=watching).play(), watching


def test_policy_sees_learnt_values_only():
    record, watching = play(Course())
    # It stands still once, for the trial of its checkpoint.
    assert record.completed[0].jct == pytest.approx(20.0 + 5.0 + 200.0, abs=1.0)
    early = [profile for now, _, profile in watching.shown if now < 45.0]
    assert all(profile is None or not profile.speeds for profile in early)
    _, state, profile = watching.shown[-1]
    assert profile.speeds[Shape(1, 1, "")].iterations_per_s == pytest.approx(2.0, rel=0.02)
    assert profile.costs.process_initialization == pytest.approx(20.0, abs=1.0)
    assert profile.costs.checkpoint == pytest.approx(5.0)
    assert state.speed == pytest.approx(2.0, rel=0.02)


def test_warm_up_is_played_and_not_believed():
    record, watching = play(Course(warm_up_s=30.0, warm_up_pace=0.2))
    # The pause for the trial falls into the warm-up, of which 25 s are left.
    assert record.completed[0].jct == pytest.approx(20.0 + 30.0 + (400.0 - 10.0) / 2.0, abs=1.0)
    _, _, profile = watching.shown[-1]
    assert profile.speeds[Shape(1, 1, "")].iterations_per_s == pytest.approx(2.0, rel=0.05)
    assert profile.costs.process_initialization == pytest.approx(20.0 + 20.0, abs=4.0)


def test_mute_job_shows_no_progress_and_ends():
    record, watching = play(Course(is_mute=True))
    assert len(record.completed) == 1
    assert {state.iterations_at(now) for now, state, _ in watching.shown} == {0.0}
    assert {state.speed for _, state, _ in watching.shown} == {0.0}


def test_crashing_job_is_retried_and_then_fails():
    record, _ = play(Course(crashes_after_s=30.0))
    (job,) = record.jobs
    # Three starts, and the pauses of 10 and 20 s between them.
    assert job.failed_at == pytest.approx(3 * (20.0 + 30.0) + 2 * 1.0 + 10.0 + 20.0, abs=6.0)
    assert record.completed == record.unfinished == []


def test_undeclared_length_stays_unknown():
    _, watching = play(Course(), believed=math.inf)
    assert {state.iterations_total for _, state, _ in watching.shown} == {math.inf}

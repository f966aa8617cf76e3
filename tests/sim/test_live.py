"""
Jobs whose processes stay when their GPUs change.

Times follow from ``COSTS``: newcomers start for 10 s, a change to fewer GPUs pauses for 0.5 s and one to more for 2 s.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from dljob.core.contract import Decision, View
from dljob.core.model import Checkpoint, Mechanism, Node
from dljob.core.profiles import JobType
from dljob.core.recording.record import Decided
from dljob.sim import policies
from dljob.sim.engine.settings import Outage, Setting
from dljob.sim.jobs.checkpointing import Kind
from dljob.sim.jobs.workloads import Course, TracedJob
from dljob.sim.results.recording import Recorder
from dljob.sim.results.records import Happening, Record
from dljob.sim.scenarios import draw_live, with_checkpoint
from dljob_wire.messages import Shape
from tests.builders import FakePolicy
from tests.sim import worlds
from tests.sim.worlds import (
    COSTS,
    ONE_NODE,
    TWO_NODES,
    Scripted,
    Watched,
    Wish,
    make_traced,
    make_workload,
    times_of,
    trained_by,
)

START = COSTS.pod_start(1) + COSTS.process_start(1)
"""When a job that comes first begins to train."""

PAUSES, TRAINS, HALTS = Happening.PAUSES, Happening.TRAINS, Happening.HALTS


def live(name: str = "a", **rest: Any) -> TracedJob:
    return make_traced(name, is_live=True, **rest)


def play(
    jobs: Iterable[TracedJob], script: Mapping[float, Mapping[str, Wish]], **rest: Any
) -> Record:
    given: dict[str, Any] = {"nodes": ONE_NODE, "costs": COSTS, **rest}
    return Watched(make_workload(*jobs), Setting(**given), policy=Scripted(script=script)).play()


def test_shrinking_pauses_and_then_releases():
    record = play(
        (live(iterations=4000.0), make_traced("b", options=(2,))),
        {0.0: {"a": 4}, 100.0: {"a": 2, "b": 2}},
    )
    # The pod of the other is ready after 50 s.
    assert times_of(record, PAUSES, "a") == [150.0]
    assert times_of(record, TRAINS, "a") == [START, 150.5]
    assert times_of(record, TRAINS, "b") == [150.5 + 10.0]
    (a, _) = record.jobs
    assert (a.lost_s, a.redone, a.reshapes, a.stops) == (0.5, 0.0, 1, 0)
    assert times_of(record, HALTS, "a") == []


def test_growing_trains_until_newcomers_have_started():
    record = play((live(iterations=4000.0),), {0.0: {"a": 2}, 100.0: {"a": 4}})
    assert times_of(record, PAUSES, "a") == [110.0]
    assert times_of(record, TRAINS, "a") == [START, 112.0]
    done = 2.0 * (110.0 - START)
    assert times_of(record, Happening.COMPLETED, "a") == [112.0 + (4000.0 - done) / 4.0]
    # Newcomers hold two GPUs while they start, and then all four stand still.
    (a,) = record.jobs
    assert a.lost_s == 2.0
    idle = 2 * 10.0 + 4 * 2.0
    assert record.sums.used - record.sums.training == 2 * START + idle


def test_growth_onto_another_node_waits_for_its_pod():
    script = {0.0: {"a": {"n1": 4}}, 100.0: {"a": {"n1": 4, "n2": 4}}}
    jobs = (live(options=(4, 8), iterations=9000.0),)
    record = play(jobs, script, nodes=TWO_NODES)
    assert times_of(record, PAUSES, "a") == [100.0 + 50.0 + 10.0]


def test_growth_waits_for_gpus_of_others():
    record = play(
        (live(iterations=4000.0), make_traced("b", options=(2,), iterations=4000.0)),
        {0.0: {"a": 2, "b": 2}, 100.0: {"a": 4, "b": 0}},
    )
    # The other saves itself and stops first.
    assert times_of(record, PAUSES, "a") == [100.0 + 5.0 + 10.0]


def test_newer_target_calls_newcomers_off():
    record = play(
        (live(iterations=4000.0), make_traced("b", options=(2,), iterations=400.0)),
        {0.0: {"a": 2}, 100.0: {"a": 4}, 104.0: {"a": 2, "b": 2}},
    )
    assert times_of(record, PAUSES, "a") == []
    # Newcomers end within 2 s; the pod of the other is ready later, and it starts for 10 s.
    assert times_of(record, TRAINS, "b") == [104.0 + 50.0 + 10.0]
    assert record.jobs[0].lost_s == 0.0


def test_newcomers_that_were_called_off_start_again():
    script = {0.0: {"a": 2}, 100.0: {"a": 4}, 104.0: {"a": 2}, 105.0: {"a": 4}}
    record = play((live(iterations=4000.0),), script)
    assert times_of(record, PAUSES, "a") == [106.0 + 10.0]


def test_pause_that_has_begun_comes_to_its_end():
    script = {0.0: {"a": 2}, 100.0: {"a": 4}, 111.0: {"a": 1}}
    record = play((live(iterations=4000.0),), script)
    assert times_of(record, PAUSES, "a") == [110.0, 112.0]
    assert times_of(record, TRAINS, "a") == [START, 112.0, 112.5]


def test_job_that_ends_takes_its_newcomers_along():
    jobs = (live(iterations=2.0 * (105.0 - START)), make_traced("b"))
    record = play(jobs, {0.0: {"a": 2}, 100.0: {"a": 4}, 106.0: {"b": 4}})
    assert times_of(record, Happening.COMPLETED, "a") == [105.0]
    assert times_of(record, TRAINS, "b") == [106.0 + START]


def test_change_to_other_gpus_restarts():
    script = {0.0: {"a": {"n1": 2}}, 100.0: {"a": {"n2": 2}}}
    record = play((live(iterations=4000.0),), script, nodes=TWO_NODES)
    assert times_of(record, PAUSES, "a") == []
    assert times_of(record, HALTS, "a") == [150.0]


@pytest.mark.parametrize(("blocked", "what"), [(False, PAUSES), (True, HALTS)])
def test_exchange_is_live_if_the_gpus_are_free(blocked, what):
    """It leaves a GPU of one node to another job, and takes one of the other node."""
    nodes = (Node.of("n1", 2), Node.of("n2", 1))
    jobs = [live(options=(2,), iterations=4000.0), make_traced("b", options=(1,), iterations=900.0)]
    jobs += [make_traced("c", options=(1,), iterations=9000.0)] if blocked else []
    script: dict[float, dict[str, Wish]] = {
        0.0: {"a": {"n1": 2}, "c": {"n2": 1} if blocked else 0},
        100.0: {"a": {"n1": 1, "n2": 1}, "b": {"n1": 1}, "c": 0},
    }
    record = play(jobs, script, nodes=nodes)
    assert len(times_of(record, what, "a")) == 1
    assert all(job.completed_at is not None or job.job == "c" for job in record.jobs)


def test_recreation_is_never_live():
    script = {0.0: {"a": 4}, 100.0: {"a": 2}}
    record = play((live(iterations=4000.0),), script, mechanism=Mechanism.RECREATE)
    assert times_of(record, PAUSES, "a") == []


def test_lost_node_in_a_pause_costs_the_unsaved_work():
    script = {0.0: {"a": {"n1": 4, "n2": 4}}, 700.0: {"a": {"n1": 4}}}
    outage = Outage(TWO_NODES[1].name, lost_at=700.2, back_at=900.0)
    jobs = (live(options=(4, 8), iterations=9000.0),)
    record = play(jobs, script, nodes=TWO_NODES, outages=(outage,))
    assert times_of(record, PAUSES, "a") == [700.0]
    (a,) = record.jobs
    # Its processes save every 600 s since they began to train at 60 s; the pause counts for little.
    assert a.lost_work_s == pytest.approx(700.0 - 660.0, abs=0.5)
    assert a.completed_at is not None


def test_lost_node_of_newcomers_lets_the_job_start_again():
    script = {0.0: {"a": {"n1": 4}}, 100.0: {"a": {"n1": 4, "n2": 4}}, 165.0: {"a": {"n1": 4}}}
    jobs = (live(options=(4, 8), iterations=9000.0),)
    for lost_at in (155.0, 161.0):
        outage = Outage(TWO_NODES[1].name, lost_at=lost_at)
        record = play(jobs, script, nodes=TWO_NODES, outages=(outage,))
        assert [job.completed_at is not None for job in record.jobs] == [True]


def test_crash_comes_when_its_processes_are_as_old_in_spite_of_changes():
    course = Course(crashes_after_s=100.0)
    job = replace(live(iterations=300.0), course=course)
    record = play((job,), {0.0: {"a": 2}, 100.0: {"a": 1}})
    assert times_of(record, Happening.CRASHED, "a")[0] == START + 100.0


def test_warm_up_goes_on_through_a_change():
    job = replace(live(iterations=4000.0), course=Course(warm_up_s=60.0, warm_up_pace=0.5))
    record = play((job,), {0.0: {"a": 2}, 100.0: {"a": 1}})
    done = 2.0 * 0.5 * (100.0 - START) + 1.0 * 0.5 * (START + 60.0 - 100.5)
    end = START + 60.0 + (4000.0 - done) / 1.0
    assert times_of(record, Happening.COMPLETED, "a") == [pytest.approx(end)]


def test_job_without_checkpoint_survives_a_hundred_changes():
    rng = random.Random(7)
    sizes = [rng.choice((1, 2, 3, 4)) for _ in range(130)]
    script = {30.0 * at: {"a": size} for at, size in enumerate(sizes)}
    job = with_checkpoint(live(options=(1, 2, 3, 4), iterations=12_000.0), Kind.NONE)
    record = play((job,), script)
    (a,) = record.jobs
    assert a.reshapes >= 90
    assert len(times_of(record, PAUSES, "a")) >= 85
    assert (a.redone, a.stops, times_of(record, HALTS, "a")) == (0.0, 0, [])
    assert trained_by(record)["a"] == pytest.approx(12_000.0)


# --- random histories -----------------------------------------------------------------------

NAMES = [name for name in policies.NAMES if name != "kube-pods"]


def make_history(seed: int, *, share: float, kinds: tuple[Kind, ...]) -> tuple[TracedJob, ...]:
    rng = random.Random(seed)
    jobs = []
    for number in range(16):
        job = make_traced(
            f"job-{number}",
            at=round(rng.uniform(0.0, 1500.0), 1),
            iterations=round(rng.lognormvariate(6.5, 1.0)),
            options=rng.choice([(1, 2, 4), (1,), (2, 4), (1, 2, 4, 8)]),
        )
        jobs.append(with_checkpoint(job, rng.choice(kinds)))
    return draw_live(make_workload(*jobs), share, seed=seed).jobs


def play_history(seed: int, policy: str, *, share: float, kinds: tuple[Kind, ...]) -> Record:
    jobs = make_history(seed, share=share, kinds=kinds)
    setting = Setting(nodes=TWO_NODES, costs=COSTS, seed=seed, trial_s=15.0 * (seed % 2))
    return Watched(make_workload(*jobs), setting, policy=worlds.make_short(policy)).play()


def test_no_policy_loses_work_of_live_jobs():
    kinds = (Kind.GOOD, Kind.NONE, Kind.BROKEN)
    for number, policy in enumerate(NAMES):
        record = play_history(number % 4, policy, share=0.7, kinds=kinds)
        assert all(job.completed_at is not None for job in record.jobs), policy
        assert sum(job.redone for job in record.jobs) == 0.0, policy


@pytest.mark.parametrize("policy", ["foresight", "afs-l", "max-min", "ones"])
def test_unsaved_live_jobs_are_changed(policy):
    record = play_history(1, policy, share=1.0, kinds=(Kind.NONE,))
    assert sum(job.reshapes for job in record.jobs) > 0
    assert sum(job.redone for job in record.jobs) == 0.0


@pytest.mark.parametrize("policy", ["foresight", "afs-l", "max-min"])
def test_lost_time_follows_from_the_costs(policy):
    record = play_history(2, policy, share=1.0, kinds=(Kind.GOOD,))
    gone = {Happening.COMPLETED, HALTS, Happening.STOPPED, Happening.LOST}
    for job in record.jobs:
        own = [entry for entry in record.log if entry.job == job.job]
        lost, since = 0.0, inf
        for entry in own:
            if entry.what in (PAUSES, HALTS):
                since = entry.time
            elif entry.what is TRAINS and since < inf:
                lost, since = lost + entry.time - since, inf
        pauses = [entry.time for entry in own if entry.what is PAUSES]
        ends = [
            next(e.time for e in own if e.what in gone | {TRAINS} and e.time > at) for at in pauses
        ]
        assert {round(end - at, 5) for at, end in zip(pauses, ends, strict=True)} <= {0.5, 2.0}
        if not job.stops:
            assert job.lost_s == pytest.approx(lost)


@pytest.mark.parametrize("policy", ["foresight", "afs-p", "ones"])
def test_same_seed_same_history(policy):
    kinds = (Kind.GOOD, Kind.NONE)
    first, second = (play_history(3, policy, share=0.5, kinds=kinds) for _ in range(2))
    assert first.log == second.log


def test_share_of_live_jobs_is_drawn_by_seed():
    workload = make_workload(*(make_traced(f"job-{n}", iterations=1.0) for n in range(400)))
    drawn = draw_live(workload, 0.5, seed=1)
    assert draw_live(workload, 0.5, seed=1) == drawn
    assert draw_live(workload, 0.0, seed=1) is workload
    assert 160 < sum(each.is_live for each in drawn.jobs) < 240
    assert all(each.is_live for each in draw_live(workload, 1.0, seed=1).jobs)


# --- what is recorded and learnt --------------------------------------------------------------


def test_record_has_the_pause_as_the_cost_of_the_decision():
    jobs, recorder = (live(iterations=4000.0),), Recorder(ONE_NODE)
    script = {0.0: {"a": 2}, 100.0: {"a": 4}, 111.0: {"a": 1}}
    setting = Setting(nodes=ONE_NODE, costs=COSTS)
    policy = Scripted(script=script)
    Watched(make_workload(*jobs), setting, policy=policy, recorder=recorder).play()
    decided = [line for line in recorder.lines if isinstance(line, Decided)]
    assert [line.cost_seconds for line in decided] == [START, 2.0, 0.5]
    assert [line.how for line in decided] == ["", "live", "live"]


class Alternating(FakePolicy):
    """Gives its job four GPUs and two in turn, every 100 s."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def allocate(self, view: View) -> Decision:
        self.views.append(view)
        states = (*view.running, *view.pending)
        wish = 4 if view.now % 200.0 >= 100.0 else 2
        shares = {state.id: worlds.make_share(wish) for state in states}
        return Decision(shares, wake_at=100.0 * (view.now // 100.0 + 1.0))


def test_controller_learns_pauses_and_speeds_of_live_changes():
    kind = JobType("linear")
    own = live(iterations=2000.0, options=(2, 4))
    job = replace(own.job, checkpoint=Checkpoint(shared=True, signal="SIGUSR1"))
    workload = replace(make_workload(replace(own, job=job)), known={})
    truths = {kind: replace(profile, costs=COSTS) for kind, profile in workload.truths.items()}
    setting = Setting(nodes=ONE_NODE, learns=True, period_s=5.0)
    policy = Alternating()
    Watched(replace(workload, truths=truths), setting, policy=policy).play()
    learnt = policy.views[-1].predictor.profiles[kind]
    assert learnt.costs is not None
    assert learnt.costs.live_grow == pytest.approx(2.0)
    assert learnt.costs.live_shrink == pytest.approx(0.5)
    assert len(learnt.cost_samples["process_initialization"]) == 1
    speeds = {shape: speed.iterations_per_s for shape, speed in learnt.speeds.items()}
    assert speeds == {
        Shape(2): pytest.approx(2.0, rel=0.05),
        Shape(4): pytest.approx(4.0, rel=0.05),
    }

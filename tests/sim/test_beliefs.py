"""Policies may believe wrong speeds and lengths, while the world uses the true ones."""

import math
from dataclasses import dataclass, field
from statistics import median, pstdev

import pytest

from dljob.core.contract import Decision, Share, View
from dljob.core.model import JobId
from dljob.core.profiles import JobType, Profile, Speed
from dljob.sim.beliefs import Beliefs, believe
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob_wire.messages import Shape
from tests.builders import FakePolicy
from tests.sim.worlds import COSTS, ONE_NODE, make_traced, make_workload


def workload_of(count: int) -> Workload:
    return make_workload(*(make_traced(f"j{i}", at=float(i)) for i in range(count)))


def believed_of(traced: TracedJob) -> float:
    assert traced.believed is not None
    return traced.believed


@dataclass
class Attentive(FakePolicy):
    """Gives the first job its largest number, and records the progress of every job."""

    seen: list[tuple[str, float, float]] = field(default_factory=list)

    def allocate(self, view: View) -> Decision:
        states = sorted((*view.running, *view.pending), key=lambda state: state.order)
        for state in states:
            done = state.iterations_at(view.now)
            self.seen.append((state.id, done, state.iterations_total))
        wake = view.now + 20.0 if states else None
        return Decision({JobId(states[0].id): Share(4)} if states else {}, wake_at=wake)


def play(workload: Workload) -> tuple[Attentive, list[float]]:
    policy = Attentive()
    record = World(workload, Setting(nodes=ONE_NODE, costs=COSTS), policy=policy).play()
    return policy, [job.jct for job in record.completed]


def test_believed_speeds_have_lognormal_errors():
    kinds = [JobType(f"m{i}") for i in range(500)]
    profiles = {kind: Profile(kind, {Shape(2, 1): Speed(3.0)}) for kind in kinds}
    workload = believe(Workload("w", (), profiles, profiles), Beliefs(speed_error=0.2))
    assert workload.truths is profiles
    errors = [
        math.log(workload.known[kind].speeds[Shape(2, 1)].iterations_per_s / 3.0) for kind in kinds
    ]
    assert median(errors) == pytest.approx(0.0, abs=0.03)
    assert pstdev(errors) == pytest.approx(0.2, rel=0.1)


def test_believed_lengths_have_lognormal_errors():
    workload = believe(workload_of(500), Beliefs(size_error=0.2))
    errors = [math.log(believed_of(traced) / traced.iterations) for traced in workload.jobs]
    assert median(errors) == pytest.approx(0.0, abs=0.03)
    assert pstdev(errors) == pytest.approx(0.2, rel=0.1)
    assert all(traced.iterations == 1000.0 for traced in workload.jobs)


def test_beliefs_do_not_change_durations():
    exact, times = play(workload_of(3))
    wrong, same = play(believe(workload_of(3), Beliefs(size_error=0.2, seed=4)))
    assert same == times
    first = {job: total for job, _, total in reversed(wrong.seen)}
    assert all(total != 1000.0 for total in first.values())
    assert {total for _, _, total in exact.seen} == {1000.0}


def test_outlived_belief_grows():
    workload = believe(workload_of(8), Beliefs(size_error=0.5, seed=1))
    seen, _ = play(workload)
    short = {each.job.id: believed_of(each) for each in workload.jobs if believed_of(each) < 800.0}
    assert short
    for job, believed in short.items():
        beliefs = [(done, total) for name, done, total in seen.seen if name == job]
        assert all(done < total for done, total in beliefs)
        totals = [total for _, total in beliefs]
        assert totals[0] == believed
        assert totals == sorted(totals)
        assert totals[-1] > believed


def test_unknown_sizes_stay_hidden():
    workload = believe(workload_of(3), Beliefs(sizes_known=False))
    assert {each.job.training.iterations for each in workload.jobs} == {None}
    policy, times = play(workload)
    assert {total for _, _, total in policy.seen} == {math.inf}
    assert times == play(workload_of(3))[1]

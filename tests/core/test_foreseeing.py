"""When waiting jobs start: the scheduler played on, held against the simulator and against sums by hand."""

import math
import random

import pytest

from dlcore.foreseeing import MOST_DECISIONS, foresee
from dlcore.model import Cluster, JobId, Snapshot
from dlcore.profiles import Costs
from dlsim import policies
from dlsim.engine.settings import Setting
from dlsim.engine.world import World
from tests.builders import make_cluster, make_profile, make_snapshot, make_state
from tests.sim.worlds import ONE_NODE, make_traced, make_workload

LINEAR = make_profile({1: 1.0, 2: 2.0, 4: 4.0}, model="linear")


def turns(*states, policy="fifo", **nodes):
    cluster = make_cluster(**(nodes or {"n1": 4}))
    snapshot = make_snapshot(cluster, *states, profiles=(LINEAR,))
    return foresee(snapshot, policies.make(policy))


def waits(name, gpus=4, iterations=1000.0, **rest):
    options = {"options": (gpus,), "model": "linear", "iterations_total": iterations}
    return make_state(name, **options, **rest)


def runs(name, gpus=(0, 1, 2, 3), **rest):
    options = {"options": (len(gpus),), "model": "linear", "speed": 4.0, **rest}
    return make_state(name, holds={"n1": gpus}, **options)


def test_jobs_start_when_those_before_them_have_ended():
    known = turns(runs("a"), waits("b", iterations=400.0), waits("c"))
    assert {job: turn.ahead for job, turn in known.items()} == {"b": 0, "c": 1}
    assert known["b"].starts_in == pytest.approx(250.0)
    assert known["c"].starts_in == pytest.approx(350.0)


def test_what_is_not_known_is_not_foretold():
    known = turns(runs("open", iterations_total=math.inf), waits("b"), waits("c"))
    assert [turn.starts_in for turn in known.values()] == [None, None]
    assert [turn.ahead for turn in known.values()] == [0, 1]
    assert known["b"].unknown_because == "how long open trains is not known"
    large = turns(runs("a"), waits("large", gpus=8))
    assert (
        large["large"].unknown_because == "it does not start when the jobs that run now have ended"
    )


def test_a_job_of_unknown_length_keeps_only_those_waiting_that_need_its_gpus():
    half = make_state(
        "half",
        holds={"n1": (2, 3)},
        options=(2,),
        model="linear",
        speed=2.0,
        iterations_total=200.0,
    )
    known = turns(
        runs("open", gpus=(0, 1), iterations_total=math.inf), half, waits("b", gpus=2), waits("c")
    )
    assert known["b"].starts_in == pytest.approx(100.0)
    assert known["c"].starts_in is None


def test_suspended_jobs_and_those_that_run_have_no_turn():
    assert set(turns(runs("a"), waits("b"), waits("off", suspend=True))) == {"b"}
    assert turns() == {}


def test_it_is_given_up_when_it_takes_too_long():
    states = [runs("a"), *(waits(f"j{n}") for n in range(5))]
    snapshot = make_snapshot(make_cluster(n1=4), *states, profiles=(LINEAR,))
    known = foresee(snapshot, policies.make("fifo"), is_late=lambda: True)
    assert {turn.starts_in for turn in known.values()} == {None}
    assert {turn.unknown_because for turn in known.values()} == {"it is too many decisions ahead"}
    many = [runs("a"), *(waits(f"j{n:03}") for n in range(MOST_DECISIONS + 5))]
    snapshot = make_snapshot(make_cluster(n1=4), *many, profiles=(LINEAR,))
    known = foresee(snapshot, policies.make("fifo"))
    assert known[JobId(f"j{MOST_DECISIONS + 4:03}")].starts_in is None
    assert known[JobId("j000")].starts_in == pytest.approx(250.0)


@pytest.mark.parametrize("policy", ["foresight", "fifo", "srtf", "sia"])
@pytest.mark.parametrize("seed", range(2))
def test_it_is_what_the_simulator_makes_of_the_same_jobs(policy, seed):
    """Without costs and with true predictions, a simulation is what will happen."""
    draw = random.Random(f"{policy}/{seed}")
    traced = [
        make_traced(
            f"j{n}", iterations=draw.randint(200, 4000), options=draw.choice([(4,), (2, 4)])
        )
        for n in range(6)
    ]
    workload = make_workload(*traced)
    setting = Setting(nodes=ONE_NODE, costs=Costs())
    record = World(workload, setting, policy=policies.make(policy)).play()
    states = [
        make_state(
            t.job.id,
            order=n,
            options=t.job.gpus.options,
            model="linear",
            iterations_total=t.iterations,
        )
        for n, t in enumerate(traced)
    ]
    snapshot = Snapshot(
        now=0.0,
        cluster=Cluster(ONE_NODE),
        pending=states,
        profiles=workload.known,
        costs=Costs(),
    )
    known = foresee(snapshot, policies.make(policy))
    for job in record.jobs:
        assert known[job.job].starts_in == pytest.approx(job.started_at, abs=1.0), job.job

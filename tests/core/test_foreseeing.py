"""The forecast of the starts of waiting jobs, against the simulator and sums by hand."""

import itertools
import math
import random
from dataclasses import replace

import pytest

from dljob.control.deciding.futures import turn_document
from dljob.control.situation.status_documents import write_time
from dljob.core.foreseeing import (
    MOST_DECISIONS,
    NO_QUOTA,
    NO_TIME,
    TOO_LARGE,
    Turn,
    foresee,
    foresee_all,
    foresee_courses,
)
from dljob.core.model import Ceiling, Cluster, JobId, Snapshot
from dljob.core.predicting.predictor import SUPPOSED_S, Span
from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from tests.builders import make_cluster, make_profile, make_snapshot, make_state
from tests.sim.worlds import ONE_NODE, make_traced, make_workload

FREE = Costs()
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


def test_start_follows_the_end_of_earlier_jobs():
    known = turns(runs("a"), waits("b", iterations=400.0), waits("c"))
    assert {job: turn.ahead for job, turn in known.items()} == {"b": 0, "c": 1}
    assert known["b"].starts_in == pytest.approx(250.0)
    assert known["c"].starts_in == pytest.approx(350.0)


def test_job_started_next_is_ahead_of_no_other():
    known = turns(waits("b", gpus=2), waits("c", gpus=2), waits("d"), waits("e"))
    assert [known[JobId(job)].ahead for job in "bcde"] == [0, 0, 0, 1]
    assert known[JobId("d")].starts_in > 0.0


def courses(*states, costs=FREE, profiles=(LINEAR,), **limit):
    snapshot = make_snapshot(make_cluster(n1=4), *states, profiles=profiles, costs=costs)
    new = [state.id for state in states if state.placement is None]
    return foresee_courses(snapshot, policies.make("fifo"), jobs=new, **limit)


def test_partly_played_course_has_the_widest_bounds():
    checks = itertools.count()
    # The second play, in which all jobs are quick, stops before its first decision.
    (known,) = courses(waits("b", iterations=400.0), is_late=lambda: next(checks) >= 1).values()
    assert (known.start, known.end) == (Span(0.0, 0.0, math.inf), Span(100.0, 0.0, math.inf))


def test_course_has_start_and_end_with_bounds():
    known = courses(runs("a"), waits("b", iterations=400.0))[JobId("b")]
    assert known.start.expected == pytest.approx(250.0)
    assert known.end.expected == pytest.approx(350.0)
    assert 0.0 < known.start.low < 250.0 < known.start.high
    # The doubts about both jobs add up.
    assert known.end.high - known.end.low > known.start.high - known.start.low > 0.0


def test_course_includes_start_and_end_costs():
    costs = Costs(pod_initialization=7.0, process_initialization=5.0, pod_termination=3.0)
    (known,) = courses(waits("b", iterations=400.0), costs=costs).values()
    assert (known.start.expected, known.start.high) == (0.0, 0.0)
    assert known.end.expected == pytest.approx(7.0 + 5.0 + 100.0 + 3.0)


def test_end_is_unknown_without_a_measured_speed():
    (known,) = courses(waits("b"), profiles=()).values()
    assert (known.start.expected, known.end.expected) == (0.0, math.inf)
    assert known.unknown_because == "the speed of b is not known yet"


def test_future_of_all_jobs_has_gpus_and_ends():
    states = [
        runs("a", (0, 1), options=(2,), speed=2.0, iterations_total=200.0),
        waits("b", gpus=2),
    ]
    states += [waits("c", iterations=400.0), waits("large", gpus=8), waits("off", suspend=True)]
    snapshot = make_snapshot(make_cluster(n1=4), *states, profiles=(LINEAR,))
    known = foresee_all(snapshot, policies.make("fifo"))
    assert set(known) == {"a", "b", "c", "large"}
    assert known[JobId("a")] == (2, ((0.0, 100.0, 2),), 100.0, "", False)
    assert known[JobId("b")].spans == ((0.0, 500.0, 2),)
    assert (known[JobId("c")].gpus, known[JobId("c")].ends_in) == (0, 600.0)
    assert known[JobId("large")] == (0, (), None, TOO_LARGE, False)


@pytest.mark.parametrize(
    "first", [runs("a", iterations_total=math.inf), runs("a", speed=0.0, model="other")]
)
def test_unknown_length_or_speed_is_supposed(first):
    snapshot = make_snapshot(make_cluster(n1=4), first, waits("b"), profiles=(LINEAR,))
    known = foresee_all(snapshot, policies.make("fifo"))
    assert (known[JobId("a")].ends_in, known[JobId("a")].supposes) == (SUPPOSED_S, True)
    assert (known[JobId("b")].ends_in, known[JobId("b")].supposes) == (SUPPOSED_S + 250.0, False)


def test_futures_end_with_the_time_limit():
    snapshot = make_snapshot(make_cluster(n1=4), runs("a"), waits("b"), profiles=(LINEAR,))
    checks = itertools.count()
    known = foresee_all(snapshot, policies.make("fifo"), is_late=lambda: next(checks) >= 1)
    assert known[JobId("a")].ends_in == 250.0
    assert known[JobId("b")][2:] == (None, NO_TIME, False)


def test_unknown_start_is_not_forecast():
    known = turns(runs("open", iterations_total=math.inf), waits("b"), waits("c"))
    assert [turn.starts_in for turn in known.values()] == [None, None]
    assert [turn.ahead for turn in known.values()] == [0, 1]
    assert known["b"].unknown_because == "how long open trains is not known"
    large = turns(runs("a"), waits("large", gpus=8))
    assert large["large"].unknown_because == TOO_LARGE
    queued = turns(runs("a"), replace(waits("queued"), ceiling=Ceiling(0)))
    assert queued["queued"] == Turn(0, None, NO_QUOTA)


def test_job_grows_no_further_than_its_quota():
    ends = {}
    for quota in (1, 2, 4):
        state = make_state("queued", options=(1, 2, 4), model="linear", iterations_total=1000.0)
        ceiling = Ceiling(quota)
        state = replace(state, job=ceiling.over(state.job), ceiling=ceiling)
        snapshot = make_snapshot(make_cluster(n1=4), state, profiles=(LINEAR,))
        ends[quota] = foresee_all(snapshot, policies.make("max-min"))[JobId("queued")].ends_in
    assert ends == {1: 1000.0, 2: 500.0, 4: 250.0}


def test_unknown_length_delays_only_jobs_that_need_its_gpus():
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


def test_job_of_unmeasured_speed_is_named():
    snapshot = make_snapshot(make_cluster(n1=4), runs("new", speed=0.0), waits("b"), profiles=())
    known = foresee(snapshot, policies.make("fifo"))
    assert known[JobId("b")] == (0, None, "the speed of new is not known yet")


def test_first_steps_of_a_new_job_give_no_forecast():
    new = runs("new", model="other")
    assert turns(new, waits("b"))[JobId("b")] == (0, None, "the speed of new is not known yet")


def test_old_forecast_holds_while_a_new_one_is_late():
    late = Turn(1, None, NO_TIME)
    former = {"ahead": 0, "expectedStart": write_time(500.0)}
    assert turn_document(late, 400.0, former=former) == {**former, "ahead": 1}
    unknown = {"ahead": 1, "unknownBecause": NO_TIME}
    assert turn_document(late, 400.0) == unknown
    assert turn_document(late, 600.0, former=former) == unknown
    assert turn_document(late, 600.0, former=unknown) == unknown
    other = Turn(1, None, "the speed of a is not known yet")
    assert "expectedStart" not in turn_document(other, 400.0, former=former)


@pytest.mark.parametrize("end_s", [0.1 * n for n in range(1, 8)])
def test_forecast_ends_at_large_clock_values(end_s):
    states = [runs("a"), waits("b", iterations=400.0), waits("c")]
    costs = Costs(pod_termination=end_s)
    snapshot = make_snapshot(
        make_cluster(n1=4), *states, profiles=(LINEAR,), now=1.795886814417595e9, costs=costs
    )
    known = foresee(snapshot, policies.make("fifo"))
    assert None not in {turn.starts_in for turn in known.values()}


def test_suspended_and_running_jobs_have_no_turn():
    assert set(turns(runs("a"), waits("b"), waits("off", suspend=True))) == {"b"}
    assert turns() == {}


def test_long_forecast_is_cut_off():
    states = [runs("a"), *(waits(f"j{n}") for n in range(5))]
    snapshot = make_snapshot(make_cluster(n1=4), *states, profiles=(LINEAR,))
    known = foresee(snapshot, policies.make("fifo"), is_late=lambda: True)
    assert {turn.starts_in for turn in known.values()} == {None}
    assert {turn.unknown_because for turn in known.values()} == {NO_TIME}
    many = [runs("a"), *(waits(f"j{n:03}") for n in range(MOST_DECISIONS + 5))]
    snapshot = make_snapshot(make_cluster(n1=4), *many, profiles=(LINEAR,))
    known = foresee(snapshot, policies.make("fifo"))
    last = known[JobId(f"j{MOST_DECISIONS + 4:03}")]
    assert last == (last.ahead, None, "it is too many decisions ahead")
    assert known[JobId("j000")].starts_in == pytest.approx(250.0)


@pytest.mark.parametrize("policy", ["foresight", "fifo", "srtf", "sia"])
@pytest.mark.parametrize("seed", range(2))
def test_forecast_matches_the_simulator(policy, seed):
    """Without costs and with true predictions, the simulation is exact."""
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
        now=0.0, cluster=Cluster(ONE_NODE), pending=states, profiles=workload.known, costs=Costs()
    )
    known = foresee(snapshot, policies.make(policy))
    for job in record.jobs:
        assert known[job.job].starts_in == pytest.approx(job.started_at, abs=1.0), job.job

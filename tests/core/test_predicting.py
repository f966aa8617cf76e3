import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core.model import (
    Cluster,
    GpuDemand,
    Job,
    JobId,
    JobState,
    Mechanism,
    Node,
    NodeName,
    Placement,
    Training,
)
from dljob.core.predicting.predictor import Predictor, Span
from dljob.core.predicting.spans import span_remaining
from dljob.core.profiles import Costs, JobType, Profile, Speed, SpeedSeen, fold
from dljob_wire.messages import Shape

KIND = JobType("resnet50", "imagenet", 256)
MEASURED = {Shape(1): 1.0, Shape(2): 1.7, Shape(4): 2.4}
COSTS = Costs(
    pod_initialization=100.0,
    pod_initialization_per_gpu=1.0,
    process_initialization=20.0,
    process_initialization_per_gpu=0.5,
    checkpoint=5.0,
    process_termination=2.0,
    pod_termination=40.0,
    live_shrink=0.5,
    live_grow=2.0,
)
TWO_NODES = (Node.of("n1", 8), Node.of("n2", 8))


def predictor(speeds=MEASURED, *, mechanism=Mechanism.IN_PLACE, nodes=TWO_NODES):
    profiles = {}
    if speeds:
        profile_speeds = {shape: Speed(speed) for shape, speed in speeds.items()}
        profiles[KIND] = Profile(KIND, profile_speeds)
    return Predictor(profiles=profiles, costs=COSTS, mechanism=mechanism, cluster=Cluster(nodes))


def job(*, types=(), mixed=False):
    return Job(
        id=JobId("a"),
        type=KIND,
        gpus=GpuDemand(options=(1, 2, 4), requested=4, types=types, mixed=mixed),
        training=Training(),
    )


def state(*, gpus=0, speed=0.0, total=1000.0, adjusting=False, is_live=False):
    placement = Placement.of({NodeName("n1"): range(gpus)}) if gpus else None
    return JobState(
        job=job(),
        order=0,
        placement=placement,
        speed=speed,
        iterations_total=total,
        adjusting=adjusting,
        is_live=is_live,
    )


def test_speed_is_the_value_of_its_estimate():
    predict = predictor()
    for shape in (Shape(2), Shape(3), Shape(4, 2), Shape(16, 2)):
        assert predict.speed(job(), shape) == predict.estimate(job(), shape).value > 0.0


@pytest.mark.parametrize(
    ("gpus", "nodes"), [(0, 1), (1, 1), (8, 1), (9, 2), (12, 2), (13, 3), (14, 3), (99, 3)]
)
def test_best_shape_uses_the_fewest_nodes(gpus, nodes):
    predict = predictor(nodes=[Node.of("a", 2), Node.of("b", 8), Node.of("c", 4)])
    assert predict.shape(gpus, "") == Shape(gpus, nodes, "")
    # The second time it is remembered.
    assert predict.shape(gpus, "") == Shape(gpus, nodes, "")


TWO_TYPES = (Node.of("a", 4, "V100"), Node.of("b", 8, "K80"))
ON_TWO_TYPES = {Shape(1, 1, "V100"): 4.0, Shape(8, 1, "K80"): 8.0, Shape(1, 1, "K80"): 1.0}


@pytest.mark.parametrize(
    ("types", "mixed", "gpus", "best"),
    [
        ((), False, 1, "V100"),
        (("K80",), False, 1, "K80"),
        (("K80", "V100"), False, 1, "V100"),
        # Only the K80 are enough.
        ((), False, 8, "K80"),
        # None are enough: the fastest, or all together where the job allows it.
        ((), False, 9, "V100"),
        ((), True, 9, "K80+V100"),
        # A type that is not in the cluster is not chosen while another is.
        (("H900", "K80"), False, 1, "K80"),
        (("H900",), False, 1, "H900"),
    ],
)
def test_best_type_is_the_fastest_accepted(types, mixed, gpus, best):
    predict = predictor(ON_TWO_TYPES, nodes=TWO_TYPES)
    assert predict.best_type(job(types=types, mixed=mixed), gpus) == best


def test_observed_speed_replaces_the_prediction():
    running = state(gpus=2, speed=0.85)
    assert predictor().training_time(running, Shape(2), now=0.0) == 1000.0 / 0.85


def test_slow_job_is_slow_in_all_shapes():
    running = state(gpus=2, speed=0.85)
    assert predictor().training_time(running, Shape(4), now=0.0) == pytest.approx(1000.0 / 1.2)


def test_completion_has_all_six_terms():
    expected = (100.0 + 4 * 1.0) + (20.0 + 4 * 0.5) + 1000.0 / 2.4 + 5.0 + 2.0 + 40.0
    assert predictor().completion(state(), Shape(4), now=0.0) == pytest.approx(expected)


def test_in_place_change_restarts_the_process():
    change = 5.0 + 2.0 + (20.0 + 4 * 0.5)
    running = state(gpus=2, speed=1.7)
    predict = predictor()
    assert predict.change_cost(running, Shape(4)) == pytest.approx(change)
    expected = change + 1000.0 / 2.4 + 5.0 + 2.0 + 40.0
    assert predict.remaining_after(running, Shape(4), now=0.0) == pytest.approx(expected)


@pytest.mark.parametrize("moves", [False, True])
def test_recreate_change_restarts_the_pod(moves):
    change = 5.0 + 2.0 + 40.0 + (100.0 + 4 * 1.0) + (20.0 + 4 * 0.5)
    running = state(gpus=2, speed=1.7)
    predict = predictor(mechanism=Mechanism.RECREATE)
    assert predict.change_cost(running, Shape(4)) == pytest.approx(change)
    expected = change + 1000.0 / 2.4 + 5.0 + 2.0 + 40.0
    after = predict.remaining_after(running, Shape(4), now=0.0, moves=moves)
    assert after == pytest.approx(expected)


def test_in_place_move_trains_while_pods_start():
    running = state(gpus=2, speed=1.7)
    predict = predictor()
    lead, restart = 100.0 + 4 * 1.0, 5.0 + 2.0 + (20.0 + 4 * 0.5)
    assert predict.change_cost(running, Shape(4)) == pytest.approx(restart)
    expected = lead + restart + (1000.0 - 1.7 * lead) / 2.4 + 5.0 + 2.0 + 40.0
    after = predict.remaining_after(running, Shape(4), now=0.0, moves=True)
    assert after == pytest.approx(expected)


def test_live_shrink_pauses_without_restart():
    live, predict = state(gpus=4, speed=2.4, is_live=True), predictor()
    assert predict.change_cost(live, Shape(2)) == 0.5
    expected = 0.5 + 1000.0 / 1.7 + 5.0 + 2.0 + 40.0
    assert predict.remaining_after(live, Shape(2), now=0.0) == pytest.approx(expected)


@pytest.mark.parametrize(("moves", "pods"), [(False, 0.0), (True, 100.0 + 4 * 1.0)])
def test_live_growth_trains_while_newcomers_start(moves, pods):
    live, predict = state(gpus=2, speed=1.7, is_live=True), predictor()
    assert predict.change_cost(live, Shape(4)) == 2.0
    lead = pods + (20.0 + 4 * 0.5)
    expected = lead + 2.0 + (1000.0 - 1.7 * lead) / 2.4 + 5.0 + 2.0 + 40.0
    after = predict.remaining_after(live, Shape(4), now=0.0, moves=moves)
    assert after == pytest.approx(expected)


def test_live_job_restarts_elsewhere():
    live, other = (state(gpus=2, speed=1.7, is_live=is_live) for is_live in (True, False))
    predict = predictor()
    restart = 5.0 + 2.0 + (20.0 + 4 * 0.5)
    assert predict.change_cost(live, Shape(4), stays=False) == pytest.approx(restart)
    assert predict.change_cost(live, Shape(4, 1, "V100")) == pytest.approx(restart)
    elsewhere = Placement.of({NodeName("n2"): range(2)})
    assert predict.remaining_on(live, elsewhere, 0.0) == predict.remaining_on(other, elsewhere, 0.0)
    beside = Placement.of({NodeName("n1"): range(1, 3)})
    assert predict.remaining_on(live, beside, 0.0) < predict.remaining_on(other, beside, 0.0)


def test_growth_takes_at_least_as_long_as_shrinking():
    assert Costs(live_shrink=0.5).live_change(joins=True) == 0.5


def test_live_change_under_way_has_its_pause_ahead():
    grows = state(gpus=2, adjusting=True, is_live=True)
    assert predictor().remaining(grows, now=0.0) == pytest.approx(2.0 + 1000.0 / 1.7 + 47.0)


@given(
    st.integers(1, 8),
    st.floats(0.0, 100.0),
    st.floats(0.0, 1e6),
    st.booleans(),
    st.sampled_from(list(Mechanism)),
)
def test_null_change_only_costs(gpus, speed, total, adjusting, mechanism):
    predict = predictor(mechanism=mechanism)
    running = state(gpus=gpus, speed=speed, total=total, adjusting=adjusting)
    stay = predict.remaining(running, now=0.0)
    assert stay <= predict.remaining_after(running, Shape(gpus), now=0.0)
    if adjusting:
        return  # It does not train, so its progress meanwhile is unknown.
    moved = predict.remaining_after(running, Shape(gpus), now=0.0, moves=True)
    assert stay <= moved * (1 + 1e-9)


def observed(*speeds: float) -> Profile:
    profile = Profile(KIND, costs=Costs())
    for second, speed in enumerate(speeds):
        profile = fold(profile, SpeedSeen(Shape(2), speed, 10.0, float(second)))
    return profile


def span(profile: Profile | None, running: JobState) -> Span:
    predict = Predictor(
        profiles={KIND: profile} if profile is not None else {},
        costs=Costs(),
        mechanism=Mechanism.IN_PLACE,
        cluster=Cluster(TWO_NODES),
    )
    return span_remaining(predict, running, now=0.0)


def width(profile: Profile | None, running: JobState) -> float:
    found = span(profile, running)
    return (found.high - found.low) / found.expected


TRAINS = state(gpus=2, speed=1.7)


@given(
    st.lists(st.floats(0.1, 10.0), max_size=9),
    st.integers(1, 8),
    st.floats(0.0, 10.0),
    st.floats(0.0, 1e6),
    st.booleans(),
)
def test_expectation_lies_within_its_bounds(speeds, gpus, speed, total, adjusting):
    running = state(gpus=gpus, speed=speed, total=total, adjusting=adjusting)
    found = span(observed(*speeds) if speeds else None, running)
    assert 0.0 <= found.low <= found.high
    assert found.low <= found.expected <= found.high or found.expected == float("inf")


def test_end_without_measured_speed_has_an_upper_bound():
    assert span(None, TRAINS) == Span(float("inf"), 0.0, 1000.0 / 1.7)
    assert span(None, replace(TRAINS, speed=0.0)).low == float("inf")


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_nine_in_ten_trainings_end_within_bounds(noise):
    """The bounds hold nine of ten trainings at every noise, which is the reason for their width."""
    chance, hits = random.Random(noise), 0
    for _ in range(300):
        pace = [max(0.05, chance.gauss(1.0, noise)) for _ in range(100)]
        profile = observed(*(1.7 * each for each in pace[:9]))
        now = replace(TRAINS, speed=profile.speeds[Shape(2)].iterations_per_s)
        found = span(profile, now)
        truth = 1000.0 / 1.7 / (sum(pace[9:]) / len(pace[9:]))
        hits += found.low <= truth <= found.high
    assert hits >= 270

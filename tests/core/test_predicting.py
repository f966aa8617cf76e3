import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcore.model import (
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
from dlcore.predicting.growths import usual_growth
from dlcore.predicting.predictor import Predictor, Span
from dlcore.predicting.spans import span_remaining
from dlcore.profiles import Costs, JobType, Profile, Speed, SpeedSeen, fold
from dlwire.messages import Shape

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
)
TWO_NODES = (Node.of("n1", 8), Node.of("n2", 8))


def predictor(
    speeds=MEASURED,
    *,
    costs=COSTS,
    measured_costs=None,
    mechanism=Mechanism.IN_PLACE,
    nodes=TWO_NODES,
):
    profiles = {}
    if speeds:
        profile_speeds = {shape: Speed(speed) for shape, speed in speeds.items()}
        profiles[KIND] = Profile(KIND, profile_speeds, costs=measured_costs)
    return Predictor(profiles=profiles, costs=costs, mechanism=mechanism, cluster=Cluster(nodes))


def job(*, kind=KIND, types=(), mixed=False):
    return Job(
        id=JobId("a"),
        type=kind,
        gpus=GpuDemand(options=(1, 2, 4), requested=4, types=types, mixed=mixed),
        training=Training(),
    )


def state(*, gpus=0, speed=0.0, total=1000.0, adjusting=False, done=0.0, kind=KIND, gpu_type=""):
    placement = Placement.of({NodeName("n1"): range(gpus)}, gpu_type) if gpus else None
    return JobState(
        job=job(kind=kind),
        order=0,
        placement=placement,
        speed=speed,
        iterations_done=done,
        iterations_total=total,
        adjusting=adjusting,
    )


# --- speeds


def test_a_speed_is_the_value_of_its_estimate():
    predict = predictor()
    for shape in (Shape(2), Shape(3), Shape(4, 2), Shape(16, 2)):
        assert predict.speed(job(), shape) == predict.estimate(job(), shape).value > 0.0


def test_nothing_is_known_of_an_unknown_type_among_no_profiles():
    predict = predictor(speeds={})
    assert predict.speed(job(), Shape(2)) == 0.0
    assert predict.estimate(job(), Shape(2)) == (0.0, 0.0)


def test_predictions_survive_the_predictor():
    first = predictor()
    profiles = first.profiles
    speed = first.speed(job(), Shape(16, 2))
    again = Predictor(
        profiles=profiles,
        costs=COSTS,
        mechanism=Mechanism.IN_PLACE,
        cluster=Cluster([Node.of("n9", 1)]),
    )
    assert again.speed(job(), Shape(16, 2)) == speed


# --- shapes and types


@pytest.mark.parametrize(
    ("gpus", "nodes"), [(0, 1), (1, 1), (8, 1), (9, 2), (12, 2), (13, 3), (14, 3), (99, 3)]
)
def test_a_shape_at_best_is_on_the_fewest_nodes(gpus, nodes):
    predict = predictor(nodes=[Node.of("a", 2), Node.of("b", 8), Node.of("c", 4)])
    assert predict.shape(gpus, "") == Shape(gpus, nodes, "")
    # The second time it is remembered.
    assert predict.shape(gpus, "") == Shape(gpus, nodes, "")


def test_a_shape_at_best_is_on_nodes_of_its_type():
    predict = predictor(
        nodes=[Node.of("a", 8, "V100"), Node.of("b", 2, "K80"), Node.of("c", 2, "K80")]
    )
    assert predict.shape(4, "V100") == Shape(4, 1, "V100")
    assert predict.shape(4, "K80") == Shape(4, 2, "K80")
    assert predict.shape(4, "H900") == Shape(4, 1, "H900")


def test_mixed_types_are_on_a_node_each_at_least():
    predict = predictor(nodes=[Node.of("a", 8, "V100"), Node.of("b", 4, "K80")])
    assert predict.shape(2, "K80+V100") == Shape(2, 2, "K80+V100")
    assert predict.shape(12, "K80+V100") == Shape(12, 2, "K80+V100")


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
def test_the_best_type_is_the_fastest_that_is_accepted_and_there(types, mixed, gpus, best):
    predict = predictor(ON_TWO_TYPES, nodes=TWO_TYPES)
    assert predict.best_type(job(types=types, mixed=mixed), gpus) == best


def test_equal_types_are_chosen_as_the_user_likes_them():
    predict = predictor({Shape(1, 1, "V100"): 1.0, Shape(1, 1, "K80"): 1.0}, nodes=TWO_TYPES)
    assert predict.best_type(job(types=("V100", "K80")), 1) == "V100"
    assert predict.best_type(job(types=("K80", "V100")), 1) == "K80"


def test_an_empty_cluster_has_a_best_type_of_no_name():
    assert predictor(nodes=()).best_type(job(), 1) == ""


# --- what is seen corrects what is predicted


def test_a_job_that_trains_is_as_fast_as_it_is_seen_to_be():
    running = state(gpus=2, speed=0.85)
    assert predictor().training_time(running, Shape(2), now=0.0) == 1000.0 / 0.85


def test_a_job_slower_than_predicted_is_slower_in_its_other_shapes_too():
    running = state(gpus=2, speed=0.85)
    assert predictor().training_time(running, Shape(4), now=0.0) == pytest.approx(1000.0 / 1.2)


def test_what_is_seen_during_a_change_is_not_believed():
    changing = state(gpus=2, speed=0.85, adjusting=True)
    assert predictor().training_time(changing, Shape(2), now=0.0) == pytest.approx(1000.0 / 1.7)


def test_an_unknown_job_that_trains_scales_like_the_usual_one():
    running = state(gpus=2, speed=3.0)
    time = predictor(speeds={}).training_time(running, Shape(4), now=0.0)
    assert time == pytest.approx(1000.0 / (3.0 * usual_growth(2, 4)))


# --- times


def test_what_is_done_need_not_be_trained():
    running = state(gpus=2, speed=2.0, done=100.0)
    assert predictor().training_time(running, Shape(2), now=50.0) == 800.0 / 2.0


def test_a_job_that_has_done_all_trains_no_more():
    assert predictor(speeds={}).training_time(state(total=0.0), Shape(1), now=0.0) == 0.0


def test_a_job_of_unknown_speed_never_ends():
    predict = predictor(speeds={})
    assert predict.training_time(state(), Shape(2), now=0.0) == math.inf
    assert predict.completion(state(), Shape(2), now=0.0) == math.inf


def test_the_completion_of_a_newcomer_has_all_six_terms():
    expected = (100.0 + 4 * 1.0) + (20.0 + 4 * 0.5) + 1000.0 / 2.4 + 5.0 + 2.0 + 40.0
    assert predictor().completion(state(), Shape(4), now=0.0) == pytest.approx(expected)


def test_a_job_left_as_it_is_has_its_training_and_its_end_before_it():
    running = state(gpus=2, speed=2.0)
    assert predictor().remaining(running, now=0.0) == pytest.approx(500.0 + 5.0 + 2.0 + 40.0)


def test_a_job_left_in_a_change_still_has_to_start_its_process():
    changing = state(gpus=2, adjusting=True)
    expected = (20.0 + 2 * 0.5) + 1000.0 / 1.7 + 5.0 + 2.0 + 40.0
    assert predictor().remaining(changing, now=0.0) == pytest.approx(expected)


def test_a_job_without_gpus_left_as_it_is_never_ends():
    assert predictor().remaining(state(), now=0.0) == math.inf


def test_a_change_in_place_restarts_the_process_only():
    change = 5.0 + 2.0 + (20.0 + 4 * 0.5)
    running = state(gpus=2, speed=1.7)
    predict = predictor()
    assert predict.change_cost(running.job, Shape(4)) == pytest.approx(change)
    expected = change + 1000.0 / 2.4 + 5.0 + 2.0 + 40.0
    assert predict.remaining_after(running, Shape(4), now=0.0) == pytest.approx(expected)


@pytest.mark.parametrize("moves", [False, True])
def test_a_change_by_recreation_restarts_the_pod_too(moves):
    change = 5.0 + 2.0 + 40.0 + (100.0 + 4 * 1.0) + (20.0 + 4 * 0.5)
    running = state(gpus=2, speed=1.7)
    predict = predictor(mechanism=Mechanism.RECREATE)
    assert predict.change_cost(running.job, Shape(4)) == pytest.approx(change)
    expected = change + 1000.0 / 2.4 + 5.0 + 2.0 + 40.0
    after = predict.remaining_after(running, Shape(4), now=0.0, moves=moves)
    assert after == pytest.approx(expected)


def test_in_place_a_job_trains_on_while_pods_on_new_nodes_are_made_ready():
    running = state(gpus=2, speed=1.7)
    predict = predictor()
    lead, restart = 100.0 + 4 * 1.0, 5.0 + 2.0 + (20.0 + 4 * 0.5)
    assert predict.change_cost(running.job, Shape(4)) == pytest.approx(restart)
    expected = lead + restart + (1000.0 - 1.7 * lead) / 2.4 + 5.0 + 2.0 + 40.0
    after = predict.remaining_after(running, Shape(4), now=0.0, moves=True)
    assert after == pytest.approx(expected)


def test_measured_costs_come_before_those_set_for_all():
    own = Costs(checkpoint=1.0)
    predict = predictor(measured_costs=own)
    assert predict.costs_of(job()) is own
    assert predict.costs_of(job(kind=JobType("other"))) is COSTS
    assert predictor().costs_of(job()) is COSTS


@given(
    st.integers(1, 8),
    st.floats(0.0, 100.0),
    st.floats(0.0, 1e6),
    st.booleans(),
    st.sampled_from(list(Mechanism)),
)
def test_a_change_that_changes_nothing_only_costs(gpus, speed, total, adjusting, mechanism):
    predict = predictor(mechanism=mechanism)
    running = state(gpus=gpus, speed=speed, total=total, adjusting=adjusting)
    stay = predict.remaining(running, now=0.0)
    assert stay <= predict.remaining_after(running, Shape(gpus), now=0.0)
    if adjusting:
        return  # It does not train, so that nothing is known of what it does meanwhile.
    moved = predict.remaining_after(running, Shape(gpus), now=0.0, moves=True)
    assert stay <= moved * (1 + 1e-9)


# --- how sure that is


def observed(*speeds: float, gpus: int = 2) -> Profile:
    """A profile after these observations of a speed, one after the other."""
    profile = Profile(KIND, costs=Costs())
    for second, speed in enumerate(speeds):
        profile = fold(profile, SpeedSeen(Shape(gpus), speed, 10.0, float(second)))
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
def test_what_is_expected_lies_between_its_bounds(speeds, gpus, speed, total, adjusting):
    running = state(gpus=gpus, speed=speed, total=total, adjusting=adjusting)
    found = span(observed(*speeds) if speeds else None, running)
    assert 0.0 <= found.low <= found.expected <= found.high


def test_the_more_often_a_speed_was_seen_the_closer_are_the_bounds():
    widths = [width(observed(*[1.7] * count), TRAINS) for count in (1, 2, 4, 9)]
    assert widths == sorted(widths, reverse=True)
    assert width(None, TRAINS) > widths[0]
    assert widths[-1] < 0.06


def test_the_more_what_was_seen_differs_the_wider_they_are():
    calm = observed(1.6, 1.7, 1.7, 1.7, 1.8)
    rough = observed(1.0, 1.4, 1.7, 2.0, 2.4)
    assert width(rough, TRAINS) > 3 * width(calm, TRAINS)


def test_one_straggler_says_little():
    assert width(observed(1.7, 1.71, 0.2, 1.69, 1.7), TRAINS) < 0.15


def test_a_speed_that_is_predicted_is_trusted_as_far_as_its_confidence():
    """It is being changed to a shape in which it never was."""
    changes = state(gpus=4, adjusting=True)
    measured, guessed = observed(2.4, gpus=4), observed(1.7, gpus=2)
    assert width(measured, changes) < width(guessed, changes)


def test_bounds_of_the_length_are_bounds_of_the_time():
    target = replace(TRAINS, iterations_between=(900.0, 2000.0))
    asked, predicted = span(observed(1.7), TRAINS), span(observed(1.7), target)
    assert predicted.expected == asked.expected
    assert predicted.low == pytest.approx(0.9 * asked.low)
    assert predicted.high == pytest.approx(2.0 * asked.high)
    out_of_reach = replace(TRAINS, iterations_between=(900.0, math.inf))
    assert span(observed(1.7), out_of_reach).high == math.inf


def test_a_job_that_is_farther_than_was_predicted_at_the_least_may_be_done_at_once():
    almost = replace(TRAINS, iterations_done=950.0, iterations_between=(900.0, 1100.0))
    assert span(observed(1.7), almost).low == 0.0


def test_where_no_end_is_in_sight_there_are_no_bounds():
    assert span(None, state(total=10.0)) == Span(math.inf, math.inf, math.inf)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_most_trainings_end_between_the_bounds(noise):
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

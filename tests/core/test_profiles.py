import math
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core.profiles import (
    MOST_ACCURACY_POINTS,
    MOST_SHAPES,
    RECENT,
    STALE_AFTER_S,
    AccuracyPoint,
    AccuracySeen,
    Costs,
    CostSeen,
    CostTerm,
    JobType,
    Profile,
    Speed,
    SpeedSeen,
    fold,
)
from dljob_wire.messages import Shape

KIND = JobType("resnet50", "imagenet", 256)
EMPTY = Profile(KIND)
SHAPE = Shape(4, 1, "V100")


def speeds_seen(*speeds: float, at: float = 0.0) -> list[SpeedSeen]:
    return [SpeedSeen(SHAPE, speed, duration_s=60.0, at=at + i) for i, speed in enumerate(speeds)]


def folded(profile: Profile, observations) -> Profile:
    return reduce(fold, observations, profile)


def speed_of(profile: Profile) -> float:
    return profile.speeds[SHAPE].iterations_per_s


def test_first_observation_is_believed_and_folding_does_not_mutate():
    profile = folded(EMPTY, speeds_seen(5.0))
    folded(profile, speeds_seen(7.0))
    assert speed_of(profile) == 5.0
    assert EMPTY.speeds == {}


@given(st.lists(st.floats(0.5, 1e4), max_size=4), st.permutations(range(9)))
def test_minority_of_outliers_changes_nothing(outliers, order):
    seen = [*outliers, *[5.0] * (9 - len(outliers))]
    profile = folded(EMPTY, speeds_seen(*(seen[i] for i in order)))
    assert speed_of(profile) == 5.0


def test_drift_is_followed_after_half_the_window():
    profile = folded(EMPTY, speeds_seen(*[5.0] * 100))
    assert speed_of(folded(profile, speeds_seen(*[4.0] * (RECENT // 2 + 1)))) == 4.0


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=40))
def test_weight_and_memory_saturate(speeds):
    speed = folded(EMPTY, speeds_seen(*speeds)).speeds[SHAPE]
    assert speed.weight == min(len(speeds), RECENT)
    assert len(speed.recent) == min(len(speeds), RECENT)
    assert min(speeds) <= speed.iterations_per_s <= max(speeds)


def test_offline_profile_counts_as_one_observation():
    offline = Profile(KIND, {SHAPE: Speed(10.0, weight=5.0)})
    assert speed_of(folded(offline, speeds_seen(5.0))) == 7.5
    assert speed_of(folded(offline, speeds_seen(5.0, 5.0))) == 5.0


def test_stale_observations_count_as_one():
    profile = folded(EMPTY, speeds_seen(*[5.0] * 20))
    later = speeds_seen(4.0, 4.0, at=STALE_AFTER_S + 100.0)
    assert speed_of(folded(profile, later)) == 4.0


@pytest.mark.parametrize(
    "seen",
    [
        SpeedSeen(SHAPE, 5.0, duration_s=0.1, at=0.0),
        SpeedSeen(SHAPE, 0.0, duration_s=60.0, at=0.0),
        SpeedSeen(SHAPE, math.nan, duration_s=60.0, at=0.0),
        SpeedSeen(SHAPE, math.inf, duration_s=60.0, at=0.0),
        AccuracySeen(math.nan, 0.5),
        AccuracySeen(-1.0, 0.5),
        AccuracySeen(10.0, math.nan),
        AccuracySeen(10.0, 1e200),
        CostSeen(CostTerm.CHECKPOINT, -1.0),
        CostSeen(CostTerm.CHECKPOINT, math.nan),
    ],
)
def test_invalid_observations_are_ignored(seen):
    assert fold(EMPTY, seen) is EMPTY


def test_warm_up_is_forgotten():
    slow = folded(EMPTY, speeds_seen(1.0, 1.1))
    warm = fold(slow, SpeedSeen(SHAPE, 5.0, duration_s=10.0, at=99.0, replaces=2))
    assert speed_of(warm) == 5.0
    assert warm.speeds[SHAPE].weight == 1.0


def test_start_with_warm_up_replaces_plain_start():
    start = CostTerm.PROCESS_INITIALIZATION
    profile: Any = folded(EMPTY, [CostSeen(start, 20.0), CostSeen(start, 35.0, replaces=1)])
    assert profile.costs.process_initialization == 35.0


def test_learning_curve_is_sorted():
    profile = folded(EMPTY, [AccuracySeen(20.0, 0.5), AccuracySeen(10.0, 0.3)])
    assert profile.accuracy == (AccuracyPoint(10.0, 0.3), AccuracyPoint(20.0, 0.5))


@given(
    st.lists(st.builds(AccuracySeen, st.floats(0.0, 1e17), st.floats(-1e99, 1e99)), max_size=150)
)
def test_learning_curve_is_bounded_and_keeps_its_ends(seen):
    points = folded(EMPTY, seen).accuracy
    assert len(points) <= MOST_ACCURACY_POINTS
    if seen:
        assert points[0].iteration == min(each.iteration for each in seen)
        assert points[-1].iteration == max(each.iteration for each in seen)


def test_thinning_keeps_the_shape():
    def truth(k: float) -> float:
        # A steep start, a plateau, and the step of a lower learning rate.
        return 0.7 - 1.0 / (0.01 * k + 2.0) + (0.2 if k > 3000.0 else 0.0)

    profile = folded(EMPTY, [AccuracySeen(float(k), truth(k)) for k in range(0, 5000, 10)])
    points = profile.accuracy
    assert len(points) == MOST_ACCURACY_POINTS
    for k in range(0, 4990, 37):
        left = max(p for p in points if p.iteration <= k)
        right = min(p for p in points if p.iteration > k)
        share = (k - left.iteration) / (right.iteration - left.iteration)
        kept = left.value + share * (right.value - left.value)
        # Within the step itself there is nothing between the two levels.
        assert abs(kept - truth(k)) < 0.005 or 2950 < k < 3050


def test_measured_cost_replaces_the_default():
    defaults = Costs(checkpoint=60.0, pod_termination=30.0)
    profile = fold(EMPTY, CostSeen(CostTerm.CHECKPOINT, 5.0), defaults=defaults)
    assert profile.costs == Costs(checkpoint=5.0, pod_termination=30.0)


def test_cost_per_gpu_is_not_counted_twice():
    defaults = Costs(process_initialization=1.0, process_initialization_per_gpu=2.0)
    seen = CostSeen(CostTerm.PROCESS_INITIALIZATION, 30.0, gpus=8)
    costs: Any = fold(EMPTY, seen, defaults=defaults).costs
    assert costs.process_start(8) == 30.0
    short = CostSeen(CostTerm.PROCESS_INITIALIZATION, 3.0, gpus=8)
    costs = fold(EMPTY, short, defaults=defaults).costs
    assert costs.process_initialization == 0.0


def test_oldest_shape_is_forgotten():
    shapes = [Shape(gpus, 1, "V100") for gpus in range(1, MOST_SHAPES + 1)]
    profile = folded(
        EMPTY, [SpeedSeen(shape, 5.0, 60.0, at=1000.0 - shape.gpus) for shape in shapes]
    )
    assert len(profile.speeds) == MOST_SHAPES
    # The new one is older than all of them, and is believed all the same.
    new = Shape(1, 1, "P100")
    profile = fold(profile, SpeedSeen(new, 5.0, 60.0, at=0.0))
    assert profile.speeds.keys() == {*shapes[:-1], new}


def test_equal_profiles_say_the_same():
    seen = [*speeds_seen(5.0), AccuracySeen(1.0, 0.5), CostSeen(CostTerm.CHECKPOINT, 3.0)]
    one, other = folded(EMPTY, seen), folded(Profile(KIND), seen)
    assert one.says_the_same_as(other)
    assert not one.says_the_same_as(fold(other, AccuracySeen(2.0, 0.5)))
    assert not Profile(KIND).says_the_same_as(Profile(JobType("another")))

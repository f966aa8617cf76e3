from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core.predicting.growths import SPREAD_EXPONENT
from dljob.core.predicting.relating import UNKNOWN, Atlas
from dljob.core.predicting.speed_curves import Estimate
from dljob.core.profiles import JobType, Profile, Speed
from dljob_wire.messages import Shape

A = JobType("a", "imagenet", 64)
B = JobType("b", "imagenet", 64)
C = JobType("c", "squad", 64)


def profiles_of(speeds: Mapping[JobType, Mapping[Shape, float]]) -> dict[JobType, Profile]:
    return {
        kind: Profile(kind, {shape: Speed(speed) for shape, speed in each.items()})
        for kind, each in speeds.items()
    }


def estimate(
    speeds: Mapping[JobType, Mapping[Shape, float]], kind: JobType, shape: Shape
) -> Estimate:
    return Atlas(profiles_of(speeds)).estimate(kind, shape)


def test_spread_penalty_comes_from_the_profile():
    speeds = {A: {Shape(4, 1): 8.0, Shape(4, 2): 4.0, Shape(8, 1): 12.0}}
    spread = estimate(speeds, A, Shape(8, 2))
    assert spread.value == pytest.approx(6.0)
    assert 0.5 < spread.confidence < 1.0


def test_spread_penalty_comes_from_the_model_before_others():
    other_batch = A._replace(batch_size=128)
    speeds = {
        A: {Shape(8, 1): 12.0},
        other_batch: {Shape(4, 1): 8.0, Shape(4, 2): 4.0},
        B: {Shape(4, 1): 8.0, Shape(4, 2): 8.0},
    }
    assert estimate(speeds, A, Shape(8, 2)).value == pytest.approx(6.0)


def test_spread_penalty_has_a_default():
    spread = estimate({A: {Shape(8, 1): 12.0}}, A, Shape(8, 2))
    assert spread.value == pytest.approx(12.0 * 2**-SPREAD_EXPONENT)
    assert spread.confidence < 0.5


def test_larger_batch_scales_further():
    small = A._replace(batch_size=16)
    speeds = {A: {Shape(1): 10.0}, small: {Shape(1): 1.0, Shape(8): 4.0}}
    larger = estimate(speeds, A, Shape(8)).value
    assert 40.0 < larger <= 80.0


def test_own_fit_counts_beyond_enough_points():
    flat = {Shape(1): 10.0, Shape(2): 11.0, Shape(4): 11.5, Shape(8): 11.8}
    steep = {Shape(gpus): float(gpus) for gpus in (1, 2, 4, 8, 16)}
    beyond = estimate({A: flat, B: steep}, A, Shape(16))
    assert 11.5 < beyond.value < 12.5


def test_single_point_grows_like_others():
    speeds = {A: {Shape(1): 10.0}, C: {Shape(1): 1.0, Shape(8): 4.0}}
    assert estimate(speeds, A, Shape(8)).value == pytest.approx(40.0)
    # The second time it is remembered.
    atlas = Atlas(profiles_of({**speeds, B: {Shape(1): 20.0}}))
    assert [atlas.estimate(kind, Shape(8)).value for kind in (A, B)] == pytest.approx([40.0, 80.0])


POINTS = st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.1, 100.0), min_size=1)


@given(POINTS, POINTS, st.integers(1, 64))
def test_growth_is_at_most_linear(mine, others, gpus):
    speeds = {
        A: {Shape(count): speed for count, speed in mine.items()},
        B: {Shape(count): speed for count, speed in others.items()},
    }
    value = estimate(speeds, A, Shape(gpus)).value
    if gpus > max(mine):
        assert value <= mine[max(mine)] * gpus / max(mine) * (1 + 1e-9)
    elif gpus < min(mine):
        assert value >= mine[min(mine)] * gpus / min(mine) * (1 - 1e-9)


@given(
    st.dictionaries(
        st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from(["V100", "P100"])),
        st.floats(0.1, 100.0),
        min_size=1,
    ),
    st.integers(0, 65),
    st.integers(0, 8),
    st.sampled_from(["", "V100", "K80", "P100+V100"]),
    st.sampled_from([A, A._replace(batch_size=0), B, JobType("")]),
)
def test_every_estimate_is_finite(points, gpus, nodes, gpu_type, kind):
    speeds = {A: {Shape(count, 1, name): speed for (count, name), speed in points.items()}}
    value, confidence = estimate(speeds, kind, Shape(gpus, nodes, gpu_type))
    assert 0.0 <= value < 1e9
    assert 0.0 <= confidence <= 1.0
    is_related = kind.model == A.model
    assert (value > 0.0) == (gpus > 0 and nodes > 0 and is_related)


def test_type_ratio_comes_from_the_same_model():
    twin = A._replace(batch_size=128)
    speeds = {
        A: {Shape(2, 1, "P100"): 3.0},
        twin: {Shape(1, 1, "P100"): 1.0, Shape(1, 1, "A100"): 4.0},
        B: {Shape(1, 1, "P100"): 1.0, Shape(1, 1, "A100"): 9.0},
    }
    faster = estimate(speeds, A, Shape(2, 1, "A100"))
    assert faster.value == pytest.approx(12.0)
    assert faster.confidence == pytest.approx(0.5)


def test_unknown_type_has_little_confidence():
    unknown = estimate({A: {Shape(2, 1, "K80"): 3.0}}, A, Shape(2, 1, "H900"))
    assert unknown.value == 3.0
    assert unknown.confidence <= 0.1


def test_unnamed_type_is_the_only_type():
    nameless = estimate({A: {Shape(2, 1, "V100"): 3.0}}, A, Shape(2))
    assert nameless.value == 3.0
    named = estimate({A: {Shape(2): 3.0}}, A, Shape(2, 1, "V100"))
    assert named.value == 3.0
    assert nameless.confidence == named.confidence == 0.5


def test_mixed_types_run_at_the_slowest_pace():
    speeds = {A: {Shape(4, 2, "K80"): 1.0, Shape(4, 2, "V100"): 4.0}}
    mixed = estimate(speeds, A, Shape(4, 2, "K80+V100"))
    assert mixed.value == 1.0
    assert 0.0 < mixed.confidence < 1.0


def test_larger_batch_computes_but_does_not_sync_longer():
    speeds = {A: {Shape(1): 1.0, Shape(2): 1.5, Shape(4): 2.0, Shape(8): 2.4}}
    double = A._replace(batch_size=128)
    alone = estimate(speeds, double, Shape(1))
    many = estimate(speeds, double, Shape(8))
    assert 0.5 <= alone.value < 0.7
    assert 1.7 < many.value < 2.4
    assert alone.confidence == 0.5


def test_spelling_of_a_model_does_not_matter():
    speeds = {JobType("ResNet-50", "", 64): {Shape(1): 5.0}, B: {Shape(1): 1.0}}
    assert estimate(speeds, JobType("resnet50", "imagenet", 64), Shape(1)).value == 5.0


def test_other_models_say_nothing():
    speeds = {A: {Shape(1): 1.0, Shape(8): 8.0}, B: {Shape(1): 10.0}}
    same_dataset = JobType("new", A.dataset, A.batch_size)
    for kind in (JobType("new"), same_dataset):
        assert estimate(speeds, kind, Shape(1)) == UNKNOWN
    assert estimate({}, A, Shape(4)) == UNKNOWN


def test_estimates_do_not_depend_on_order():
    speeds = {
        A: {Shape(1): 1.0, Shape(4): 3.0},
        B: {Shape(1): 2.0, Shape(8): 4.0, Shape(8, 2): 3.0},
    }
    questions = [(A, Shape(8)), (B, Shape(4)), (C, Shape(2)), (A, Shape(4, 2)), (C, Shape(16, 4))]
    one, two = Atlas(profiles_of(speeds)), Atlas(profiles_of(speeds))
    there = [one.estimate(*question) for question in questions]
    back = [two.estimate(*question) for question in reversed(questions)]
    assert there == back[::-1]

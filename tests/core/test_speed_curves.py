import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from dljob.core.predicting.speed_curves import (
    Point,
    bound_growth,
    estimate_alone,
    fit_iteration_time,
    iteration_time,
    make_curve,
    points_by_type,
    read_curve,
    spread_exponent_alone,
    type_ratio_alone,
)
from dljob.core.profiles import JobType, Profile, Speed
from dljob_wire.messages import Shape
from tests.core.examples import few_examples

KIND = JobType("resnet50", "imagenet", 256)


def profile_of(speeds: dict[Shape, float]) -> Profile:
    return Profile(KIND, {shape: Speed(speed) for shape, speed in speeds.items()})


@few_examples(40)
@given(
    st.dictionaries(st.integers(1, 256), st.floats(1e-3, 1e3), min_size=2, max_size=9),
    st.floats(0.1, 10.0),
)
def test_fit_matches_scipy(speeds, weight):
    points = [Point(gpus, 1, speed, weight) for gpus, speed in sorted(speeds.items())]
    counts = np.array(sorted(speeds), dtype=float)
    columns = [1.0 / counts, np.ones_like(counts), counts][: 3 if len(points) > 2 else 2]
    rows = np.stack(columns, axis=1) * np.array([point.speed for point in points])[:, None]
    _, least = nnls(rows, np.ones_like(counts))
    ours = fit_iteration_time(points)[: len(columns)]
    assert all(factor >= 0.0 for factor in ours)
    assert np.linalg.norm(rows @ ours - 1.0) == pytest.approx(least, rel=1e-6, abs=1e-9)


def curve_of(speeds: dict[int, float]) -> tuple[Point, ...]:
    return tuple(Point(gpus, 1, speed, 1.0) for gpus, speed in sorted(speeds.items()))


SHAPES = st.builds(
    lambda gpus, nodes, kind: Shape(gpus, min(gpus, nodes), kind),
    st.integers(1, 64),
    st.integers(1, 8),
    st.sampled_from(["", "V100", "P100"]),
)
SPEEDS = st.dictionaries(SHAPES, st.floats(0.01, 1000.0), min_size=1, max_size=12)


@few_examples(40)
@given(SPEEDS)
def test_measured_shape_has_its_measured_speed(speeds):
    profile = profile_of(speeds)
    for shape, speed in speeds.items():
        assert estimate_alone(profile, shape) == (speed, 1.0)


@few_examples(60)
@given(SPEEDS, SHAPES)
def test_speed_lies_between_measured_neighbours(speeds, shape):
    profile = profile_of(speeds)
    estimate = estimate_alone(profile, shape)
    like = [s for s in speeds if s.nodes == shape.nodes and s.gpu_type == shape.gpu_type]
    below = [s for s in like if s.gpus <= shape.gpus]
    above = [s for s in like if s.gpus >= shape.gpus]
    if not below or not above:
        assert estimate is None
    else:
        assert estimate is not None
        ends = (speeds[max(below)], speeds[min(above)])
        assert min(ends) * (1 - 1e-9) <= estimate.value <= max(ends) * (1 + 1e-9)
        assert 0.0 < estimate.confidence <= 1.0


def test_interpolation_is_linear_in_log_log():
    profile = profile_of({Shape(2): 2.0, Shape(8): 8.0})
    estimate = estimate_alone(profile, Shape(4))
    assert estimate is not None
    assert estimate.value == pytest.approx(4.0)


def test_impossible_speeds_are_ignored():
    speeds = {Shape(1): 0.0, Shape(2): -1.0, Shape(4): math.nan, Shape(8): math.inf, Shape(16): 3.0}
    assert points_by_type(profile_of(speeds)) == {"": (Point(16, 1, 3.0, 1.0),)}


def test_spread_exponent_is_learnt_and_not_negative():
    halved_by_doubling = profile_of({Shape(4, 1): 8.0, Shape(4, 2): 4.0, Shape(4, 4): 2.0})
    assert spread_exponent_alone(halved_by_doubling) == pytest.approx(1.0)
    faster_on_two_nodes = profile_of({Shape(4, 1): 8.0, Shape(4, 2): 9.0})
    assert spread_exponent_alone(faster_on_two_nodes) == 0.0


def test_types_are_compared_at_common_shapes():
    profile = profile_of(
        {
            Shape(1, 1, "K80"): 1.0,
            Shape(2, 1, "K80"): 1.5,
            Shape(1, 1, "V100"): 4.0,
            Shape(2, 1, "V100"): 7.5,
            Shape(4, 1, "V100"): 9.0,
        }
    )
    assert type_ratio_alone(profile, "K80", new="V100") == pytest.approx(4.5)
    assert type_ratio_alone(profile, "K80", new="P100") is None


def test_curve_is_converted_to_one_node_count():
    points = [Point(1, 1, 2.0, 1.0), Point(4, 4, 4.0, 1.0)]
    curve = make_curve(points, 2, exponent=0.5)
    assert [point.nodes for point in curve] == [2, 2]
    assert [point.speed for point in curve] == pytest.approx([2.0 / 2**0.5, 4.0 * 2**0.5])


def test_curve_ends_at_its_measured_points():
    curve = curve_of({2: 2.0, 4: 3.0})
    assert read_curve(curve, 1) is None
    assert read_curve(curve, 8) is None
    assert read_curve((), 1) is None


@few_examples(40)
@given(
    st.dictionaries(st.integers(1, 64), st.floats(1e-11, 1e11), min_size=2, max_size=8),
    st.integers(1, 256),
    st.floats(-1.0, 1e6),
)
def test_fit_grows_at_most_linearly(speeds, gpus, weight):
    curve = [point._replace(weight=weight) for point in curve_of(speeds)]
    terms = fit_iteration_time(curve)
    assert all(term >= 0.0 for term in terms)
    assert any(term > 0.0 for term in terms)
    # Twice the GPUs never take less than half the time.
    assert iteration_time(terms, 2 * gpus) >= iteration_time(terms, gpus) / 2 * (1 - 1e-9)


def test_growth_is_bounded_by_linear():
    rising = curve_of({1: 1.0, 2: 2.0})
    assert bound_growth(5.0, rising, start=2, gpus=8) == 4.0
    assert bound_growth(3.0, rising, start=2, gpus=8) == 3.0
    # Downwards, linear is the most that can be lost.
    assert bound_growth(0.1, rising, start=2, gpus=1) == 0.5
    assert bound_growth(0.1, rising[:1], start=1, gpus=2) == 0.1

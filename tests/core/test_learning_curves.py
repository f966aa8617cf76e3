import math
from random import Random
from statistics import median

import numpy as np
import pytest
from forecast import outcomes
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from dljob.core.model import Direction, Target
from dljob.core.predicting.learning_curves import (
    Forecast,
    _fit_to_limits,
    fit_curve,
    predict_iterations,
)
from dljob.core.profiles import AccuracyPoint
from tests.core.examples import few_examples


def loss_at(k: float) -> float:
    return 1.0 / (0.002 * k + 0.4) + 0.3


def accuracy_at(k: float) -> float:
    return 0.93 - 1.0 / (0.01 * k + 1.2)


def points_of(curve, stop: int, *, step: int = 100, noise=0.0, seed=0):
    random = Random(seed)
    return [
        AccuracyPoint(float(k), curve(k) + random.gauss(0.0, noise)) for k in range(0, stop, step)
    ]


def rising(value: float, *, patience: int = 1) -> Target:
    return Target(metric="top5", value=value, patience=patience)


def falling(value: float) -> Target:
    return Target(metric="loss", value=value, direction=Direction.FALLS)


def forecast(online, target, *, offline=(), asked=None) -> Forecast:
    return predict_iterations(offline, online, target=target, asked=asked)


def test_falling_loss_is_forecast():
    reached = (1.0 / (0.5 - 0.3) - 0.4) / 0.002
    seen = forecast(points_of(loss_at, 1000), falling(0.5))
    assert seen.iterations == pytest.approx(reached, rel=0.05)
    assert seen.low <= reached * 1.02
    assert seen.high >= reached * 0.98


def test_rising_accuracy_is_forecast():
    reached = (1.0 / (0.93 - 0.85) - 1.2) / 0.01
    seen = forecast(points_of(accuracy_at, 500, step=20), rising(0.85))
    assert seen.iterations == pytest.approx(reached, rel=0.02)


def test_noise_widens_the_range():
    reached = (1.0 / (0.93 - 0.85) - 1.2) / 0.01
    for seed in range(3):
        seen = forecast(points_of(accuracy_at, 700, step=10, noise=0.005, seed=seed), rising(0.85))
        assert seen.iterations == pytest.approx(reached, rel=0.25)
        assert seen.low <= reached <= seen.high


def test_outliers_barely_matter():
    points = points_of(accuracy_at, 500, step=20)
    points[7] = points[7]._replace(value=0.0)
    points[15] = points[15]._replace(value=0.84)
    reached = (1.0 / (0.93 - 0.85) - 1.2) / 0.01
    assert forecast(points, rising(0.85)).iterations == pytest.approx(reached, rel=0.1)


def test_target_beyond_the_limit_is_unreachable():
    seen = forecast(points_of(accuracy_at, 3000, step=50), rising(0.99))
    assert seen.iterations == math.inf
    assert seen.high == math.inf
    assert seen.low < math.inf
    assert seen.confidence <= 0.05


def test_flat_metric_never_arrives():
    flat = [AccuracyPoint(float(k), 0.1) for k in range(10)]
    assert forecast(flat, rising(0.5)).iterations == math.inf
    assert forecast(flat, falling(0.05)).iterations == math.inf


def test_reached_target_is_certain():
    points = points_of(accuracy_at, 2000, step=100)
    first = next(point.iteration for point in points if point.value >= 0.85)
    assert forecast(points, rising(0.85)) == (first, first, first, 1.0)


def test_target_needs_patience_in_a_row():
    values = [0.5, 0.9, 0.5, 0.9, 0.9, 0.9]
    points = [AccuracyPoint(10.0 * i, value) for i, value in enumerate(values)]
    assert forecast(points, rising(0.8, patience=3)).iterations == 50.0
    assert forecast(points[:5], rising(0.8, patience=3)).confidence < 1.0


def test_unreached_target_lies_ahead():
    # The curve says that the target lies behind, but it was never reported.
    points = [AccuracyPoint(k, min(v, 0.8)) for k, v in points_of(accuracy_at, 1000, step=20)]
    assert forecast(points, rising(0.801)).iterations > points[-1].iteration


def test_without_points_only_the_request_is_known():
    assert forecast([], rising(0.9), asked=500) == (500.0, 0.0, 500.0, 0.0)
    assert forecast([], rising(0.9)) == (math.inf, 0.0, math.inf, 0.0)


def test_two_points_are_too_few():
    two = [AccuracyPoint(10.0, 0.1), AccuracyPoint(20.0, 0.2)]
    assert forecast(two, rising(0.9)).confidence == 0.0
    assert forecast(two, rising(0.9)).low == 20.0


def test_own_reports_outweigh_those_of_others():
    def slower(k: float) -> float:
        return accuracy_at(k / 2)

    offline = points_of(accuracy_at, 300, step=10)
    online = points_of(slower, 1000, step=10)
    reached = 2 * (1.0 / (0.93 - 0.85) - 1.2) / 0.01
    seen = forecast(online, rising(0.85), offline=offline)
    assert seen.iterations == pytest.approx(reached, rel=0.1)


VALUES = st.one_of(
    st.floats(0.0, 1.0), st.floats(-1e3, 1e3), st.floats(allow_nan=True, allow_infinity=True)
)
POINTS = st.lists(
    st.builds(AccuracyPoint, st.one_of(st.integers(0, 10**6).map(float), VALUES), VALUES),
    max_size=30,
)


@few_examples(50)
@given(
    POINTS,
    POINTS,
    st.floats(-1e3, 1e3),
    st.integers(1, 3),
    st.sampled_from(Direction),
    st.one_of(st.none(), st.integers(1, 10**6)),
)
def test_any_report_gives_a_valid_forecast(offline, online, value, patience, direction, asked):
    target = Target(metric="m", value=value, patience=patience, direction=direction)
    seen = predict_iterations(offline, online, target=target, asked=asked)
    assert 0.0 <= seen.low <= seen.iterations <= seen.high
    assert 0.0 <= seen.confidence <= 1.0
    if asked is not None and seen.confidence < 1.0:
        assert seen.high <= asked


@given(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=30), st.integers(0, 10**6))
def test_no_fitted_term_is_negative(values, last):
    iterations = np.linspace(0.0, float(last), len(values))
    curve = fit_curve(iterations, np.array(values), weights=np.ones(len(values)))
    assert curve.b0 >= 0.0
    assert curve.b1 >= 0.0
    assert curve.limit >= 0.0


@given(
    st.lists(
        st.tuples(st.integers(0, 100), st.floats(0.05, 1.0), st.floats(0.1, 1.0)),
        min_size=3,
        max_size=30,
    ),
    st.floats(0.0, 0.04),
)
def test_closed_form_matches_the_solver(points, limit):
    k, values, weights = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    x = k / 100.0
    (b0,), (b1,), _ = _fit_to_limits(
        x, values, weights=weights, limits=np.array([limit]), least=1e-9
    )
    above = values - limit
    trust = np.sqrt(weights) * above * above
    matrix = np.stack([x * trust, trust], axis=1)
    _, best = nnls(matrix, trust / above)
    ours = float(np.linalg.norm(matrix @ [b0, b1] - trust / above))
    assert ours == pytest.approx(best, rel=1e-6, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("application", ["cifar10", "deepspeech2"])
def test_real_smooth_curves_are_forecast_at_half(application):
    found = outcomes(application, 0.5)
    assert len(found) >= 10
    assert median(outcome.error for outcome in found) <= 0.15


@pytest.mark.slow
def test_real_stepped_curves_have_low_confidence():
    found = outcomes("imagenet", 0.5)
    assert median(outcome.error for outcome in found) > 0.3
    assert median(outcome.seen.confidence for outcome in found) < 0.1


@pytest.mark.slow
def test_confidence_separates_good_forecasts_from_bad():
    found = [
        outcome
        for application in ("cifar10", "deepspeech2", "imagenet", "yolov3")
        for share in (0.25, 0.5, 0.75)
        for outcome in outcomes(application, share)
    ]
    sure = [outcome.error for outcome in found if outcome.seen.confidence >= 0.5]
    unsure = [outcome.error for outcome in found if outcome.seen.confidence < 0.1]
    assert len(sure) >= 20
    assert len(unsure) >= 20
    assert median(sure) <= 0.15
    assert median(unsure) >= 0.3
    within = [outcome.seen.low <= outcome.reached <= outcome.seen.high for outcome in found]
    assert sum(within) >= 0.7 * len(within)

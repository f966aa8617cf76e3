"""Coach's predictor and its plan of measurements, as in its thesis."""

import pytest

from dljob.core.predicting import mini_epochs
from dljob.core.predicting.mini_epochs import MiniEpoch
from dljob.core.profiles import JobType, Profile
from dljob_lab import marginal_utility
from dljob_lab.marginal_utility import Sample, Utility
from dljob_lab.roles import Split
from dljob_wire.messages import Shape
from tests.builders import make_profile

TRUE = Utility(0.5, 6.0, 0.25, 3.0, 40.0, 1.0)
SAMPLES = [Sample(w, p, TRUE.speed(w, p)) for w in (1, 2, 4, 7) for p in (1, 2, 4)]


def test_speed_is_the_parabola_of_the_thesis():
    assert TRUE.speed(4, 2) == -0.5 * (4 - 6.0) ** 2 - 0.25 * (2 - 3.0) ** 2 + 40.0


def test_fit_recovers_the_function():
    found = marginal_utility.fit(SAMPLES)
    assert found.best_workers == pytest.approx(6.0, rel=1e-3)
    assert found.best_servers == pytest.approx(3.0, rel=1e-3)
    for workers in range(1, 9):
        assert found.speed(workers, 3) == pytest.approx(TRUE.speed(workers, 3), rel=1e-4)


def test_coefficients_are_never_negative():
    found = marginal_utility.fit([Sample(n, 1, float(n * n)) for n in (1, 2, 4, 8)])
    assert min(found) >= 0.0


def test_unseen_job_has_no_belief():
    profile = Profile(JobType("job"))
    assert marginal_utility.believe(profile, [Shape(1)], split=two_for_a_worker) is profile


def two_for_a_worker(gpus: int) -> Split:
    return Split((gpus - 1) // 2, (gpus - 1) % 2 + 1)


def test_belief_has_the_servers_of_each_number_of_gpus():
    shapes = [Shape(gpus) for gpus in range(3, 9)]
    speeds = {shape: TRUE.speed(*two_for_a_worker(shape.gpus)) for shape in shapes}
    believed = marginal_utility.believe(
        make_profile(speeds), [*shapes, Shape(9)], split=two_for_a_worker
    )
    for shape, speed in speeds.items():
        assert believed.speeds[shape].iterations_per_s == pytest.approx(speed, rel=1e-4)
    # Four workers and one server were never seen.
    assert believed.speeds[Shape(9)].iterations_per_s == pytest.approx(TRUE.speed(4, 1), rel=0.02)


SPLITS = [Split(w, s) for w in range(1, 9) for s in range(1, 9)]


def test_choice_climbs_to_the_top_of_the_function():
    assert marginal_utility.choose(TRUE, SPLITS) == (6, 3)


def test_choice_takes_the_larger_gain_first():
    # From one of each, a worker gains 4.5 and a server 0.75.
    assert marginal_utility.choose(TRUE, [Split(1, 1), Split(1, 2), Split(2, 1)]) == (2, 1)


def test_choice_at_equal_gains_is_a_worker():
    even = Utility(1.0, 3.0, 1.0, 3.0, 20.0, 1.0)
    assert marginal_utility.choose(even, [Split(1, 1), Split(1, 2), Split(2, 1)]) == (2, 1)


def test_plan_has_two_mini_epochs_for_each_of_two_sizes():
    epochs = mini_epochs.plan((2, 4, 8), per_s=10.0)
    assert epochs == (MiniEpoch(2, 300),) * 2 + (MiniEpoch(4, 300),) * 2


def test_mini_epoch_takes_20_to_40_seconds():
    for per_s in (0.05, 0.5, 3.0, 700.0):
        (first, *_) = mini_epochs.plan((1, 2), per_s)
        assert 20.0 <= first.iterations / per_s <= 40.0

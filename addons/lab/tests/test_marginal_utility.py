"""Coach's predictor and its plan of measurements, as in its thesis."""

import pytest

from dljob.core.predicting import mini_epochs
from dljob.core.predicting.mini_epochs import MiniEpoch
from dljob.core.profiles import JobType, Profile
from dljob_lab import marginal_utility
from dljob_lab.marginal_utility import Sample, Utility
from dljob_wire.messages import Shape

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
    assert marginal_utility.believe(profile, [Shape(1)]) is profile


def test_plan_has_two_mini_epochs_for_each_of_two_sizes():
    epochs = mini_epochs.plan((2, 4, 8), per_s=10.0)
    assert epochs == (MiniEpoch(2, 300),) * 2 + (MiniEpoch(4, 300),) * 2


def test_mini_epoch_takes_20_to_40_seconds():
    for per_s in (0.05, 0.5, 3.0, 700.0):
        (first, *_) = mini_epochs.plan((1, 2), per_s)
        assert 20.0 <= first.iterations / per_s <= 40.0

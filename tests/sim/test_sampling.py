"""A long trace is cut to a window, and stretched to a load."""

import pytest

from dljob.core.model import Cluster, Node
from dljob.sim.errors import BadInput
from dljob.sim.jobs.sampling import Sample, cut, measure_load, sample, set_load
from tests.sim.worlds import make_traced, make_workload

CLUSTER = Cluster([Node.of("n", 8)])
TRACE = make_workload(*(make_traced(f"j{i}", at=10.0 * i * i) for i in range(100)))


def times_of(workload):
    return [traced.job.submitted_at for traced in workload.jobs]


def test_window_is_consecutive_jobs_by_seed():
    windows = [cut(TRACE, 10, seed=seed) for seed in range(5)]
    names = [each.job.id for each in TRACE.jobs]
    begins = []
    for window in windows:
        begins.append(names.index(window.jobs[0].job.id))
        assert [each.job.id for each in window.jobs] == names[begins[-1] : begins[-1] + 10]
    assert len(set(begins)) > 1
    assert times_of(cut(TRACE, 10, seed=1)) == times_of(windows[1])


def test_load_is_gpu_time_over_capacity():
    # 1,000 iterations take 250 s on the four GPUs that each job asks for.
    assert measure_load(TRACE, CLUSTER) == pytest.approx(100 * 1000.0 / (8 * 10.0 * 99 * 99))


def test_simultaneous_jobs_have_no_load():
    batch = make_workload(make_traced("a"), make_traced("b"))
    assert measure_load(batch, CLUSTER) is None
    with pytest.raises(BadInput, match="leave --load out"):
        set_load(batch, CLUSTER, load=0.9)


def test_window_is_cut_before_load_is_set():
    both = sample(TRACE, CLUSTER, wanted=Sample(window=10, load=0.9, seed=1))
    assert len(both.jobs) == 10
    assert measure_load(both, CLUSTER) == pytest.approx(0.9)

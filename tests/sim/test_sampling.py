"""A long trace is cut to a window, and its times are stretched to a load."""

from dataclasses import replace

import pytest

from dlcore.model import Cluster, Node
from dlsim.errors import BadInput
from dlsim.jobs.sampling import (
    Sample,
    cut,
    measure_load,
    sample,
    set_load,
)
from tests.sim.worlds import make_traced, make_workload

CLUSTER = Cluster([Node.of("n", 8)])
TRACE = make_workload(*(make_traced(f"j{i}", at=10.0 * i * i) for i in range(100)))


def times_of(workload):
    return [traced.job.submitted_at for traced in workload.jobs]


def test_a_window_is_consecutive_jobs_from_where_the_seed_says():
    windows = [cut(TRACE, 10, seed=seed) for seed in range(5)]
    names = [each.job.id for each in TRACE.jobs]
    begins = []
    for window in windows:
        begins.append(names.index(window.jobs[0].job.id))
        assert [each.job.id for each in window.jobs] == names[begins[-1] : begins[-1] + 10]
    assert len(set(begins)) > 1
    assert times_of(cut(TRACE, 10, seed=1)) == times_of(windows[1])


def test_the_first_job_of_a_window_comes_at_the_beginning():
    window = cut(TRACE, 10, seed=1)
    whole = dict(zip((each.job.id for each in TRACE.jobs), times_of(TRACE), strict=True))
    first = whole[window.jobs[0].job.id]
    assert times_of(window) == [whole[each.job.id] - first for each in window.jobs]


def test_a_short_trace_stays_whole():
    assert cut(TRACE, 100, seed=1) is TRACE


def test_the_load_is_gpu_time_over_what_the_cluster_has_while_jobs_come():
    # 1,000 iterations take 250 s on the four GPUs that each job asks for.
    assert measure_load(TRACE, CLUSTER) == pytest.approx(100 * 1000.0 / (8 * 10.0 * 99 * 99))


def test_times_are_stretched_to_the_load_that_is_wanted():
    for load in (0.5, 1.5):
        stretched = set_load(TRACE, CLUSTER, load=load)
        assert measure_load(stretched, CLUSTER) == pytest.approx(load)
        factor = times_of(stretched)[1] / times_of(TRACE)[1]
        assert times_of(stretched) == pytest.approx([factor * time for time in times_of(TRACE)])


def test_jobs_that_never_fit_are_in_no_load():
    wide = make_traced("wide", at=20.0, options=(16,), iterations=1e9)
    more = replace(TRACE, jobs=(TRACE.jobs[0], wide, *TRACE.jobs[1:]))
    assert measure_load(more, CLUSTER) == measure_load(TRACE, CLUSTER)


def test_jobs_that_come_all_at_once_have_no_load():
    batch = make_workload(make_traced("a"), make_traced("b"))
    assert measure_load(batch, CLUSTER) is None
    with pytest.raises(BadInput, match="leave --load out"):
        set_load(batch, CLUSTER, load=0.9)


def test_a_window_is_cut_before_its_load_is_set():
    both = sample(TRACE, CLUSTER, Sample(window=10, load=0.9, seed=1))
    assert len(both.jobs) == 10
    assert measure_load(both, CLUSTER) == pytest.approx(0.9)

"""DRAGON's evaluation: what the paper says is in it as it says it, and its order comes out."""

import pytest

from dlpapers.reproducing.dragon import (
    _compare,
    compare_runs,
    draw,
    play_simulated,
    play_testbed,
    reduce_elapsed,
)
from dlpapers.reproducing.dragon_jobs import (
    ALEXNET,
    COSTS,
    INCEPTION,
    RESNET,
    TABLE_1,
    TESTBED,
    Assumptions,
    count_remote,
    images_per_s,
    make_simulated,
    make_testbed,
    steps_per_s,
)


@pytest.fixture(scope="module")
def testbed():
    return play_testbed()


def test_the_workload_is_table_1():
    jobs = make_testbed().jobs
    assert len(jobs) == len(TABLE_1) == 12
    assert [job.iterations for job in jobs[:3]] == [2800, 3600, 1000]
    assert [job.job.gpus.requested for job in jobs] == [4, 4, 2, 2, 3, 2, 2, 1, 2, 2, 1, 1]
    assert [job.job.gpus.options[0] for job in jobs] == [2, 2, 2, 2, 2, 2, 2, 1, 2, 2, 1, 1]
    assert {job.job.gpus.options[-1] for job in jobs} == {4}
    assert jobs[-1].job.submitted_at == pytest.approx(51.19 * 60.0)
    assert sum(len(node.gpus) for node in TESTBED) == 8


def test_beside_their_parameter_server_workers_are_as_fast_as_figure_2_says():
    for model in (INCEPTION, RESNET, ALEXNET):
        for workers, images in enumerate(model.images_per_s, start=1):
            assert 64 * steps_per_s(model, workers, remote=0) == pytest.approx(images)
    assert images_per_s(RESNET, 8) > images_per_s(RESNET, 4)


def test_a_worker_away_from_its_parameter_server_waits_for_the_network():
    step_s = 1.0 / steps_per_s(ALEXNET, 1, remote=1)
    assert step_s == pytest.approx(64 / 38.09 + 244.0 / 125.0)


def test_the_default_scheduler_puts_parameter_servers_where_fewest_workers_are():
    # One worker has its server on the other of two nodes; two of four have it beside them.
    assert count_remote(1, 1, of_nodes=2, spread=True) == 1
    assert count_remote(4, 2, of_nodes=2, spread=True) == 2
    assert count_remote(3, 2, of_nodes=2, spread=True) == 2
    assert count_remote(4, 1, of_nodes=2, spread=False) == 0
    assert count_remote(3, 2, of_nodes=2, spread=False) == 1


def test_a_restart_takes_what_the_paper_measured():
    assert 40.0 <= COSTS.pod_restart(4) <= 60.0


def test_dragon_takes_less_than_locality_and_locality_less_than_kubeflow(testbed):
    assert reduce_elapsed(testbed, "dragon", baseline="kubeflow") == pytest.approx(65.0, rel=1 / 3)
    assert reduce_elapsed(testbed, "locality", baseline="kubeflow") == pytest.approx(
        60.0, rel=1 / 3
    )
    assert reduce_elapsed(testbed, "dragon", baseline="locality") > 0.0


def test_dragon_uses_more_of_the_gpus_than_both(testbed):
    shares = {name: outcome.utilization for name, outcome in testbed.items()}
    assert shares["dragon"] == pytest.approx(0.79, abs=0.05)
    assert shares["dragon"] > shares["kubeflow"] > shares["locality"]


def test_most_jobs_start_at_once_under_locality_as_the_paper_says(testbed):
    assert testbed["locality"].at_once > 6


def test_only_dragon_scales_and_elapsed_is_what_it_is_made_of(testbed):
    assert [name for name, outcome in testbed.items() if outcome.scaling_s > 0.0] == ["dragon"]
    for outcome in testbed.values():
        parts = outcome.waiting_s + outcome.scaling_s + outcome.running_s
        assert parts == pytest.approx(outcome.elapsed_s)
    assert max(compare_runs(testbed)) > 4.0


def test_every_figure_of_the_text_has_a_row(testbed):
    papers = {(row.item, row.quantity): row.paper for row in _compare(testbed)}
    assert papers["testbed/dragon", "utilization"] == 79.0
    assert papers["testbed/kubeflow", "utilization"] == 57.0
    assert papers["testbed/locality", "utilization"] == 45.0
    assert papers["testbed/dragon", "elapsed time below kubeflow"] == 65.0


def test_the_picture_shows_what_is_in_percent(testbed):
    (figure,) = draw(tuple(_compare(testbed))).values()
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels[:2] == ["dragon\ntime saved", "locality\ntime saved"]
    assert len(labels) == 5


def test_arrivals_are_as_dense_as_the_intensity_says_and_the_jobs_the_same():
    sparse, dense = make_simulated(1.0, seed=0), make_simulated(4.0, seed=0)
    assert [job.iterations for job in sparse.jobs] == [job.iterations for job in dense.jobs]
    last = [each.jobs[-1].job.submitted_at for each in (sparse, dense)]
    assert last[0] == pytest.approx(4.0 * last[1])
    for traced in sparse.jobs:
        options = traced.job.gpus.options
        assert 2 <= options[0] <= traced.job.gpus.requested <= options[-1] <= 8


@pytest.mark.slow
@pytest.mark.parametrize("intensity", [0.5, 3.0])
def test_dragon_is_ahead_at_every_intensity(intensity):
    found = play_simulated(intensity)
    assert reduce_elapsed(found, "dragon", baseline="locality") > 0.0
    assert reduce_elapsed(found, "dragon", baseline="kubeflow") > 50.0


def test_without_a_slow_network_there_is_less_to_gain(testbed):
    beside = play_testbed(Assumptions(spreads_servers=False))
    saved = [reduce_elapsed(each, "dragon", baseline="kubeflow") for each in (beside, testbed)]
    assert saved[0] < saved[1]

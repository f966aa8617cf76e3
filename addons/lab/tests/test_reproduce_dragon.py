"""DRAGON's evaluation: its inputs are those of the paper, and its order is reproduced."""

import pytest

from dljob.core.model import NodeName, Placement
from dljob_lab.reproducing.dragon import play_simulated, play_testbed, reduce_elapsed
from dljob_lab.reproducing.dragon_jobs import (
    ALEXNET,
    INCEPTION,
    RESNET,
    SIMULATED,
    TABLE_1,
    TESTBED,
    Network,
    images_per_s,
    make_simulated,
    make_testbed,
    steps_per_s,
)


@pytest.fixture(scope="module")
def testbed():
    return play_testbed()


def test_workload_is_table_1():
    jobs = make_testbed().jobs
    assert len(jobs) == len(TABLE_1) == 12
    assert [job.iterations for job in jobs[:3]] == [2800, 3600, 1000]
    assert [job.job.gpus.requested for job in jobs] == [4, 4, 2, 2, 3, 2, 2, 1, 2, 2, 1, 1]
    assert [job.job.gpus.options[0] for job in jobs] == [2, 2, 2, 2, 2, 2, 2, 1, 2, 2, 1, 1]
    assert {job.job.gpus.options[-1] for job in jobs} == {4}
    assert jobs[-1].job.submitted_at == pytest.approx(51.19 * 60.0)
    assert sum(len(node.gpus) for node in TESTBED) == 8


def test_local_workers_match_figure_2():
    for model in (INCEPTION, RESNET, ALEXNET):
        for workers, images in enumerate(model.images_per_s, start=1):
            assert 64 * steps_per_s(model, workers, remote=0) == pytest.approx(images)
    assert images_per_s(RESNET, 8) > images_per_s(RESNET, 4)


def job_of(model):
    row = next(row for row in TABLE_1 if row.model == model)
    return make_testbed().jobs[TABLE_1.index(row)].job


N0, N1 = NodeName("node-0"), NodeName("node-1")


@pytest.mark.parametrize("spread", [True, False])
def test_alone_a_job_has_the_speed_of_its_profile(spread):
    held = {N0: (0, 1)} if spread else {N0: (0, 1), N1: (0,)}
    network = Network(SIMULATED, spread=spread)
    assert network.leave_shares([(job_of("A"), Placement.of(held))]) == [pytest.approx(1.0)]


def test_jobs_share_the_link_between_two_nodes():
    network = Network(TESTBED, spread=True)
    jobs = [
        (job_of("A"), Placement.of({N0: (0, 1)})),
        (job_of("A"), Placement.of({N0: (2, 3)})),
    ]
    # Alone two remote workers move 244 MB each in 3.9 s; with two more on the link it takes twice that.
    local_s, moved_s = 2 * 64 / 59.1, 2 * 244.0 / 125.0
    share = (local_s + moved_s) / (local_s + 2 * moved_s)
    assert network.leave_shares(jobs) == pytest.approx([share, share])
    beside = Network(TESTBED, spread=False)
    assert beside.leave_shares(jobs) == [pytest.approx(1.0)] * 2


def test_dragon_beats_locality_and_kubeflow(testbed):
    assert reduce_elapsed(testbed, "dragon", baseline="kubeflow") == pytest.approx(65.0, rel=1 / 3)
    assert reduce_elapsed(testbed, "locality", baseline="kubeflow") == pytest.approx(
        60.0, rel=1 / 3
    )
    assert reduce_elapsed(testbed, "dragon", baseline="locality") > 0.0


def test_intensity_scales_arrivals_only():
    sparse, dense = make_simulated(1.0, seed=0), make_simulated(4.0, seed=0)
    assert [job.iterations for job in sparse.jobs] == [job.iterations for job in dense.jobs]
    last = [each.jobs[-1].job.submitted_at for each in (sparse, dense)]
    assert last[0] == pytest.approx(4.0 * last[1])
    for traced in sparse.jobs:
        options = traced.job.gpus.options
        assert 2 <= options[0] <= traced.job.gpus.requested <= options[-1] <= 8


@pytest.mark.slow
@pytest.mark.parametrize("intensity", [0.5, 3.0])
def test_dragon_leads_at_every_intensity(intensity):
    found = play_simulated(intensity)
    assert reduce_elapsed(found, "dragon", baseline="locality") > 0.0
    assert reduce_elapsed(found, "dragon", baseline="kubeflow") > 50.0

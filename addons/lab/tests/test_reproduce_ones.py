"""The workload of the ONES paper, and the comparison with it."""

import pytest

from dljob.sim.jobs.noise import find_noise
from dljob_lab.reproducing import ones
from dljob_lab.reproducing.ones_workload import list_kinds, make_workload, speeds_of


def test_every_possible_batch_has_speeds():
    workload = make_workload(jobs=50, interval_seconds=20.0, seed=0)
    for traced in workload.jobs:
        job = traced.job
        each = job.training.batch_size // job.gpus.requested
        for gpus in job.gpus.options:
            batch = min(each * gpus, job.batch.maximum)
            assert workload.truths[job.type._replace(batch_size=batch)].speeds


def test_larger_batch_is_faster_and_worth_less():
    kind = list_kinds()[0]
    few, many = (
        batch * max(speed.iterations_per_s for speed in speeds_of(kind.model, batch).values())
        for batch in (200, 1600)
    )
    assert many > few
    assert find_noise("imagenet", 200).worth(1600, own=200, progress=0.05) < 0.9


@pytest.mark.slow
def test_ones_is_compared_with_the_paper(monkeypatch):
    monkeypatch.setattr(ones, "EXPERIMENTS", ones.EXPERIMENTS[:1])
    reproduction = ones.reproduce(None, jobs=12, seeds=(0,))
    items = {(row.item, row.quantity): row for row in reproduction.rows}
    assert items["64 GPUs/tiresias", "jct reduction"].paper == 45.6
    assert items["64 GPUs/ones", "avg jct"].ours > 0.0
    assert ("experiment/updates after a tenth of an epoch/optimus", "jct reduction") in items

"""The thesis on gang scheduling: its tables as printed, and its three claims."""

from statistics import fmean

import pytest

from dljob_lab.reproducing import gang
from dljob_lab.reproducing.gang import (
    EXAMPLE,
    LEAST_PODS,
    SCARCE,
    SCHEDULERS,
    compare_lenet,
    make_workload,
    play,
)


@pytest.fixture
def few_seeds(monkeypatch):
    monkeypatch.setattr(gang, "SEEDS", 20)


def test_example_deadlocks_without_gangs_only():
    workload = make_workload(2, 100.0, pods=(LEAST_PODS,))
    locked = {
        name: fmean(
            play(workload, EXAMPLE, policy=policy, seed=seed).deadlocks for seed in range(40)
        )
        for name, policy in SCHEDULERS.items()
    }
    # 18 of the 20 choices of three pods out of six leave no job whole.
    assert locked["default"] == pytest.approx(18 / 20, abs=0.1)
    assert locked["gang"] == 0.0


def test_gangs_finish_the_first_job_sooner(few_seeds):
    found = compare_lenet(SCARCE)
    assert min(found.first) >= 0.0
    assert min(found.mean) >= 0.0
    assert fmean(found.first) > 10.0
    assert found.deadlocks > 0.0


def test_all_rows_are_compared(few_seeds):
    found = gang.reproduce(None)
    rows = found.rows
    assert len([row for row in rows if row.item.startswith("table-2/")]) == 2 * 8
    by_item = {(row.item, row.quantity): row for row in rows}
    assert by_item["table-2/test-11/default", "job mean"].paper == 1089
    assert by_item["two-jobs-three-slots/gang", "deadlocks"].ours == 0.0

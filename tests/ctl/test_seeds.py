"""``dljob simulate --seeds``: every figure as a mean over seeds, with its spread."""

import os
from statistics import fmean, stdev

import pytest

from dljob.sim.comparing import running
from tests.ctl.running import run_apart

FIVE = ("simulate", "five.csv", "--gpus", 8)
BOTH = ("--policy", "srsf", "--policy", "foresight")


@pytest.fixture
def one_core(monkeypatch):
    """Where processes of their own would only take longer to start than the simulations take."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def test_each_seed_is_the_simulation_that_seed_alone_would_be(dljob, folder, one_core):
    rows = dljob(*FIVE, *BOTH, "--seeds", 3, "--seed", 5, "-o", "json").data
    assert [(row["seed"], row["policy"]) for row in rows] == [
        (seed, policy) for seed in (5, 6, 7) for policy in ("srsf", "foresight")
    ]
    for row in rows:
        (alone,) = dljob(*FIVE, "--policy", row["policy"], "--seed", row["seed"], "-o", "json").data
        assert row["avg_jct_s"] == alone["avg_jct_s"]
        assert row["worst_rho"] == alone["worst_rho"]


def test_the_table_has_mean_and_standard_deviation(dljob, folder, one_core):
    options = (*FIVE, "--policy", "foresight", "--seeds", 4)
    times = [row["avg_jct_s"] / 60 for row in dljob(*options, "-o", "json").data]
    table = dljob(*options).stdout
    assert "mean ± standard deviation over seeds 0 to 3; times in min" in table
    assert f"foresight   {fmean(times):.1f} ± {stdev(times):.1f}" in table
    assert "which each seed from 0 to 3 draws by lot" in table


def test_a_bound_is_that_of_each_seed(dljob, folder, one_core):
    options = (*FIVE, "--policy", "srsf", "--seeds", 2, "--bound", "-o", "json")
    rows = dljob(*options).data
    assert len({row["bound_avg_jct_s"] for row in rows}) == 2
    assert all(row["avg_jct_s"] >= row["bound_avg_jct_s"] for row in rows)


def test_seeds_that_change_nothing_are_said_to_change_nothing(dljob, folder, one_core):
    told = dljob(*FIVE, "--rigid", "--policy", "srsf", "--seeds", 2).stderr
    assert told.startswith("the seed changes nothing here")
    assert dljob(*FIVE, "--policy", "foresight", "--seeds", 3).stderr == ""


def test_ctrl_c_leaves_the_seeds_that_were_played(dljob, folder, one_core, monkeypatch):
    perform = running.perform

    def interrupted(task):
        if task.scenario.seed == 2:
            raise KeyboardInterrupt
        return perform(task)

    monkeypatch.setattr(running, "perform", interrupted)
    result = dljob(*FIVE, *BOTH, "--seeds", 4, "-o", "csv")
    assert result.status == 130
    assert [row["seed"] for row in result.rows] == ["0", "0", "1", "1"]
    assert result.stderr == (
        "interrupted: 4 of 8 simulations were played to the end; the table is about those\n"
    )


def test_what_several_seeds_cannot_have_is_refused(dljob, folder):
    for options, told in (
        (("--jobs-out", "x.csv"), "--jobs-out is for one seed"),
        (("--plot", "x"), "--plot is for one seed"),
        (("--seeds", 0), "is not in the range"),
    ):
        result = dljob(*FIVE, "--seeds", 2, *options)
        assert result.status == 2
        assert told in result.stderr


@pytest.mark.processes
def test_processes_of_all_cores_come_to_the_same(dljob, folder, one_core):
    options = (*FIVE, *BOTH, "--seeds", 2, "-o", "csv")
    apart = run_apart(*options, cwd=folder)
    assert apart.status == 0, apart.stderr
    here = dljob(*options)
    assert [row["avg_jct_s"] for row in apart.rows] == [row["avg_jct_s"] for row in here.rows]

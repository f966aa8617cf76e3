"""
The assumptions of a simulation are part of its result: below the table, in JSON and beside each
job.
"""

import csv
from dataclasses import replace

from dljob.sim.clusters import fill_nodes
from dljob.sim.jobs.checkpointing import Kind
from dljob.sim.premises import list_premises
from dljob.sim.scenarios import Scenario, build_setting, read_workload, with_checkpoint
from tests.ctl.running import HEADER


def assumed(dljob, *options: object) -> str:
    return "\n".join(dljob("simulate", *options, "-o", "json").data[0]["assumed"])


def test_curves_that_were_drawn_are_counted_and_each_job_says_which(dljob, folder):
    told = assumed(dljob, "five.csv", "--gpus", 8, "--seed", 3, "--jobs-out", "jobs.csv")
    with (folder / "jobs.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    curves = {row["speeds_of"] for row in rows}
    assert all(curves)
    assert {row["drawn_by_lot"] for row in rows} == {"yes"}
    assert (
        f"no speeds are known of all jobs: each follows a measured scaling curve, drawn by lot ({len(curves)} different ones, seed 3)"
        in told
    )


def test_the_numbers_of_gpus_that_jobs_may_have_are_listed(dljob, folder):
    (folder / "one.csv").write_text(f"{HEADER}a,0,600,3\n", encoding="utf-8")
    told = assumed(dljob, "one.csv", "--gpus", 4, "--jobs-out", "jobs.csv")
    (row,) = csv.DictReader((folder / "jobs.csv").read_text(encoding="utf-8").splitlines())
    counts = row["allowed_gpus"].split()
    assert {"1", "2", "3"} <= set(counts)
    assert f"choose among {', '.join(counts)} (each job the powers of two" in told


def test_rigid_jobs_are_said_to_be_rigid(dljob, folder):
    told = assumed(dljob, "five.csv", "--rigid", "--jobs-out", "jobs.csv")
    assert "all jobs are rigid: each runs on exactly the GPUs that it requests" in told
    assert "may run on other numbers" not in told
    with (folder / "jobs.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            assert row["allowed_gpus"] == row["requested_gpus"]
            assert (row["speeds_of"], row["drawn_by_lot"]) == ("", "no")


def test_a_table_has_it_below(dljob, folder):
    table = dljob("simulate", "five.csv", "--gpus", 8).stdout
    _, _, below = table.partition("\nAssumed:\n")
    assert below.startswith("- no speeds are known of all jobs")
    assert below.count("\n- ") == 3
    assert max(map(len, below.splitlines())) <= 140


def test_fairness_slowdown_and_queueing_time_are_in_table_and_json(dljob, folder):
    (score,) = dljob("simulate", "five.csv", "--gpus", 8, "-o", "json").data
    for field in ("worst_rho", "unfair_share", "worst_local_rho", "unfair_local_share"):
        assert score[field] >= 0.0
    assert score["mean_slowdown"] > 0.0
    assert score["avg_wait_s"] >= 0.0
    table = dljob("simulate", "five.csv", "--gpus", 8).stdout
    for title in ("slowdown", "avg wait", "worst rho", "unfair"):
        assert title in table


def test_jobs_that_save_nothing_are_counted(folder):
    scenario = Scenario(trace=folder / "five.csv", machines=fill_nodes(8))
    setting = build_setting(scenario)
    workload = read_workload(scenario, setting)
    first, second, *others = workload.jobs
    none, broken = with_checkpoint(first, Kind.NONE), with_checkpoint(second, Kind.BROKEN)
    lossy = replace(workload, jobs=(none, broken, *others))
    told = "\n".join(list_premises(lossy, setting))
    assert (
        "1 of 5 jobs save no checkpoint and 1 of 5 jobs declare one that does not work, so a change of"
        " GPUs loses what they have done" in told
    )


def test_checkpoint_of_a_job_can_be_given(dljob, folder):
    (folder / "column.csv").write_text(f"{HEADER.strip()},checkpoint\na,0,90,1,none\n")
    (folder / "option.csv").write_text(f"{HEADER}a,0,90,1\n")
    (folder / "annotation.yaml").write_text(
        "apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata:\n  name: a\n  annotations:\n"
        "    sim.dljob.io/checkpoint: none\nspec:\n  gpus: {options: [1]}\n  training:"
        " {iterations: 90}\n"
    )
    for name, more in (
        ("column.csv", ()),
        ("option.csv", ("--no-checkpoint", 1)),
        ("annotation.yaml", ()),
    ):
        assert "save no checkpoint" in assumed(dljob, name, "--gpus", 8, *more)
    (folder / "column.csv").write_text(f"{HEADER.strip()},checkpoint\na,0,90,1,maybe\n")
    result = dljob("simulate", "column.csv")
    assert result.status == 1
    for part in ("column.csv:2", "checkpoint", "'maybe'", "good, none, broken"):
        assert part in result.stderr

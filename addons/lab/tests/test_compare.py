"""``dljob compare`` as its users and their programs know it."""

import pytest

from dljob.sim import policies
from dljob_lab.comparing import running

TWO = ("--policy", "max-min", "--policy", "srtf")
SMALL = ("compare", "five.csv", *TWO, "--gpus", 8, "--jobs", 1)
MEASURED = {"decision_ms", "wall_s", "peak_rss_mb"}


def strip(rows):
    return [{k: v for k, v in row.items() if k not in MEASURED} for row in rows]


def test_every_combination_is_a_row_in_the_order_of_the_command_line(dljob, folder):
    options = ("--loads", "0.5,0.9", "--restart-costs", "0,30", "--seeds", 2, "-o", "json")
    rows = dljob(*SMALL, *options).data
    cases = [(r["load"], r["restart_cost_s"], r["seed"], r["policy"]) for r in rows]
    assert cases == [
        (load, cost, seed, policy)
        for load in (0.5, 0.9)
        for cost in (0.0, 30.0)
        for seed in (0, 1)
        for policy in ("max-min", "srtf")
    ]


def test_row_equals_the_result_of_simulate(dljob, folder):
    (row,) = dljob(*SMALL[:2], "--policy", "srtf", "--gpus", 8, "-o", "json").data
    (score,) = dljob("simulate", "five.csv", "--policy", "srtf", "--gpus", 8, "-o", "json").data
    assert score.pop("assumed")
    assert {name: row[name] for name in score if name not in MEASURED} == strip([score])[0]


def test_the_table_has_a_line_a_policy_with_ratios_to_the_first(dljob, folder):
    text = dljob(*SMALL, "--bound").stdout
    assert "ratios to max-min" in text
    assert "JCT / bound" in text
    (line,) = (line for line in text.splitlines() if line.split()[:1] == ["max-min"])
    assert "1.000 ± 0.000" in line


def test_results_are_kept_and_taken_again_instead_of_played(dljob, folder, monkeypatch):
    first = dljob(*SMALL, "--resume", "kept.jsonl", "-o", "json")
    assert len((folder / "kept.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    monkeypatch.setattr(running, "perform", lambda task: pytest.fail("played again"))
    again = dljob(*SMALL, "--resume", "kept.jsonl", "-o", "json")
    assert again.data == first.data
    assert "2 of 2 results exist already" in again.stderr


def test_interrupted_comparison_prints_results_and_resumes(dljob, folder, monkeypatch):
    perform = running.perform

    def interrupted(task):
        if task.policy in ("srtf", policies.NAMES[0]):
            raise KeyboardInterrupt
        return perform(task)

    monkeypatch.setattr(running, "perform", interrupted)
    result = dljob(*SMALL, "--resume", "kept.jsonl", "-o", "json")
    assert result.status == 130
    assert [row["policy"] for row in result.data] == ["max-min"]
    assert "1 of 2 simulations are missing" in result.stderr
    every = dljob("compare", "five.csv", "--all-policies", "--jobs", 1)
    assert f" of {len(policies.NAMES)} simulations are missing" in every.stderr
    monkeypatch.setattr(running, "perform", perform)
    rest = dljob(*SMALL, "--resume", "kept.jsonl", "-o", "json")
    assert rest.status == 0
    assert "1 of 2 results exist already" in rest.stderr
    assert strip(rest.data) == strip(dljob(*SMALL, "-o", "json").data)


@pytest.mark.slow
def test_the_comparison_is_drawn(dljob, folder):
    dljob(*SMALL, "--plot", "drawn")
    assert (folder / "drawn" / "comparison.png").stat().st_size > 1000
    assert (folder / "drawn" / "comparison.svg").exists()


def test_wrong_usage_is_refused(dljob, folder):
    for options, told in (
        (("compare", "--policy", "fifo"), "no TRACE is given"),
        (("compare", "five.csv"), "no policy is given"),
        ((*SMALL, "--reference", "fifo"), "--reference fifo is not compared"),
        ((*SMALL, "--reference", "exact", "--reference", "srtf"), "give it alone"),
        ((*SMALL, "--by", "colour"), "'colour' is not one of"),
        ((*SMALL, "--loads", "0.5,-1"), "not a load from 0.001 to 1000"),
        (("compare", "five.csv", "--policy", "fifi"), "did you mean fifo"),
    ):
        result = dljob(*options)
        assert result.status == 2
        assert told in result.stderr

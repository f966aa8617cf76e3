"""``dljob bound`` and ``dljob simulate --bound`` as their users and their programs know them."""

import pytest

from tests.ctl.running import FIVE, HEADER
from tests.ctl.test_simulate import FIELDS

WORLD = ("--gpus", 8, "--restart-cost", 0)
ADDED = {"bound_avg_jct_s", "avg_jct_over_bound"}


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "five.csv"
    path.write_text(FIVE, encoding="utf-8")
    return path


def test_no_policy_is_below_the_bound_of_the_command(dljob, trace):
    bound = dljob("bound", trace, *WORLD, "-o", "json").data
    policies = ("--policy", "srsf", "--policy", "adaptive", "--policy", "tiresias")
    scores = dljob("simulate", trace, *WORLD, *policies, "-o", "json").data
    assert all(score["avg_jct_s"] >= bound["bound_avg_jct_s"] > 0 for score in scores)
    assert bound["jobs"] == scores[0]["jobs"]


def test_a_bound_says_what_it_is_about_and_how_it_was_found(dljob, trace):
    bound = dljob("bound", trace, *WORLD, "--rounds", 20, "-o", "json").data
    assert bound["trace"] == "five"
    assert (bound["jobs"], bound["dropped"], bound["never"], bound["rounds"]) == (5, 0, 0, 20)
    assert bound["bins"] > 0
    assert bound["wall_s"] > 0
    assert bound["alone_s"] <= bound["bound_avg_jct_s"] <= bound["reference_avg_jct_s"]


def test_a_bound_is_a_row_of_csv(dljob, trace):
    rows = dljob("bound", trace, *WORLD, "--rounds", 5, "-o", "csv").rows
    assert [row["jobs"] for row in rows] == ["5"]


def test_people_are_told_the_bound_in_seconds_with_what_it_took(dljob, trace):
    result = dljob("bound", trace, *WORLD, "--rounds", 5)
    assert "avg JCT of any policy is at least" in result.stdout
    assert "computed in" in result.stdout


def test_the_start_of_jobs_is_part_of_the_bound(dljob, trace):
    free = dljob("bound", trace, *WORLD, "-o", "json").data
    dear = dljob("bound", trace, "--gpus", 8, "--restart-cost", 600, "-o", "json").data
    # Somewhat above is proven, because a start holds GPUs; the search is a little less exact there.
    assert dear["bound_avg_jct_s"] >= free["bound_avg_jct_s"] + 590


def test_simulate_holds_figures_against_the_bound_only_where_it_is_asked_for(dljob, trace):
    plain = dljob("simulate", trace, *WORLD, "-o", "json").data
    beside = dljob("simulate", trace, *WORLD, "--bound", "-o", "json").data
    assert not ADDED & set(plain[0])
    assert set(beside[0]) >= FIELDS | ADDED
    assert beside[0]["avg_jct_s"] == plain[0]["avg_jct_s"]
    ratio = beside[0]["avg_jct_s"] / beside[0]["bound_avg_jct_s"]
    assert beside[0]["avg_jct_over_bound"] == pytest.approx(ratio)
    assert ratio >= 1.0


def test_the_table_of_simulate_has_the_bound_beside_the_average(dljob, trace):
    result = dljob("simulate", trace, *WORLD, "--bound")
    assert "JCT/bound" in result.stdout
    assert "JCT/bound" not in dljob("simulate", trace, *WORLD).stdout


def test_jobs_that_no_cluster_fits_are_counted(dljob, tmp_path):
    path = tmp_path / "large.csv"
    path.write_text(HEADER + "0,0,100,2\n1,0,100,64\n", encoding="utf-8")
    bound = dljob("bound", path, *WORLD, "-o", "json").data
    assert (bound["jobs"], bound["dropped"]) == (1, 1)


def test_a_trace_of_which_nothing_fits_is_refused(dljob, tmp_path):
    path = tmp_path / "large.csv"
    path.write_text(HEADER + "0,0,100,64\n", encoding="utf-8")
    result = dljob("bound", path, *WORLD)
    assert result.status == 1
    assert "no job that can run on 8 GPUs" in result.stderr


def test_a_bound_of_no_rounds_is_wrong_usage(dljob, trace):
    result = dljob("bound", trace, "--rounds", 0)
    assert result.status == 2
    assert "--rounds" in result.stderr

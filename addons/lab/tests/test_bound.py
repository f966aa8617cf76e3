"""``dljob bound`` as its users and their programs know it."""

import pytest

from tests.ctl.running import FIVE, HEADER

WORLD = ("--gpus", 8, "--restart-cost", 0)
ADDED = {"bound_avg_jct_s", "avg_jct_over_bound"}


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "five.csv"
    path.write_text(FIVE, encoding="utf-8")
    return path


def test_a_bound_says_how_it_was_found_and_no_policy_is_below_it(dljob, trace):
    bound = dljob("bound", trace, *WORLD, "--rounds", 20, "-o", "json").data
    assert bound["trace"] == "five"
    assert (bound["jobs"], bound["dropped"], bound["never"], bound["rounds"]) == (5, 0, 0, 20)
    assert bound["bins"] > 0
    assert bound["alone_s"] <= bound["bound_avg_jct_s"] <= bound["reference_avg_jct_s"]
    policies = ("--policy", "srsf", "--policy", "adaptive", "--policy", "tiresias")
    scores = dljob("simulate", trace, *WORLD, *policies, "-o", "json").data
    assert all(score["avg_jct_s"] >= bound["bound_avg_jct_s"] > 0 for score in scores)


def test_the_start_of_jobs_is_part_of_the_bound(dljob, trace):
    free = dljob("bound", trace, *WORLD, "-o", "json").data
    dear = dljob("bound", trace, "--gpus", 8, "--restart-cost", 600, "-o", "json").data
    # Somewhat above is proven, because a start holds GPUs; the search is a little less exact there.
    assert dear["bound_avg_jct_s"] >= free["bound_avg_jct_s"] + 590


def test_a_trace_of_which_nothing_fits_is_refused(dljob, tmp_path):
    path = tmp_path / "large.csv"
    path.write_text(HEADER + "0,0,100,64\n", encoding="utf-8")
    result = dljob("bound", path, *WORLD)
    assert result.status == 1
    assert "no job that can run on 8 GPUs" in result.stderr

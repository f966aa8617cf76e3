"""Reproductions that set our policies beside those of others, as far as they are listed."""

import pytest

from dljob.sim import policies
from dljob.sim.inputs.shipped import find_folder
from dljob_lab.reproducing import pollux, rubick, shockwave
from dljob_lab.reproducing.contests import Entry, keep_listed, play


def test_entries_of_policies_that_are_not_listed_are_left_out():
    entries = (Entry("srsf", "theirs"), Entry("of-another-time", "theirs"))
    assert keep_listed(entries) == entries[:1]


def test_every_entry_is_a_policy_with_options_that_it_takes():
    for entry in keep_listed((*pollux.ENTRIES, *shockwave.ENTRIES, *rubick.ENTRIES)):
        assert policies.read(entry.policy).name == entry.name


def test_shockwaves_rigid_jobs_are_all_finished_and_measured():
    path = find_folder() / "shockwave" / "shockwave_120.csv.gz"
    outcome, _ = play(Entry("fifo", "gavel", rigid=True), path, arena=shockwave.ARENA)
    figures = shockwave.sum_up(outcome.score)
    assert (outcome.score.jobs, outcome.score.unfinished) == (120, 0)
    # No job is faster than alone, and first come first served is unfair to short ones.
    assert figures.worst_rho > 2.0
    assert 0.0 < figures.unfair < 100.0
    assert figures.makespan > 19_850


@pytest.mark.slow
def test_rubicks_trace_has_wide_gangs_beside_small_jobs():
    made = rubick.reproduce(None)
    rows = {(row.item, row.quantity): row for row in made.rows}
    assert rows["srsf", "avg jct"].paper == pytest.approx(494.7, abs=0.1)
    for row in made.rows:
        assert row.ours > row.paper, "no job is faster than alone, started for nothing"


@pytest.mark.long
def test_pollux_and_sia_are_played_on_all_that_they_plan():
    for world in ("pollux", "sia"):
        made = pollux.reproduce(None, world=world)
        assert {row.item.split("/")[0] for row in made.rows} == {
            f"load-{load}" for load in ("0.5", "1.0", "1.5", "2.0")
        }

"""Reproductions that compare our policies with those of others."""

import pytest

from dljob.sim import policies
from dljob.sim.inputs.shipped import find_folder
from dljob_lab.reproducing import pollux, rubick, shockwave
from dljob_lab.reproducing.contests import Entry, keep_listed, play


def test_unlisted_policies_are_left_out():
    entries = (Entry("srsf", "theirs"), Entry("of-another-time", "theirs"))
    assert keep_listed(entries) == entries[:1]


def test_every_entry_is_a_valid_policy():
    for entry in keep_listed((*pollux.ENTRIES, *shockwave.ENTRIES, *rubick.ENTRIES)):
        assert policies.read(entry.policy).name == entry.name


def test_shockwave_rigid_jobs_all_finish():
    path = find_folder() / "shockwave" / "shockwave_120.csv.gz"
    outcome, _ = play(Entry("fifo", "gavel", rigid=True), path, arena=shockwave.ARENA)
    figures = shockwave.sum_up(outcome.score)
    assert (outcome.score.jobs, outcome.score.unfinished) == (120, 0)
    # No job is faster than alone, and first come first served is unfair to short ones.
    assert figures.worst_rho > 2.0
    assert 0.0 < figures.unfair < 100.0
    assert figures.makespan > 19_850


@pytest.mark.slow
def test_rubick_trace_is_never_faster_than_alone():
    made = rubick.reproduce(None)
    rows = {(row.item, row.quantity): row for row in made.rows}
    assert rows["srsf", "avg jct"].paper == pytest.approx(494.7, abs=0.1)
    for row in made.rows:
        assert row.ours > row.paper, "no job is faster than alone, started for nothing"


@pytest.mark.long
def test_pollux_and_sia_play_every_load():
    for world in ("pollux", "sia"):
        made = pollux.reproduce(None, world=world)
        assert {row.item.split("/")[0] for row in made.rows} == {
            f"load-{load}" for load in ("0.5", "1.0", "1.5", "2.0")
        }

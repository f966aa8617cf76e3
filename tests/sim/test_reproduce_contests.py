"""Reproductions that set our policies beside those of others, as far as they are listed."""

from statistics import fmean

import pytest

from dlcore import policies
from dlcore.model import Mechanism
from dlpapers.reproducing import (
    REPRODUCTIONS,
    WHOLE,
    pollux,
    rubick,
    shockwave,
)
from dlpapers.reproducing.contests import Entry, keep_listed, play
from dlsim.inputs.shipped import find_folder

ALL_ENTRIES = (*pollux.ENTRIES, *shockwave.ENTRIES, *rubick.ENTRIES)


def test_entries_of_policies_that_are_not_listed_are_left_out():
    entries = (Entry("srsf", "theirs"), Entry("of-another-time", "theirs"))
    assert keep_listed(entries) == entries[:1]


@pytest.mark.parametrize("entry", keep_listed(ALL_ENTRIES), ids=lambda entry: entry.policy)
def test_every_entry_is_a_policy_with_options_that_it_takes(entry):
    assert policies.read(entry.policy).name == entry.name


def test_every_entry_stands_beside_a_policy_of_the_authors():
    workload = next(iter(pollux.read_published().values()))
    assert {entry.beside for entry in pollux.ENTRIES} <= workload.keys()
    assert {entry.beside for entry in shockwave.ENTRIES} <= shockwave.read_published().keys()


def test_all_twenty_workloads_have_figures_and_a_trace():
    places = list(pollux.read_published())
    assert len(places) == 20
    assert all((find_folder() / "peers" / place.trace).is_file() for place in places)


def test_what_searches_for_minutes_is_played_on_two_workloads_unless_all_is_wanted():
    published, slow = pollux.read_published(), Entry("sia", "pollux")
    chosen = {
        is_whole: [
            p
            for p in published
            if pollux.plays(slow, p, published=published, world="pollux", is_whole=is_whole)
        ]
        for is_whole in (False, True)
    }
    assert [place.load for place in chosen[False]] == ["0.5", "1.0"]
    assert chosen[True] == list(published)


def test_the_world_of_sia_is_played_on_one_workload_of_each_load():
    published, quick = pollux.read_published(), Entry("srsf", "pollux")
    chosen = [
        p
        for p in published
        if pollux.plays(quick, p, published=published, world="sia", is_whole=False)
    ]
    assert [place.load for place in chosen] == ["0.5", "1.0", "1.5", "2.0"]


def test_a_workload_is_played_by_the_rules_of_its_world():
    arena = pollux.make_arena("sia")
    setting = arena.build()
    assert (setting.round_s, setting.mechanism) == (60.0, Mechanism.RECREATE)
    assert len(setting.nodes) == 16
    path = find_folder() / "peers" / "pollux_0.5_workload-1.csv.gz"
    outcome, workload = play(Entry("srsf", "x", rigid=True), path, arena)
    theirs, _ = play(Entry("srsf", "x", rigid=True), path, pollux.make_arena("pollux"))
    assert outcome.score.unfinished == 0
    assert outcome.score.avg_jct_s > theirs.score.avg_jct_s, "its jobs are slower and pay more"
    assert all(profile.costs is not None for profile in workload.truths.values())


def test_means_stand_beside_the_means_of_the_same_workloads():
    published = pollux.read_published()
    places = [place for place in published if place.load == "0.5"][:2]
    entry, arena = Entry("srsf", "pollux", rigid=True), pollux.make_arena("pollux")
    played = [
        pollux.Played(
            place, entry, play(entry, find_folder() / "peers" / place.trace, arena)[0].score
        )
        for place in places
    ]
    rows = {row.quantity: row for row in pollux.compare(played, published)}
    row = rows["mean avg jct"]
    assert row.item == "load-0.5/pollux/srsf"
    assert row.paper == fmean(published[place]["pollux"]["avg_jct_s"] for place in places)
    assert row.ours == fmean(each.score.avg_jct_s for each in played)
    assert row.spread > 0.0


def test_what_has_a_longer_form_has_a_shorter_one():
    assert WHOLE.keys() <= REPRODUCTIONS.keys()


def test_shockwaves_rigid_jobs_are_all_finished_and_measured():
    path = find_folder() / "shockwave" / "shockwave_120.csv.gz"
    outcome, _ = play(Entry("fifo", "gavel", rigid=True), path, shockwave.ARENA)
    figures = shockwave.sum_up(outcome.score)
    assert (outcome.score.jobs, outcome.score.unfinished) == (120, 0)
    # No job is faster than alone, and first come first served is unfair to short ones.
    assert figures.worst_rho > 2.0
    assert 0.0 < figures.unfair < 100.0
    assert figures.makespan > 19_850


@pytest.mark.slow
def test_shockwaves_table_is_made_of_every_listed_policy():
    told: list[tuple[str, int, int]] = []
    made = shockwave.reproduce(lambda *step: told.append(step))
    entries = keep_listed(shockwave.ENTRIES)
    assert len(made.rows) == 4 * len(entries)
    assert told[-1] == ("shockwave", len(entries), len(entries))
    assert len(made.notes) == 4
    assert {"shockwave-avg-jct", "shockwave-worst-rho"} == made.draw().keys()


@pytest.mark.slow
def test_rubicks_trace_has_wide_gangs_beside_small_jobs():
    made = rubick.reproduce(None)
    rows = {(row.item, row.quantity): row for row in made.rows}
    assert rows["srsf", "avg jct"].paper == pytest.approx(494.7, abs=0.1)
    for row in made.rows:
        assert row.ours > row.paper, "no job is faster than alone, started for nothing"
    assert made.draw().keys() == {"rubick"}


@pytest.mark.long
def test_pollux_and_sia_are_played_on_all_that_they_plan():
    for world in ("pollux", "sia"):
        made = pollux.reproduce(None, world=world)
        assert {row.item.split("/")[0] for row in made.rows} == {
            f"load-{load}" for load in ("0.5", "1.0", "1.5", "2.0")
        }
        assert len(made.draw()) == 4


def test_an_arena_without_a_world_changes_nothing_of_its_jobs():
    path = find_folder() / "rubick" / "rubick_base.csv.gz"
    setting = rubick.ARENA.build()
    workload = rubick.ARENA.read(path, setting, rigid=False)
    assert (setting.growth, setting.round_s) == (None, 60.0)
    assert not any(traced.job.gpus.whole_nodes for traced in workload.jobs)

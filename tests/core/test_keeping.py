"""Jobs without saved work keep their GPUs, even if a policy would gain by a change."""

import itertools
from dataclasses import replace

import pytest

from dljob.core.cycle import schedule
from dljob.core.model import CauseCode, JobId
from dljob.core.placement.limits import NamespaceLimits
from dljob.core.planning import Move, Reshape, Start, Stop, Wait
from dljob.sim import policies
from tests.builders import make_cluster, make_placement, make_profile, make_snapshot
from tests.builders import make_state as state

PROFILES = [make_profile()]
ELASTIC = [name for name in policies.NAMES if name != "kube-pods"]


def unsaved(name="old", **known):
    """A job that trains, and has done 400 iterations which no checkpoint holds."""
    known.setdefault("holds", {"n0": (0, 1)})
    return state(name, iterations_done=400.0, unsaved_from=0.0, **known)


def plan(*states, gpus=4, policy="adaptive", **rest):
    world = make_snapshot(make_cluster(n0=gpus), *states, profiles=PROFILES, **rest)
    return schedule(world, policies.make(policy))


def steps(*states, **rest):
    return [step for step in plan(*states, **rest).steps if not isinstance(step, Wait)]


def test_unsaved_job_is_not_reshaped_for_gain():
    newcomers = [state(f"new-{n}", order=n) for n in range(1, 4)]
    for name, gpus in itertools.product(ELASTIC, (4, 2)):
        done = steps(unsaved(), *newcomers, gpus=gpus, policy=name)
        assert all(isinstance(step, Start) for step in done), name
        taken = {ref.number for step in done for ref in step.placement.refs()}
        assert taken.isdisjoint({0, 1})


def test_saved_job_is_reshaped():
    grown = steps(replace(unsaved(), unsaved_from=None))
    assert [type(step) for step in grown] == [Reshape]


def test_unsaved_live_job_grows_and_shrinks():
    live = unsaved(is_live=True)
    (grown,) = steps(live)
    assert set(grown.old.refs()) < set(grown.new.refs())
    full = replace(unsaved(holds={"n0": (0, 1, 2, 3)}), is_live=True)
    shrunk, started = steps(full, state("new", order=1, options=(2,)))
    assert set(shrunk.new.refs()) < set(shrunk.old.refs())
    assert isinstance(started, Start)


def test_unsaved_live_job_on_several_nodes_only_shrinks():
    """There a process that cannot join would end all the others."""
    live = unsaved(is_live=True, holds={"n0": (0,), "n1": (0,)})
    nodes = make_cluster(n0=2, n1=2)
    saved = replace(live, unsaved_from=None)
    for name, known in [*((name, live) for name in ELASTIC), ("adaptive", saved)]:
        alone = make_snapshot(nodes, known, profiles=PROFILES)
        done = schedule(alone, policies.make(name)).steps
        assert any(isinstance(step, Reshape | Move) for step in done) is (known is saved), name
    full = replace(unsaved(holds={"n0": (0, 1), "n1": (0, 1)}), is_live=True)
    newcomer = state("new", order=1, options=(2,))
    world = make_snapshot(nodes, full, newcomer, profiles=PROFILES)
    shrunk, started = schedule(world, policies.make("adaptive")).steps
    assert isinstance(shrunk, Reshape)
    assert set(shrunk.new.refs()) < set(shrunk.old.refs())
    assert isinstance(started, Start)


def test_unsaved_live_job_keeps_its_gpus_after_its_last_step():
    done = {"iterations_total": 400.0, "is_live": True}
    assert steps(unsaved(**done)) == []
    assert steps(unsaved(**done, holds={"n0": (0, 1, 2, 3)}), state("new", order=1)) == []


def test_unsaved_live_job_is_not_stopped_for_gain():
    live = replace(unsaved(holds={"n0": (0, 1, 2, 3)}), is_live=True, iterations_total=1e6)
    short = state("short", options=(4,), order=1, iterations_total=10.0)
    for name in ELASTIC:
        done = steps(live, short, policy=name)
        assert not any(isinstance(step, Stop) for step in done), name


def test_live_job_grows_onto_a_further_node():
    def grow(**known):
        old = state("old", options=(2, 4), holds={"n0": (0, 1)}, **known)
        world = make_snapshot(make_cluster(n0=2, n1=4), old, profiles=PROFILES)
        (step,) = schedule(world, policies.make("max-min")).steps
        assert isinstance(step, Reshape | Move)
        return set(step.new.nodes)

    assert grow() == {"n1"}
    assert grow(is_live=True) == grow(is_live=True, unsaved_from=0.0) == {"n0", "n1"}
    # It may be on one node only: it starts again there, unless that would lose its work.
    one_node = {"is_live": True, "max_nodes": 1}
    assert grow(**one_node) == {"n1"}
    with pytest.raises(ValueError, match="not enough values"):
        grow(**one_node, unsaved_from=0.0)


def in_its_pod(**known):
    """A job that trains in place, and whose checkpoints end with its pod."""
    known.setdefault("holds", {"n0": (0, 1, 2, 3)})
    return state("old", iterations_done=400.0, lost_if_stopped=True, **known)


def test_job_with_work_in_its_pod_is_reshaped_in_place():
    assert [type(step) for step in steps(in_its_pod(holds={"n0": (0, 1)}))] == [Reshape]


def test_job_with_work_in_its_pod_stops_only_for_priority():
    def stop(old, *, priority):
        short = state("short", options=(4,), order=1, iterations_total=10.0, priority=priority)
        both = (replace(old, iterations_total=1e6), short)
        made = [(name, steps(*both, policy=name)) for name in ELASTIC]
        return {name for name, done in made if any(isinstance(step, Stop) for step in done)}

    kept = in_its_pod(options=(4,))
    saved = replace(kept, lost_if_stopped=False)
    assert stop(saved, priority=0)
    assert not stop(kept, priority=0)
    assert stop(kept, priority=5) == stop(
        unsaved(options=(4,), holds={"n0": (0, 1, 2, 3)}), priority=5
    )


def trains(**known):
    """A job that keeps two GPUs, and takes 60 s more."""
    known.setdefault("holds", {"n0": (0, 1)})
    return unsaved(speed=10.0, iterations_total=1000.0, observed_at=100.0, **known)


def test_newer_jobs_pass_a_blocked_one_until_it_waited_long():
    def waits_since(submitted):
        rest = {"order": 1, "submitted_at": submitted, "iterations_total": 10.0}
        wide = state("wide", options=(4,), **rest)
        small = state("small", options=(1,), order=2, priority=0)
        first = state("first", options=(1,), order=3, priority=1)
        made = plan(trains(), wide, small, first, policy="srtf", now=100.0)
        return {step.job: step for step in made.steps}

    early = waits_since(50.0)
    assert isinstance(early["small"], Start)
    assert isinstance(early["first"], Start)
    late = waits_since(30.0)
    assert late["small"].cause.code is CauseCode.BEHIND
    assert late["small"].cause.job == "wide"
    assert late["wide"].cause.code is CauseCode.NO_ROOM
    assert isinstance(late["first"], Start)


LEAVE = ["fifo", "gang-fifo", "srtf", "srsf", "tiresias", "adaptive", "optimus", "ones"]
TAKE = ["foresight", "max-min", "hdf", "lyra", "themis", "srtf-e"]


def test_only_preempting_policies_stop_an_unsaved_job():
    old = unsaved(options=(4,), holds={"n0": (0, 1, 2, 3)})
    first = state("first", options=(2,), order=1, priority=5)
    saved = replace(old, unsaved_from=None)
    for name, each in itertools.product(LEAVE + TAKE, (old, saved)):
        done = steps(each, first, policy=name)
        assert [type(step) for step in done] == ([Stop, Start] if name in TAKE else []), name


@pytest.mark.parametrize("limits", [{}, {"other": 100}, {"team": 9, "other": 1}])
def test_limits_do_not_hinder_an_allowed_preemption(limits):
    world = make_snapshot(
        make_cluster(n0=8),
        unsaved("team/old", options=(5,), holds={"n0": (0, 1, 2, 3, 4)}),
        state("team/urgent", options=(4,), order=1, priority=10),
        profiles=PROFILES,
    )
    done = schedule(
        replace(world, limits=NamespaceLimits(max_gpus=limits)), policies.make("foresight")
    ).steps
    assert [(type(s), s.job) for s in done] == [(Stop, "team/old"), (Start, "team/urgent")]


def test_job_beyond_its_limit_takes_no_kept_gpus():
    world = make_snapshot(
        make_cluster(n0=8),
        unsaved("other/old", options=(5,), holds={"n0": (0, 1, 2, 3, 4)}),
        state("team/urgent", options=(4,), order=1, priority=10),
        profiles=PROFILES,
    )
    limited = replace(world, limits=NamespaceLimits(max_gpus={"team": 3}))
    made = schedule(limited, policies.make("foresight"))
    assert [(type(s), s.cause.code) for s in made.steps] == [(Wait, CauseCode.NAMESPACE_LIMIT)]


def test_job_without_room_does_not_block_lower_priorities():
    peer = unsaved("peer", options=(2,), holds={"n0": (2, 3)}, order=1, priority=9)
    huge = state("huge", options=(4,), order=2, priority=9, submitted_at=0.0)
    small = state("small", options=(2,), order=3, priority=4)
    done = steps(unsaved(options=(2,)), peer, huge, small, policy="foresight")
    assert [(type(step), step.job) for step in done] == [(Stop, "old"), (Start, "small")]


def test_cheapest_sufficient_jobs_are_preempted():
    losers = [
        replace(unsaved("long", holds={"n0": (0, 1)}, order=0), iterations_done=900.0),
        replace(unsaved("short", holds={"n0": (2, 3)}, order=1), iterations_done=10.0),
        unsaved("peer", holds={"n0": (4, 5)}, order=2, priority=5),
    ]
    first = state("first", options=(2,), order=3, priority=5)
    done = steps(*losers, first, gpus=6, policy="foresight")
    assert [(type(step), step.job) for step in done] == [(Stop, "short"), (Start, "first")]
    assert done[0].cause.code is CauseCode.OUTRANKED
    assert done[0].cause.job == "first"
    assert done[1].placement == make_placement(n0=(2, 3))
    assert done[1].after == (JobId("short"),)


def test_kept_gpus_count_for_the_namespace():
    world = make_snapshot(
        make_cluster(n0=4), unsaved("team/old"), state("team/new", order=1), profiles=PROFILES
    )
    limited = replace(world, limits=NamespaceLimits(max_gpus={"team": 3}))
    started = [
        s for s in schedule(limited, policies.make("adaptive")).steps if isinstance(s, Start)
    ]
    assert [step.placement.gpus for step in started] == [1]


def test_unsaved_job_is_reshaped_when_its_user_edits_it():
    done = steps(unsaved(options=(1, 4)))
    assert [(type(step), step.new.gpus) for step in done] == [(Reshape, 4)]


def test_policy_remembers_a_kept_job():
    kept = replace(unsaved(holds={"n0": (0, 1, 2, 3)}), iterations_total=1e6)
    short = state("short", options=(4,), order=1, iterations_total=10.0)
    first = plan(kept, short, policy="foresight", now=500.0)
    assert [type(step) for step in first.steps] == [Wait]
    then = plan(kept, short, policy="foresight", now=600.0, policy_state=first.policy_state)
    memory = then.policy_state.memory
    assert memory.tenures["old"].since == 500.0
    assert memory.usual_tenure == 0.0
    assert not memory.lengths

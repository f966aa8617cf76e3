"""The quota of a job's queue bounds its GPUs in every decision, under every policy, and taking it back is a demand."""

from dataclasses import replace

import pytest

from dljob.core.explaining.sentences import sentence_for_step
from dljob.core.model import Cause, CauseCode, Ceiling, JobState
from dljob.core.planning import Move, Reshape, Start, Stop, Wait
from dljob.sim import policies
from tests.builders import make_cluster, make_snapshot, make_state
from tests.core.test_policies_elastic import decide

TOLD = "Kueue takes 2 back for team-b, and leaves 2 in queue q"


def bounded(state: JobState, gpus: int, *, is_whole: bool = False) -> JobState:
    ceiling = Ceiling(gpus, "Evicted", TOLD, is_whole=is_whole)
    return replace(state, job=ceiling.over(state.job), ceiling=ceiling)


def gpus_after(step: object) -> int:
    if isinstance(step, Start):
        return step.placement.gpus
    assert isinstance(step, Reshape | Move)
    return step.new.gpus


@pytest.mark.parametrize("name", policies.NAMES)
def test_newcomer_gets_no_more_than_its_quota(name):
    state = bounded(make_state("new", options=(1, 2, 4), requested=4), 2)
    step = decide(make_snapshot(make_cluster(n1=4), state), name)["new"]
    assert gpus_after(step) <= 2


@pytest.mark.parametrize("name", policies.NAMES)
def test_job_beyond_its_quota_shrinks(name):
    state = make_state("old", options=(1, 2, 4), holds={"n1": range(4)})
    # Even if a change loses its work: Kueue would have ended the job.
    for old in (state, replace(state, iterations_done=400.0, unsaved_from=0.0)):
        step = decide(make_snapshot(make_cluster(n1=4), bounded(old, 2)), name)["old"]
        assert isinstance(step, Reshape), name
        assert gpus_after(step) <= 2, name
        assert step.cause == Cause(CauseCode.QUEUE_QUOTA), name


@pytest.mark.parametrize("name", policies.NAMES)
def test_job_without_quota_stops_or_waits(name):
    old = bounded(make_state("old", options=(2, 4), holds={"n1": (0, 1)}), 1)
    new = bounded(make_state("new", options=(2, 4)), 0)
    other = make_state("other", options=(1,))
    steps = decide(make_snapshot(make_cluster(n1=4), old, new, other), name)
    assert isinstance(steps["old"], Stop), name
    assert isinstance(steps["new"], Wait), name
    assert steps["old"].cause == Cause(CauseCode.QUEUE_QUOTA), name
    assert steps["new"].cause == Cause(CauseCode.QUEUE_QUOTA, gpus=2), name
    assert isinstance(steps["other"], Start), name


def test_rigid_job_gets_all_of_its_quota():
    state = bounded(make_state("new", options=(1, 2, 4)), 2, is_whole=True)
    for name in policies.NAMES:
        step = decide(make_snapshot(make_cluster(n1=4), state), name)["new"]
        assert gpus_after(step) == 2, name


def test_sentences_are_those_of_the_queue():
    old = bounded(make_state("old", options=(1, 2, 4), holds={"n1": range(4)}), 2)
    new = bounded(make_state("new", options=(4,)), 2)
    snapshot = make_snapshot(make_cluster(n1=4), old, new)
    steps = decide(snapshot)
    assert sentence_for_step(snapshot, steps["old"]) == f"goes from 4 to 2 GPUs on n1: {TOLD}"
    said = f"waits: needs at least 4 GPUs; {TOLD}"
    assert sentence_for_step(snapshot, steps["new"]) == said


def test_job_within_its_quota_is_left_alone():
    state = make_state("old", options=(1, 2), holds={"n1": (0, 1)})
    for name in policies.NAMES:
        assert decide(make_snapshot(make_cluster(n1=2), bounded(state, 2)), name) == {}, name

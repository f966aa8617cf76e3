"""Coach's job handler: mini-epochs, workers and servers by marginal utility, the guard, the budget, and its order."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dljob.core import cycle
from dljob.core.model import Cause, CauseCode, JobId, JobState, Snapshot, Training
from dljob.core.planning import Plan, Reshape, Start, Wait
from dljob.sim import policies
from dljob_lab import roles
from dljob_lab.marginal_utility import Sample
from dljob_lab.policies.elastic.coach import Course, Memory
from dljob_lab.roles import Split
from tests.builders import make_cluster, make_profile, make_snapshot, make_state

SPEEDS = {3: 16.0, 4: 25.0, 5: 11.0, 6: 20.0}
"""One worker with one and two servers, then two workers: a worker more is a loss, a server more a gain."""
GROWING = {3: 1.0, 4: 1.2, 5: 1.9, 6: 2.3}
EPOCH = Training(iterations=1000, iterations_per_epoch=100, batch_size=64)


def make_roles(name: str = "job", **rest: Any) -> JobState:
    rest.setdefault("options", (3, 4, 5, 6))
    rest.setdefault("training", EPOCH)
    rest.setdefault("labels", {roles.WORKER_LABEL: "2"})
    return make_state(name, **rest)


def holds(gpus: int, begin: int = 0) -> dict[str, range]:
    return {"n1": range(begin, begin + gpus)}


def decide(
    *states: JobState,
    gpus: int = 6,
    speeds: Mapping[int, float] | None = None,
    courses: Mapping[str, Course] | None = None,
    **options: str,
) -> Plan:
    profiles = [make_profile(speeds)] if speeds else []
    memory = Memory({JobId(job): course for job, course in (courses or {}).items()})
    snapshot: Snapshot = replace(
        make_snapshot(make_cluster(n1=gpus), *states, profiles=profiles), policy_state=memory
    )
    return cycle.schedule(snapshot, policies.make("coach", options))


def changes(plan: Plan) -> dict[str, tuple[int, str]]:
    """Map each job that changes to its GPUs and the cause."""
    found: dict[str, tuple[int, str]] = {}
    for step in plan.steps:
        if isinstance(step, Start):
            found[step.job] = (step.placement.gpus, step.cause.code)
        elif isinstance(step, Reshape):
            found[step.job] = (step.new.gpus, step.cause.code)
    return found


def course_of(plan: Plan, job: str = "job") -> Course:
    assert isinstance(plan.policy_state, Memory)
    return plan.policy_state.courses[JobId(job)]


# --- workers and servers ---


def test_each_number_of_gpus_is_one_choice():
    job = make_roles().job
    assert roles.list_splits(job) == {
        Split(1, 1): 3,
        Split(1, 2): 4,
        Split(2, 1): 5,
        Split(2, 2): 6,
    }


@pytest.mark.parametrize("label", ["", "many", "0", "nan", "2.5", "3"])
def test_label_that_fits_no_option_means_workers_alone(label):
    job = make_roles(options=(3, 6), labels={roles.WORKER_LABEL: label}).job
    assert roles.list_splits(job) == {Split(3, 1): 3, Split(6, 1): 6}


def test_mini_epochs_are_the_four_of_the_thesis_in_its_order():
    splits = [Split(w, s) for s in (1, 2, 3) for w in (1, 2, 3)]
    assert roles.list_mini_epochs(splits) == ((1, 1), (1, 2), (2, 1), (2, 2))


# --- mini-epochs ---


def test_unknown_job_begins_with_its_mini_epochs():
    plan = decide(make_roles())
    assert changes(plan) == {"job": (3, CauseCode.ITS_TURN)}
    assert course_of(plan) == Course(3, 30.0, is_mini=True, tried=(3,))
    assert plan.wake_at == 30.0


def test_next_mini_epoch_begins_after_the_one_before():
    running = make_roles(holds=holds(3), speed=16.0)
    before = Course(3, 0.0, is_mini=True, tried=(3,))
    assert not changes(decide(running, courses={"job": before._replace(ends_at=1.0)}))
    plan = decide(running, courses={"job": before})
    assert changes(plan) == {"job": (4, CauseCode.EXPLORING)}
    assert course_of(plan).samples == (Sample(1, 1, 16.0),)


def test_mini_epoch_lasts_from_when_the_job_trains():
    running = make_roles(holds=holds(3), speed=0.0, adjusting=True)
    plan = decide(running, courses={"job": Course(3, 0.0, is_mini=True, tried=(3,))})
    assert not changes(plan)
    assert course_of(plan).ends_at == 30.0


def test_mini_epoch_waits_for_a_speed_but_not_for_ever():
    silent = make_roles(holds=holds(3), speed=0.0)
    course = Course(3, -1.0, is_mini=True, tried=(3,))
    plan = decide(silent, courses={"job": course})
    assert (changes(plan), plan.wake_at) == ({}, 1.0)
    given_up = decide(silent, courses={"job": course._replace(ends_at=-90.0)})
    assert changes(given_up) == {"job": (4, CauseCode.EXPLORING)}


def test_known_speeds_need_no_mini_epoch():
    assert changes(decide(make_roles(), speeds=SPEEDS)) == {"job": (4, CauseCode.ITS_TURN)}


# --- the choice after an epoch ---

DONE = Course(6, 0.0, is_mini=False, tried=(3, 4, 5, 6))


def test_own_epochs_count_more_than_those_of_the_type():
    # Its type is fastest with all, and this job was not.
    own = tuple(
        Sample(*split, SPEEDS[n]) for split, n in roles.list_splits(make_roles().job).items()
    )
    running = make_roles(holds=holds(6), speed=SPEEDS[6])
    plan = decide(running, speeds=GROWING, courses={"job": DONE._replace(samples=own[:3])})
    assert changes(plan) == {"job": (4, CauseCode.FASTER_WITH_FEWER)}
    assert course_of(plan).samples == own


def test_nothing_changes_within_an_epoch():
    running = make_roles(holds=holds(6), speed=20.0)
    plan = decide(running, speeds=SPEEDS, courses={"job": DONE._replace(ends_at=50.0)})
    assert not changes(plan)
    assert plan.wake_at == 50.0 / 20.0


def test_larger_gain_comes_first_where_not_all_fits():
    # Another worker gains 0.9 and another server 0.2 of it.
    assert changes(decide(make_roles(), gpus=5, speeds=GROWING)) == {"job": (5, "ItsTurn")}
    assert changes(decide(make_roles(), gpus=4, speeds=GROWING)) == {"job": (4, "ItsTurn")}


def test_jobs_take_turns_by_epochs_a_second():
    long = replace(EPOCH, iterations_per_epoch=1000)
    jobs = (make_roles("long", training=long), make_roles("short"))
    found = changes(decide(*jobs, gpus=8, speeds=GROWING))
    assert found == {"long": (3, "ItsTurn"), "short": (5, "ItsTurn")}


def test_workers_without_enough_data_are_not_added():
    few = Training(iterations=100, iterations_per_epoch=1, batch_size=16)
    found = changes(decide(make_roles(training=few), speeds=GROWING))
    # Sixteen samples are less than ten for each of two workers.
    assert found == {"job": (4, "ItsTurn")}
    assert changes(decide(make_roles(training=few), speeds=GROWING, samples="8"))["job"][0] == 6


def test_budget_bounds_workers_and_servers():
    # A thousand iterations cost 3,000, 3,636, 4,167 and 4,615 GPU-seconds on 3 to 6 GPUs.
    flat = {3: 1.0, 4: 1.1, 5: 1.2, 6: 1.3}
    labels = {roles.WORKER_LABEL: "2", roles.BUDGET_LABEL: "0.9"}
    assert changes(decide(make_roles(), speeds=flat)) == {"job": (6, "ItsTurn")}
    assert changes(decide(make_roles(labels=labels), speeds=flat)) == {"job": (3, "ItsTurn")}
    running = make_roles(labels=labels, holds=holds(6), speed=1.3)
    assert changes(decide(running, speeds=flat)) == {"job": (3, CauseCode.WITHIN_BUDGET)}


# --- several jobs ---


def test_job_makes_room_for_a_newcomer_after_its_epoch():
    running = make_roles("old", holds=holds(6), speed=2.3)
    waiting = make_roles("new", order=1)
    busy = decide(running, waiting, speeds=GROWING, courses={"old": DONE._replace(ends_at=9.0)})
    assert not changes(busy)
    assert changes(decide(running, waiting, speeds=GROWING, courses={"old": DONE})) == {
        "old": (3, CauseCode.MAKES_ROOM),
        "new": (3, CauseCode.ITS_TURN),
    }


def test_first_that_does_not_fit_holds_up_the_others():
    jobs = (
        make_roles("first"),
        make_roles("wide", options=(5, 6), order=1),
        make_roles("last", order=2),
    )
    plan = decide(*jobs, gpus=7, speeds=SPEEDS)
    assert changes(plan) == {"first": (4, "ItsTurn")}
    waits = {step.job: step.cause for step in plan.steps if isinstance(step, Wait)}
    assert waits == {"wide": Cause(CauseCode.NO_ROOM), "last": Cause(CauseCode.BEHIND)}

"""A plan may be taken in bites, each of which is sound by itself."""

from dljob.core.model import Cause, CauseCode, JobId, NodeName, Placement
from dljob.core.planning import Plan, Start, Step, Wait


def start(number: int) -> Step:
    return Start(
        JobId(f"job-{number}"),
        Placement.of({NodeName("node"): [number]}),
        Cause(CauseCode.ITS_TURN),
    )


def wait(number: int, code: CauseCode) -> Step:
    return Wait(JobId(f"job-{number}"), Cause(code))


STEPS = (start(0), wait(1, CauseCode.NO_ROOM), start(2), wait(3, CauseCode.TOO_LARGE))


def test_what_is_short_enough_is_taken_whole():
    plan = Plan(STEPS)
    assert plan.first(4) is plan.first(5) is plan


def test_the_first_steps_are_taken_in_their_order():
    assert Plan(STEPS).first(2).steps == STEPS[:2]


def test_what_will_never_be_is_told_whatever_else_waits_for_its_turn():
    bite = Plan(STEPS).first(1, urgent={CauseCode.TOO_LARGE})
    assert bite.steps == (STEPS[3], STEPS[0])


def test_nothing_is_left_where_only_what_is_urgent_is_over():
    plan = Plan(STEPS)
    assert plan.first(3, urgent={CauseCode.TOO_LARGE}) is plan

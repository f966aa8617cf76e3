"""A plan may be carried out in parts, each of which is sound by itself."""

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


def test_first_steps_keep_their_order():
    plan = Plan(STEPS)
    assert plan.first(4) is plan.first(5) is plan
    assert plan.first(2).steps == STEPS[:2]


def test_urgent_waits_come_first():
    plan, urgent = Plan(STEPS), {CauseCode.TOO_LARGE}
    assert plan.first(1, urgent=urgent).steps == (STEPS[3], STEPS[0])
    # The rest of the plan is the urgent step alone, so that nothing is left out.
    assert plan.first(3, urgent=urgent) is plan

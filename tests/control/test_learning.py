"""The controller learns how long pods take to start and to end."""

from dataclasses import replace
from typing import Any

from dljob.control.learning.learned_state import PodTimes
from dljob.control.situation.dialer import Contact
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry, Pod, PodKey, PodPhase
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Booking, DecisionNumber, Status
from dljob.core.model import JobId, Node, NodeName, Placement
from dljob.core.model import Phase as JobPhase
from dljob.core.profiles import CostTerm
from dljob_wire.messages import Phase, State, Stop, Warmth
from tests.builders import make_job

NODE = NodeName("node")
KEY = PodKey(JobId("job"), NODE)
HERE = Placement.of({NODE: (0, 1)})
ORDERED_AT = 1000.0


def entry() -> Entry:
    status = Status(phase=JobPhase.RUNNING, generation=DecisionNumber(1), placement=HERE)
    return Entry(make_job("job", options=(2,)), 0, status)


BOOKING = Booking(NODE, 1)


def scene(now: float, *, phase: PodPhase = PodPhase.UP, fresh: bool = True, **state: Any) -> Scene:
    there = replace(
        State("incarnation", 1, Phase.READY, released=True, warmth=Warmth(wanted=1, ready=1)),
        **state,
    )
    is_up = phase is PodPhase.UP
    contact = Contact(there if is_up or state else None, is_up, since=now, first_seen=now)
    one = entry()
    status = replace(one.status, pods=(BOOKING,), booked_at=ORDERED_AT)
    job_pod = JobPod(KEY, BOOKING, Pod(KEY, phase), contact, asked=True, fresh=fresh)
    return Scene(
        now=now,
        epoch=1,
        entries={KEY.job: replace(one, status=status)},
        job_pods={KEY.job: {NODE: job_pod}},
        nodes={NODE: Node.of(NODE, 2)},
    )


def terms(lessons: PodTimes, *scenes: Scene) -> list[tuple[CostTerm, float]]:
    return [(seen.term, seen.seconds) for each in scenes for _, seen in lessons.update(each)]


COLD: dict[str, Any] = {"warmth": Warmth(wanted=1, ready=0)}
LEAVING: dict[str, Any] = {"target": Stop(1, 4, "incarnation", leave=True), "leaving": True}


def test_pod_has_started_when_its_sidecar_is_warm():
    learnt = terms(
        PodTimes(),
        scene(ORDERED_AT, phase=PodPhase.PENDING),
        scene(ORDERED_AT + 5, **COLD),
        scene(ORDERED_AT + 7),
        scene(ORDERED_AT + 8),
    )
    assert learnt == [(CostTerm.POD_INITIALIZATION, 7.0)]


def test_termination_lasts_from_last_process_to_proven_end():
    learnt = terms(
        PodTimes(),
        scene(ORDERED_AT),
        scene(ORDERED_AT + 1, **LEAVING, phase=PodPhase.UP, released=False),
        scene(ORDERED_AT + 3, **LEAVING),
        scene(ORDERED_AT + 4, **LEAVING),
        scene(ORDERED_AT + 8, **LEAVING, phase=PodPhase.ENDED),
        scene(ORDERED_AT + 9, **LEAVING, phase=PodPhase.ENDED),
    )
    assert learnt == [(CostTerm.POD_INITIALIZATION, 0.0), (CostTerm.POD_TERMINATION, 5.0)]


def test_inherited_pods_teach_no_start_time():
    assert terms(PodTimes(), scene(ORDERED_AT + 7, fresh=False)) == []


def test_crashed_pods_teach_no_end_time():
    lessons = PodTimes()
    dead = scene(ORDERED_AT + 2, phase=PodPhase.ENDED, released=False)
    assert terms(lessons, scene(ORDERED_AT, fresh=False), dead) == []

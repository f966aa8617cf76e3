"""The extender's answers to kube-scheduler, its reports to users, and its reminders for pods."""

import asyncio
from typing import Any

import pytest

from addons.gangs.tests.casts import SPACE, make_member
from addons.gangs.tests.test_gang_reading import MINE, node, pod
from dljob.kube.names import Name
from dljob_gangs.book import Book
from dljob_gangs.decider import Decider, Since
from dljob_gangs.extender import Extender, GangMetrics
from dljob_gangs.members import GangName, Held, Rules, Standing, Verdict, Wrong
from dljob_gangs.telling import GangEvents
from dljob_gangs.waking import Patch, PodWaker, Schedule
from tests.loops import on_loop


class Desk:
    """An extender without its watches."""

    def __init__(self) -> None:
        self.now = 0.0
        self.complaint = ""
        self.heard: list[tuple[str, bool]] = []
        self.book = Book(MINE)
        self.decider = Decider(self.book, Rules(), clock=lambda: self.now)
        self.metrics = GangMetrics(self.decider)
        self.answering = Extender(
            self.decider,
            self.metrics,
            is_ready=lambda: self.complaint,
            heard=lambda uid, admitted: self.heard.append((uid, admitted)),
        )
        for version, name in enumerate("ab"):
            self.book.nodes.show(node(name, version=version))

    def filter(self, document: dict[str, Any], *nodes: str) -> dict[str, Any]:
        return self.answering.filter({"Pod": document, "NodeNames": list(nodes or ("a", "b"))})


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_last_member_passes_at_once_and_then_the_others(desk: Desk):
    first = desk.filter(pod("one", version=10))
    why = "gang g waits for pods that are missing: 1 of role worker"
    assert first["NodeNames"] == []
    assert first["FailedAndUnresolvableNodes"] == {"a": why, "b": why}
    second = desk.filter(pod("two", version=11))
    assert second["NodeNames"] == ["a"]
    assert second["FailedAndUnresolvableNodes"] == {"b": "node a is kept for the pod"}
    # Repeated questions get the same answer.
    assert desk.filter(pod("one", version=10))["NodeNames"] == ["a"]
    assert desk.filter(pod("two", version=11)) == second
    assert desk.heard == [
        ("uid-one", False),
        ("uid-two", True),
        ("uid-one", True),
        ("uid-two", True),
    ]
    assert b'dljob_gang_answers_total{answer="admitted"} 3.0' in desk.metrics.text()


def test_unready_extender_says_so(desk: Desk):
    desk.complaint = "has not read the cluster yet"
    answer = desk.filter(pod("one", version=10))
    assert answer == {"Error": "the gang scheduler is not ready: has not read the cluster yet"}
    plain = pod("plain", version=9)
    plain["metadata"]["labels"] = {}
    assert desk.filter(plain)["NodeNames"] == ["a", "b"], "other pods pass"


def test_nothing_is_decided_without_changes(desk: Desk):
    desk.filter(pod("one", version=10))
    looks = desk.decider.decisions
    desk.filter(pod("one", version=10))
    desk.decider.update()
    assert desk.decider.decisions == looks
    desk.filter(pod("two", version=11))
    assert desk.decider.decisions == looks + 1
    desk.now = 60.0
    desk.decider.update()
    assert desk.decider.decisions == looks + 2, "the reservation has expired"
    assert not desk.decider.held


GANG = GangName(SPACE, "g")
MEMBERS = {each.name: each for each in (make_member("g", 0), make_member("g", 1))}


def tell(
    events: GangEvents, verdict: Verdict, *, since: float, now: float
) -> list[tuple[str, str, bool]]:
    found = events.about_gangs({GANG: Since(verdict, since)}, MEMBERS, now=now)
    return [(each.pod.name, each.reason, each.is_warning) for each in found]


def test_wait_is_reported_once_after_a_while():
    events = GangEvents()
    waits = Verdict(Standing.WAITING, "waits")
    assert tell(events, waits, since=10.0, now=11.0) == []
    assert events.due == 12.0
    told = tell(events, waits, since=10.0, now=12.0)
    assert told == [("g-worker-0", "GangWaiting", False), ("g-worker-1", "GangWaiting", False)]
    assert tell(events, waits, since=10.0, now=50.0) == []
    reserved = Verdict(Standing.RESERVED, "on a, b")
    assert [reason for _, reason, _ in tell(events, reserved, since=60.0, now=60.0)] == [
        "GangReserved",
        "GangReserved",
    ]
    assert tell(events, Verdict(Standing.RESERVED, "on b"), since=61.0, now=61.0) == []


def test_only_problems_are_reported_at_once():
    events = GangEvents()
    assert tell(events, Verdict(Standing.RESERVED, "on a"), since=0.0, now=0.0) == []
    never = Verdict(Standing.IMPOSSIBLE, "never")
    assert tell(events, never, since=1.0, now=1.0) == [
        ("g-worker-0", "GangNeverFits", True),
        ("g-worker-1", "GangNeverFits", True),
    ]
    wrong = {Name(SPACE, "p"): Wrong("uid", Name(SPACE, "p"), "no role")}
    assert [each.message for each in events.about_pods(wrong)] == ["no role"]
    assert list(events.about_pods(wrong)) == []
    assert list(events.about_pods({})) == []
    assert [each.message for each in events.about_pods(wrong)] == ["no role"]


def test_pod_is_reminded_if_kube_scheduler_does_not_ask():
    schedule = Schedule()
    name = Name(SPACE, "p")
    held = Held("uid", GANG, "a", {}, 60.0)
    assert schedule.patches([(name, held)], {"uid"}, now=0.0) == []
    assert schedule.due() == 0.5
    assert schedule.patches([(name, held)], {"uid"}, now=0.5) == [Patch(name, "uid", "a")]
    assert schedule.patches([(name, held)], {"uid"}, now=1.0) == []
    schedule.admitted("uid", 4.0)
    assert schedule.patches([(name, held)], {"uid"}, now=6.0) == [], "it is being bound"
    assert schedule.patches([(name, held)], {"uid"}, now=9.0) == [Patch(name, "uid", "a")]
    assert schedule.patches([], {"uid"}, now=10.0) == [Patch(name, "uid", "")], (
        "its room is released"
    )
    assert schedule.patches([], {"uid"}, now=11.0) == []


class SlowServer:
    """An API server that answers when a test allows it, and writes just before."""

    def __init__(self) -> None:
        self.gates: list[tuple[str, asyncio.Event]] = []
        self.written: list[tuple[str, str]] = []

    async def apply(self, _resource, document, *, namespace, sub):
        assert (namespace, sub) == (SPACE, "status")
        name, (condition,) = document["metadata"]["name"], document["status"]["conditions"]
        gate = asyncio.Event()
        self.gates.append((name, gate))
        await gate.wait()
        self.written.append((name, condition["status"]))

    async def answer(self, number: int) -> None:
        self.gates.pop(number)[1].set()
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def patch(name: str, node: str) -> Patch:
    return Patch(Name(SPACE, name), f"uid-{name}", node)


@on_loop
async def test_last_write_about_a_pod_wins():
    there: Any = SlowServer()
    waker = PodWaker(there)
    writing = asyncio.create_task(waker.run())
    waker.write([patch("p", "a")])
    await settle()
    waker.write([patch("p", "b"), patch("p", ""), patch("q", "a")])
    await settle()
    # Pending writes are answered in reverse order.
    while there.gates:
        await there.answer(len(there.gates) - 1)
    assert [each for each in there.written if each[0] == "p"] == [("p", "True"), ("p", "False")]
    assert ("q", "True") in there.written
    writing.cancel()

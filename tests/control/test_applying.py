"""The actor's messages to SideCars, its requests to the platform, and the state it keeps."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dljob.control.acting.applying import Actor, booked_statuses
from dljob.control.acting.commands import Begin, Book, Forget, Halt, Launch, Remove, Stamp
from dljob.control.acting.task_pool import Slots
from dljob.control.situation.dialer import NO_CONTACT, Contacts
from dljob.control.situation.ports import Address, Fenced, NotTaken, PodKey
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.sent import Sent
from dljob.control.situation.status import Booking
from dljob.core.model import JobId, NodeName, Training
from dljob.core.primitives.backoff import FIRST_WAIT_S
from dljob_wire.messages import Peer, Run, Stop
from tests.control.callers import living
from tests.control.scenes import (
    EPOCH,
    NOW,
    PENDING,
    Sat,
    cast,
    make_scene,
    ready,
    released,
    run,
    running,
    stop,
)

A = JobId("a")
N0, N1 = NodeName("n0"), NodeName("n1")
A0, A1 = PodKey(A, N0), PodKey(A, N1)


class Place:
    """A platform and a SideCar client that record each call."""

    def __init__(self):
        self.calls = []
        self.refuses = None
        self.delay = 0
        self.port = 20000
        self.now = NOW

    async def launch(self, order):
        await self.answer("launch", order.entry.job.id, order.booking)

    async def remove(self, key, *, because):
        await self.answer("remove", key, because)

    async def forget_job(self, job):
        await self.answer("forget", job)

    async def answer(self, *call):
        self.calls.append(call)
        self.now += self.delay
        if self.refuses is not None:
            raise self.refuses

    def host_of(self, key):
        return f"host-{key.node}"

    def rendezvous_port(self, job, generation, processes):
        self.port += 100
        return self.port

    def declare(self, key, target):
        self.calls.append((key, target))

    def contact(self, key):
        return NO_CONTACT

    def believe(self, left):
        return left

    def follow(self, key, address):
        self.calls.append(("follow", key, address))

    def forget(self, key):
        """Both protocols have this word: the client is given pods, the platform jobs."""
        if isinstance(key, PodKey):
            self.calls.append(("unfollow", key))
            return None
        return self.forget_job(key)


@pytest.fixture
def place():
    return Place()


@pytest.fixture
def actor(place):
    return Actor(place, place, sent=Sent(), epoch=EPOCH, clock=lambda: place.now)


def slots():
    return Slots(8, lambda: False)


def is_fresh(actor, booking):
    return (A, booking) in actor._sent.fresh


def has_asked(actor, booking):
    return (A, booking) in actor._sent.asked


def do(actor, place, scene, *commands):
    """Carry out the commands; return the calls that they made."""
    place.calls.clear()
    place.now = scene.now
    scene = scene.with_statuses(booked_statuses(commands, scene))
    asyncio.run(actor.carry_out(commands, scene, quarantine=Quarantine(), slots=slots()))
    return place.calls


def both(one, other, **rest):
    return make_scene(
        cast("a", {"n0": (0, 1), "n1": (2, 3)}, generation=2, n0=one, n1=other, **rest)
    )


# --- messages ------------------------------------------------------------------------------


def test_stamp_repeats_current_target_in_new_epoch(actor, place):
    theirs = run(3, 0, epoch=1)
    scene = make_scene(cast("a", {"n0": (0,)}, n0=running(theirs)))
    assert do(actor, place, scene, Stamp(A0)) == [(A0, replace(theirs, epoch=EPOCH))]


def test_stop_ends_the_previous_generation(actor, place):
    scene = both(running(run(3, 0, peers=2)), ready(), message="it makes room")
    assert do(actor, place, scene, Halt(A0, checkpoint=True, leave=False)) == [
        (A0, Stop(EPOCH, 4, "x", checkpoint=True, leave=False, coming=1, reason="it makes room"))
    ]


def test_leaving_pod_gets_a_newer_stop(actor, place):
    scene = both(released(run(3, 0, peers=2), stop(4)), ready())
    [(_, said)] = do(actor, place, scene, Halt(A0, checkpoint=False, leave=True))
    assert (said.generation, said.leave, said.checkpoint) == (5, True, False)
    scene = both(Sat(ready(), declared=stop(8)), ready())
    [(_, said)] = do(actor, place, scene, Halt(A0, checkpoint=True, leave=True))
    assert said.generation == 9


def test_run_gives_each_container_its_part(actor, place):
    training = Training(batch_size=32)
    scene = both(ready(), ready(), batch_size=64, training=training, processes="perGpu")
    calls = do(actor, place, scene, Begin(A, (N0, N1)))
    peers = (Peer("host-n0", 2), Peer("host-n1", 2))
    whole: dict[str, Any] = {
        "peers": peers,
        "rendezvous_port": 20100,
        "batch_size": 64,
        "learning_rate_factor": 2.0,
        "world_size": 4,
        "ended": 0,
    }
    assert calls == [
        (A0, Run(EPOCH, 5, "x", ("0", "1"), rank_offset=0, **whole)),
        (A1, Run(EPOCH, 5, "x", ("2", "3"), rank_offset=2, **whole)),
    ]


def test_per_node_processes_get_one_rank_per_node(actor, place):
    scene = both(ready(), ready(), processes="perNode")
    calls = do(actor, place, scene, Begin(A, (N0, N1)))
    assert [(said.rank_offset, said.world_size) for _, said in calls] == [(0, 2), (1, 2)]


def test_late_container_gets_the_same_start(actor, place):
    scene = both(ready(), ready())
    [(_, first)] = do(actor, place, scene, Begin(A, (N0,)))
    [(_, second)] = do(actor, place, scene, Begin(A, (N1,)))
    assert second.rendezvous_port == first.rendezvous_port
    newer = scene.with_statuses(
        {A: scene.entries[A].status.decided(scene.entries[A].status.placement, now=NOW)}
    )
    [(_, third)] = do(actor, place, newer, Begin(A, (N0,)))
    assert third.rendezvous_port != first.rendezvous_port


def test_gpus_are_named_by_uuid_or_index(actor, place):
    scene = make_scene(cast("a", {"n0": (1,)}, n0=ready(), ids="uuid"))
    node = scene.nodes[N0]
    gpus = tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in node.gpus)
    scene = replace(scene, nodes={N0: replace(node, gpus=gpus)})
    [(_, said)] = do(actor, place, scene, Begin(A, (N0,)))
    assert said.gpus == ("GPU-1",)
    actor._sent.keep({})
    unnamed = replace(scene, nodes={N0: node})
    [(_, said)] = do(actor, place, unnamed, Begin(A, (N0,)))
    assert said.gpus == ("1",)


def test_failure_of_one_job_leaves_others_alone(actor, place):
    scene = make_scene(cast("a", {"n9": (0,)}, n9=ready()), cast("b", {"n0": (0,)}, n0=ready()))
    quarantine = Quarantine()
    commands = [Begin(A, (NodeName("n9"),)), Begin(JobId("b"), (N0,))]
    asyncio.run(actor.carry_out(commands, scene, quarantine=quarantine, slots=slots()))
    assert [key for key, _ in place.calls] == [PodKey(JobId("b"), N0)]
    assert quarantine.jobs == {A}


# --- pods -----------------------------------------------------------------------------------


def test_pods_are_booked_before_launch(actor, place):
    scene = make_scene(cast("a", {"n0": (0,), "n1": (0,)}))
    commands = [Book(A, (N0, N1))]
    status = booked_statuses(commands, scene)[A]
    assert status.pods == (Booking(N0, 1), Booking(N1, 2))
    calls = do(actor, place, scene, *commands)
    assert calls == [("launch", A, pod) for pod in status.pods]
    assert all(is_fresh(actor, pod) and has_asked(actor, pod) for pod in status.pods)


def test_inherited_pod_is_launched_but_not_fresh(actor, place):
    scene = make_scene(cast("a", {"n0": (0,)}, n0=Sat(asked=False)))
    booking = scene.entries[A].status.pods[0]
    assert do(actor, place, scene, Launch(A0)) == [("launch", A, booking)]
    assert has_asked(actor, booking)
    assert not is_fresh(actor, booking)


def test_pod_is_not_fresh_after_a_run(actor, place):
    scene = make_scene(cast("a", {"n0": (0,)}))
    do(actor, place, scene, Book(A, (N0,)))
    booking = Booking(N0, 1)
    up = make_scene(cast("a", {"n0": (0,)}, n0=ready()))
    do(actor, place, up, Begin(A, (N0,)))
    assert not is_fresh(actor, booking)


@pytest.mark.parametrize(
    "command", [Halt(A0, checkpoint=True, leave=True), Remove(A0, "it is no longer needed")]
)
def test_dismissed_pod_is_not_fresh(actor, place, command):
    do(actor, place, make_scene(cast("a", {"n0": (0,)})), Book(A, (N0,)))
    do(actor, place, make_scene(cast("a", {"n0": (0,)}, n0=ready())), command)
    assert not is_fresh(actor, Booking(N0, 1))


def test_refused_launch_is_retried_after_a_pause(actor, place):
    place.refuses = OSError("the quota is used up")
    do(actor, place, make_scene(cast("a", {"n0": (0,)})), Book(A, (N0,)))
    booking = Booking(N0, 1)
    assert not has_asked(actor, booking)
    assert actor._sent.refused.why((A, booking)) == "the quota is used up"
    place.refuses = None
    later = make_scene(cast("a", {"n0": (0,)}, n0=PENDING))
    assert do(actor, place, later, Launch(A0)) == []
    do(actor, place, replace(later, now=NOW + FIRST_WAIT_S), Launch(A0))
    assert (has_asked(actor, booking), actor._sent.refused.why((A, booking))) == (True, "")


@pytest.mark.parametrize("command", [Launch(A0), Remove(A0, "it is silent"), Forget(A)])
def test_pause_begins_at_a_late_refusal(actor, place, command):
    """A request to an API server that hangs takes longer than the first pauses."""
    scene = make_scene(cast("a", {"n0": (0,)}, n0=PENDING))
    place.refuses = OSError("no answer")
    place.delay = 30

    do(actor, place, scene, command)

    assert do(actor, place, replace(scene, now=NOW + 30), command) == []
    assert len(do(actor, place, replace(scene, now=NOW + 30 + FIRST_WAIT_S), command)) == 1


@living
async def test_fenced_request_stops_further_records(actor, place):
    scene = make_scene(cast("a", {"n0": (0,)}))
    commands = [Book(A, (N0,))]
    scene = scene.with_statuses(booked_statuses(commands, scene))
    place.refuses = Fenced("another one leads")
    actor.check()
    await actor.carry_out(commands, scene, quarantine=Quarantine(), slots=slots(), trailing=1)
    with pytest.raises(Fenced, match="another one leads"):
        await actor.finish()
    with pytest.raises(Fenced, match="another one leads"):
        actor.check()


def test_use_of_a_pod_is_recorded_before_its_run(actor):
    """Without this record, every later leader knows that nothing can have begun in the pod."""
    scene = both(ready(), ready())
    assert booked_statuses([Halt(A0, checkpoint=True, leave=True)], scene) == {}
    status = booked_statuses([Begin(A, (N1,))], scene)[A]
    assert {pod.node for pod in status.pods if pod.serial in status.used} == {N0, N1}
    other = both(Sat(ready()), Sat(ready(), serial=2))
    assert booked_statuses([Begin(A, (N1,))], other)[A].used == {2}
    assert booked_statuses([Begin(A, (N1,))], both(ready(), ready(), used=frozenset({1})))[A] == (
        both(ready(), ready(), used=frozenset({1})).entries[A].status
    )


def test_refusal_with_a_remedy_logs_no_traceback(actor, place, caplog):
    scene = make_scene(cast("a", {"n0": (0,)}, n0=Sat(asked=False)))
    place.refuses = NotTaken("the namespace is about to be deleted; submit the job in another one")
    do(actor, place, scene, Launch(A0))
    [record] = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", False)
    assert "about to be deleted" in record.getMessage()


def test_failed_forget_stops_no_other_job(actor, place, caplog):
    place.refuses = OSError("the rules of the house forbid it")
    scene = make_scene(cast("a"), cast("b"))
    for seconds in (0, FIRST_WAIT_S):
        later = replace(scene, now=NOW + seconds)
        assert len(do(actor, place, later, Forget(A), Forget(JobId("b")))) == 2
    assert len(caplog.records) == 2, "each is logged once"
    place.refuses = Fenced("another leads")
    with pytest.raises(Fenced):
        do(actor, place, replace(scene, now=NOW + 60), Forget(A))


def test_pod_removal_is_repeated_after_a_minute(actor, place):
    scene = make_scene(cast("a", {"n0": (0,)}, n0=ready()))
    remove = Remove(A0, "it is silent", is_needed=True)
    assert do(actor, place, scene, remove) == [("remove", A0, "it is silent")]
    assert do(actor, place, replace(scene, now=NOW + 59), remove) == []
    assert do(actor, place, replace(scene, now=NOW + 61), remove) != []


@pytest.mark.parametrize("command", [Launch(A0), Remove(A0, "it is silent"), Forget(A)])
def test_failed_requests_back_off(actor, place, command):
    scene = make_scene(cast("a", {"n0": (0,)}, n0=PENDING))
    place.refuses = OSError("away")
    tried = [
        second
        for second in range(100)
        if do(actor, place, replace(scene, now=NOW + second), command)
    ]
    assert tried == [0, 1, 3, 7, 15, 31, 63]
    place.refuses = None
    assert do(actor, place, replace(scene, now=NOW + 200), command)


# --- state ---------------------------------------------------------------------------------


def test_contacts_follow_addresses(place):
    contacts = Contacts(place)
    here, there = Address(socket="/a"), Address(socket="/b")
    contacts.follow({}, {A0: here}, now=NOW)
    contacts.follow({}, {A0: here, A1: here}, now=NOW)
    contacts.follow({}, {A1: there}, now=NOW)
    assert place.calls == [
        ("follow", A0, here),
        ("follow", A1, here),
        ("unfollow", A0),
        ("follow", A1, there),
    ]


def test_contacts_know_how_long_a_pod_has_no_address(place):
    contacts = Contacts(place)
    entries = make_scene(cast("a", {"n0": (0,)}, n0=PENDING)).entries
    contacts.follow(entries, {}, now=NOW)
    first = contacts.find(A0)
    contacts.follow(entries, {}, now=NOW + 5)
    assert contacts.find(A0) is first
    assert (contacts.find(A0).reachable, contacts.find(A0).since) == (False, NOW)
    contacts.follow(entries, {A0: Address(socket="/a")}, now=NOW + 6)
    assert contacts.find(A0).since == 0.0
    contacts.follow(entries, {}, now=NOW + 7)
    assert contacts.find(A0).since == NOW + 7


def test_gone_pods_leave_no_state(actor, place):
    place.refuses = OSError("away")
    do(actor, place, make_scene(cast("a", {"n0": (0,)})), Book(A, (N0,)))
    place.refuses = None
    scene = make_scene(cast("a", {"n0": (0,)}, n0=ready()))
    do(actor, place, scene, Begin(A, (N0,)), Remove(A0, "it is silent"))
    actor._sent.keep({})
    do(actor, place, make_scene())
    sent = actor._sent
    remembered = (sent.asked, sent.fresh, sent.begun, sent.commanded, sent.refused)
    assert not any((*remembered, actor._removed))

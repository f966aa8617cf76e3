"""The messages to SideCars, the requests to the platform, and what a controller keeps of both."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.situation.dialer import Contacts
from dljob.control.situation.ports import Address, Fenced, NotTaken, PodKey, PodPhase
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.status import Booking
from dljob.core.model import JobId, NodeName, Phase, Training
from dljob.core.primitives.backoff import FIRST_WAIT_S
from dljob_wire.messages import Peer, Run, Stop
from tests.control.callers import living
from tests.control.deeds import Place, act, do, make_actor
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


@pytest.fixture
def place():
    return Place()


@pytest.fixture
def actor(place):
    return make_actor(place)


def both(one, other, **rest):
    return make_scene(
        cast("a", {"n0": (0, 1), "n1": (2, 3)}, generation=2, n0=one, n1=other, **rest)
    )


# --- messages ------------------------------------------------------------------------------


def test_stamp_repeats_current_target_in_new_epoch(actor, place):
    theirs = run(3, 0, epoch=1)
    scene = make_scene(cast("a", {"n0": (0,)}, n0=running(theirs)))
    assert do(actor, place, scene) == [(A0, replace(theirs, epoch=EPOCH))]


def test_stop_ends_the_previous_generation(actor, place):
    scene = both(running(run(3, 0)), ready(), message="it makes room")
    assert do(actor, place, scene) == [
        (A0, Stop(EPOCH, 4, "x", checkpoint=True, leave=False, coming=1, reason="it makes room"))
    ]


def test_leaving_pod_gets_a_newer_stop(actor, place):
    stopped = released(run(3, 0), stop(4))
    [(_, said)] = do(actor, place, make_scene(cast("a", generation=2, cancelled=True, n0=stopped)))
    assert (said.generation, said.leave, said.checkpoint) == (5, True, False)
    idle = Sat(ready(), declared=stop(8))
    [(_, said)] = do(actor, place, make_scene(cast("a", generation=2, n0=idle)))
    assert said.generation == 9


def test_run_gives_each_container_its_part(actor, place):
    training = Training(batch_size=32)
    scene = both(ready(), ready(), batch_size=64, training=training, processes="perGpu")
    peers = (Peer("host-n0", 2), Peer("host-n1", 2))
    whole: dict[str, Any] = {
        "peers": peers,
        "rendezvous_port": 20100,
        "batch_size": 64,
        "learning_rate_factor": 2.0,
        "world_size": 4,
        "ended": 0,
    }
    assert do(actor, place, scene) == [
        (A0, Run(EPOCH, 5, "x", ("0", "1"), rank_offset=0, **whole)),
        (A1, Run(EPOCH, 5, "x", ("2", "3"), rank_offset=2, **whole)),
    ]
    # By node, each has one rank.
    calls = do(make_actor(place), place, both(ready(), ready(), processes="perNode"))
    assert [(said.rank_offset, said.world_size) for _, said in calls] == [(0, 2), (1, 2)]


def test_late_container_gets_the_same_start(actor, place):
    scene = both(ready(), ready())
    [(_, first), _] = do(actor, place, scene)
    later = both(running(first), ready())
    later = replace(later, begun=actor._sent.begun)
    [(key, second)] = do(actor, place, later)
    assert (key, second.rendezvous_port) == (A1, first.rendezvous_port)
    status = scene.entries[A].status
    newer = scene.with_statuses({A: status.decided(status.placement, now=NOW)})
    [(_, third), _] = do(actor, place, newer)
    assert third.rendezvous_port != first.rendezvous_port


def test_gpus_are_named_by_uuid_or_index(actor, place):
    scene = make_scene(cast("a", {"n0": (1,)}, phase=Phase.INITIALIZED, n0=ready(), ids="uuid"))
    node = scene.nodes[N0]
    gpus = tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in node.gpus)
    [(_, said)] = do(actor, place, replace(scene, nodes={N0: replace(node, gpus=gpus)}))
    assert said.gpus == ("GPU-1",)
    [(_, said)] = do(make_actor(place), place, replace(scene, nodes={N0: node}))
    assert said.gpus == ("1",)


def test_failure_of_one_job_leaves_others_alone(actor, place):
    scene = make_scene(cast("a", {"n0": (0,)}, n0=ready()), cast("b", {"n0": (1,)}, n0=ready()))
    quarantine = Quarantine()
    place.unknown = {A0}
    calls = do(actor, place, scene, quarantine=quarantine)
    assert [key for key, _ in calls] == [PodKey(JobId("b"), N0)]
    assert quarantine.jobs == {A}


# --- pods -----------------------------------------------------------------------------------

UNASKED = Sat(phase=PodPhase.PENDING, asked=False)
SILENT = Sat(running(run(3, 0)), reachable=False, since=NOW - 61)

WANTED = make_scene(cast("a", {"n0": (0,)}))
LAUNCH = make_scene(cast("a", {"n0": (0,)}, n0=UNASKED))
REMOVE = make_scene(cast("a", {"n0": (0,)}, n0=SILENT))
FORGET = make_scene(cast("a", cancelled=True))


def test_pods_are_booked_before_launch(actor, place):
    calls = do(actor, place, make_scene(cast("a", {"n0": (0,), "n1": (0,)})))
    pods = place.records[A].pods
    assert pods == (Booking(N0, 1), Booking(N1, 2))
    assert calls == [("launch", A0), ("launch", A1)]
    assert all((A, pod) in actor._sent.fresh and (A, pod) in actor._sent.asked for pod in pods)


def test_inherited_pod_is_launched_but_not_fresh(actor, place):
    booking = LAUNCH.entries[A].status.pods[0]
    assert do(actor, place, LAUNCH) == [("launch", A0)]
    assert (A, booking) in actor._sent.asked
    assert (A, booking) not in actor._sent.fresh


@pytest.mark.parametrize(
    "then",
    [
        cast("a", {"n0": (0,)}, n0=ready()),
        cast("a", n0=ready()),
        cast("a", n0=Sat(phase=PodPhase.PENDING)),
    ],
    ids=["runs", "leaves", "is removed"],
)
def test_pod_is_not_fresh_after_an_order(actor, place, then):
    do(actor, place, WANTED)
    assert (A, Booking(N0, 1)) in actor._sent.fresh
    do(actor, place, make_scene(then))
    assert (A, Booking(N0, 1)) not in actor._sent.fresh


def test_needed_pod_stays_fresh_when_it_is_removed(actor, place):
    """Its end then shows that the job cannot be started on its node."""
    do(actor, place, WANTED)
    do(actor, place, make_scene(cast("a", {"n0": (0,)}, n0=Sat(since=NOW - 61))))
    assert place.calls[0][0].startswith("remove")
    assert (A, Booking(N0, 1)) in actor._sent.fresh


def test_refused_launch_is_retried_after_a_pause(actor, place):
    place.refuses = OSError("the quota is used up")
    do(actor, place, WANTED)
    booking = Booking(N0, 1)
    assert (A, booking) not in actor._sent.asked
    assert actor._sent.refused.why((A, booking)) == "the quota is used up"
    place.refuses = None
    assert do(actor, place, LAUNCH) == []
    do(actor, place, replace(LAUNCH, now=NOW + FIRST_WAIT_S))
    assert ((A, booking) in actor._sent.asked, actor._sent.refused.why((A, booking))) == (True, "")


REQUESTS = pytest.mark.parametrize(
    "scene", [LAUNCH, REMOVE, FORGET], ids=["launch", "remove", "forget"]
)


@REQUESTS
def test_pause_begins_at_a_late_refusal(actor, place, scene):
    """A request to an API server that hangs takes longer than the first pauses."""
    place.refuses = OSError("no answer")
    place.delay = 30

    do(actor, place, scene)

    assert do(actor, place, replace(scene, now=NOW + 30)) == []
    assert len(do(actor, place, replace(scene, now=NOW + 30 + FIRST_WAIT_S))) == 1


@living
async def test_fenced_request_stops_further_records(actor, place):
    place.refuses = Fenced("another one leads")
    actor.check()
    await act(actor, place, WANTED, trailing=1)
    with pytest.raises(Fenced, match="another one leads"):
        await actor.finish()
    with pytest.raises(Fenced, match="another one leads"):
        actor.check()


def test_use_of_a_pod_is_recorded_before_its_run(actor, place):
    """Without this record, every later leader knows that nothing can have begun in the pod."""
    do(actor, place, make_scene(cast("a", generation=2, n0=ready())))
    assert place.records == {}
    one, other = ready(), Sat(ready(), serial=2)
    do(actor, place, both(one, other))
    assert place.records[A].used == {1, 2}
    do(actor, place, both(running(run(5, 0, peers=2)), other))
    assert place.records[A].used == {2}
    scene = both(one, other, used=frozenset({1, 2}))
    do(actor, place, scene)
    assert place.records.get(A, scene.entries[A].status) is scene.entries[A].status


def test_refusal_with_a_remedy_logs_no_traceback(actor, place, caplog):
    place.refuses = NotTaken("the namespace is about to be deleted; submit the job in another one")
    do(actor, place, LAUNCH)
    [record] = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", False)
    assert "about to be deleted" in record.getMessage()


def test_failed_forget_stops_no_other_job(actor, place, caplog):
    place.refuses = OSError("the rules of the house forbid it")
    scene = make_scene(cast("a", cancelled=True), cast("b", cancelled=True))
    for seconds in (0, FIRST_WAIT_S):
        assert len(do(actor, place, replace(scene, now=NOW + seconds))) == 2
    assert len(caplog.records) == 2, "each is logged once"
    place.refuses = Fenced("another leads")
    with pytest.raises(Fenced):
        do(actor, place, replace(scene, now=NOW + 60))


def test_pod_removal_is_repeated_after_a_minute(actor, place):
    because = "its SideCar has not answered for 61 s"
    assert do(actor, place, REMOVE) == [(f"remove: {because}", A0)]
    assert do(actor, place, replace(REMOVE, now=NOW + 59)) == []
    assert do(actor, place, replace(REMOVE, now=NOW + 61)) != []


@REQUESTS
def test_failed_requests_back_off(actor, place, scene):
    place.refuses = OSError("away")
    tried = [second for second in range(100) if do(actor, place, replace(scene, now=NOW + second))]
    assert tried == [0, 1, 3, 7, 15, 31, 63]
    place.refuses = None
    assert do(actor, place, replace(scene, now=NOW + 200))


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
    do(actor, place, WANTED)
    place.refuses = None
    do(actor, place, make_scene(cast("a", {"n0": (0,)}, n0=ready())))
    do(actor, place, REMOVE)
    sent = actor._sent
    assert all((sent.begun, sent.commanded, sent.removed))
    sent.keep({})
    do(actor, place, make_scene())
    assert not any((sent.asked, sent.fresh, sent.begun, sent.commanded, sent.refused, sent.removed))

"""
What a controller does about a scene, at a platform and to SideCars that record each call.

A test asserts on calls and records, so it holds whatever stands between a decision and a call.
"""

import asyncio

from dljob.control.acting.applying import Actor
from dljob.control.acting.desired_pods import changed_records, desired
from dljob.control.acting.task_pool import Slots
from dljob.control.situation.dialer import NO_CONTACT
from dljob.control.situation.ports import PodKey
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.sent import Sent
from dljob_wire.messages import Run
from tests.control.scenes import EPOCH, NOW


class Place:
    """A platform and a SideCar client that record each call."""

    def __init__(self):
        self.calls = []
        self.records = {}
        self.refuses = None
        self.delay = 0
        self.port = 20000
        self.now = NOW
        self.unknown = set()  # Pods without an address.

    async def launch(self, order):
        await self.answer("launch", PodKey(order.entry.job.id, order.booking.node))

    async def remove(self, key, *, because):
        await self.answer(f"remove: {because}", key)

    async def answer(self, *call):
        self.calls.append(call)
        self.now += self.delay
        if self.refuses is not None:
            raise self.refuses

    def host_of(self, key):
        if key in self.unknown:
            raise LookupError(f"the pod of {key} has no address")
        return f"host-{key.node}"

    def rendezvous_port(self, job, generation, processes):
        self.port += 100
        return self.port

    def declare(self, key, target):
        self.calls.append((key, target))

    def contact(self, key):
        return NO_CONTACT

    def follow(self, key, address):
        self.calls.append(("follow", key, address))

    def forget(self, key):
        """Both protocols have this word: the client is given pods, the platform jobs."""
        return (
            self.calls.append(("unfollow", key))
            if isinstance(key, PodKey)
            else self.answer("forget", key)
        )


def make_actor(place):
    return Actor(place, place, sent=Sent(), epoch=EPOCH, clock=lambda: place.now)


async def act(actor, place, scene, *, quarantine=None, trailing=0):
    """Do what is due in this scene, and keep the records that come first."""
    quarantine = quarantine or Quarantine()
    place.calls.clear()
    place.now = scene.now
    wanted = desired(scene, place, quarantine)
    place.records = changed_records(wanted, scene)
    scene, slots = scene.with_statuses(place.records), Slots(8, lambda: False)
    await actor.carry_out(wanted, scene, quarantine=quarantine, slots=slots, trailing=trailing)


def do(actor, place, scene, **rest):
    """Do what is due in this scene; return the calls."""
    asyncio.run(act(actor, place, scene, **rest))
    return place.calls


def deeds(scene):
    """Return what a new controller does about each pod and job, in words; it launches each pod that it books."""
    place, found = Place(), {}
    calls = do(make_actor(place), place, scene)
    for call in calls:
        key, word = call if isinstance(call[0], PodKey) else call[::-1]
        assert key not in found
        found[key] = (
            word if isinstance(word, str) else _word(scene.job_pods[key.job][key.node], word)
        )
    for job, status in place.records.items():
        there, then = set(scene.entries[job].status.pods), set(status.pods)
        found |= {PodKey(job, pod.node): "unbook" for pod in there - then}
        found |= {PodKey(job, pod.node): "book" for pod in then - there}
    return found


def _word(job_pod, target):
    if target.term == job_pod.state.term and isinstance(target, Run):
        return f"try {target.trial}"
    if target.generation == job_pod.state.generation and not job_pod.is_stamped(EPOCH):
        return "stamp"
    if isinstance(target, Run):
        return "run"
    return ("save and stop" if target.checkpoint else "stop") + (", leave" if target.leave else "")

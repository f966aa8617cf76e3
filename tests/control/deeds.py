"""
What a controller does about a scene, at a platform and to SideCars that record each call.

A test asserts on the calls and on the records, so it holds whatever stands between a decision and a call.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from dljob.control.acting.applying import Actor, booked_statuses
from dljob.control.acting.coordinating import next_commands
from dljob.control.acting.task_pool import Slots
from dljob.control.situation.dialer import NO_CONTACT
from dljob.control.situation.ports import PodKey
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import Sent
from dljob.core.model import JobId
from dljob_wire.messages import Run, Target
from tests.control.scenes import EPOCH, NOW


class Place:
    """A platform and a SideCar client that record each call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.records: dict[JobId, Any] = {}
        self.refuses: Exception | None = None
        self.delay = 0
        self.unknown: set[PodKey] = set()
        """Pods without an address."""
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


def make_actor(place: Place) -> Actor:
    both: Any = place
    return Actor(both, both, sent=Sent(), epoch=EPOCH, clock=lambda: place.now)


async def act(
    actor: Actor, place: Place, scene: Scene, *, quarantine: Quarantine | None = None, **rest: Any
) -> None:
    """Do what is due in this scene, and note the records that come first."""
    quarantine = quarantine if quarantine is not None else Quarantine()
    place.calls.clear()
    place.now = scene.now
    commands = next_commands(scene, quarantine)
    place.records = booked_statuses(commands, scene)
    scene = scene.with_statuses(place.records)
    slots = Slots(8, lambda: False)
    await actor.carry_out(commands, scene, quarantine=quarantine, slots=slots, **rest)


def do(actor: Actor, place: Place, scene: Scene, **rest: Any) -> list[Any]:
    """Do what is due in this scene; return the calls."""
    asyncio.run(act(actor, place, scene, **rest))
    return place.calls


def deeds(scene: Scene) -> dict[PodKey | JobId, str]:
    """Return what a new controller does about each pod and job, in words."""
    place = Place()
    calls = do(make_actor(place), place, scene)
    found: dict[PodKey | JobId, list[str]] = {}
    for job, status in place.records.items():
        there, then = set(scene.entries[job].status.pods), set(status.pods)
        for word, pods in ("unbook", there - then), ("book", then - there):
            for pod in pods:
                found.setdefault(PodKey(job, pod.node), []).append(word)
    for key, word in _iter_words(scene, calls):
        found.setdefault(key, []).append(word)
    for words in found.values():
        if words == ["book", "launch"]:
            words.pop()
    return {key: ", ".join(words) for key, words in found.items()}


def _iter_words(scene: Scene, calls: Iterable[Any]) -> Iterable[tuple[PodKey | JobId, str]]:
    for call in calls:
        match call:
            case "forget", job:
                yield job, "forget"
            case "launch", job, booking:
                yield PodKey(job, booking.node), "launch"
            case "remove", key, because:
                yield key, f"remove: {because}"
            case key, target:
                yield key, _word(scene, key, target)


def _word(scene: Scene, key: PodKey, target: Target) -> str:
    state = scene.job_pods[key.job][key.node].state
    assert state is not None
    if target.generation == state.generation:
        if isinstance(target, Run) and target.epoch == state.epoch:
            return f"try {target.trial}"
        if target.epoch > state.epoch:
            return "stamp"
    if isinstance(target, Run):
        return "run"
    return f"{'save and stop' if target.checkpoint else 'stop'}{', leave' if target.leave else ''}"

"""
Stories of a played world below a played Kueue, which takes quota back as it likes while all else goes wrong as well.

A witness that sees the processes holds that they never use more GPUs than Kueue counts for their job.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.core.contract import Policy
from dljob.core.model import Ceiling, Checkpoint, JobId, Mechanism, Training
from dljob.operator.kueue.layers import (
    Layer,
    Request,
    Wanted,
    find_ceiling,
    find_due,
    split,
)
from dljob.operator.kueue.quotas import iter_demands, read_demand
from dljob.operator.kueue.workloads import priority_of
from dljob.sim import policies
from tests.builders import make_job
from tests.control.played import World
from tests.control.stories import Plot, Story

QUEUE = "q"
ASKED = Request(QUEUE)
PENDING = Request(QUEUE, is_judged=True)
ADMITTED = Request(QUEUE, is_judged=True, is_reserved=True, is_admitted=True, flavor="f")
EVICTED = replace(ADMITTED, is_evicted=True, told="back for others")
Key = tuple[JobId, Layer]


class PlayedKueue:
    """A queue with quota of which others take a drawn part."""

    def __init__(self, world: World, quota: int) -> None:
        self._world = world
        self._quota = quota
        self.taken = 0
        """The quota that others have."""
        self.evictions = 0
        self.cleared = 0
        self.requests: dict[Key, Request] = {}
        self._priorities: dict[Key, int] = {}
        world.find_ceilings = self.find_ceilings

    def requests_of(self, job: JobId) -> dict[Layer, Request]:
        return {layer: each for (owner, layer), each in self.requests.items() if owner == job}

    def find_ceilings(self, entries: Mapping[JobId, Entry]) -> dict[JobId, Ceiling]:
        found = {
            job: find_ceiling(read_demand(entry, queue=QUEUE), self.requests_of(job))
            for job, entry in entries.items()
        }
        return {job: ceiling for job, ceiling in found.items() if ceiling is not None}

    def write(self, job: JobId, layer: Layer, wanted: Wanted, *, priority: int) -> None:
        key = job, layer
        self._world.note(f"kueue: {job} {layer} {wanted}")
        if wanted is Wanted.GONE:
            self.cleared += self.requests[key].is_evicted
            del self.requests[key]
        elif wanted is Wanted.CLEARED:
            self.cleared += 1
            self.requests[key] = PENDING
        elif wanted is Wanted.READY:
            self.requests[key] = replace(self.requests[key], is_ready=True)
        elif wanted is Wanted.ASKED:
            self.requests.setdefault(key, ASKED)
            self._priorities[key] = priority

    def forget(self, job: JobId) -> None:
        """The garbage collector deletes the Workloads of a job that is gone."""
        for layer, request in self.requests_of(job).items():
            self.cleared += request.is_evicted
            del self.requests[job, layer]

    def look(self) -> None:
        """Take back what is missing, the lowest priority first, and admit what fits."""
        self._evict(self._reserved() - self._leaving() + self.taken - self._quota)
        waiting = [key for key, each in self.requests.items() if not each.is_reserved]
        for key in sorted(waiting, key=lambda key: -self._priorities[key]):
            missing = self._reserved() + _size(key) + self.taken - self._quota
            if missing <= 0:
                self.requests[key] = ADMITTED
            else:
                self.requests[key] = PENDING
                self._evict(missing - self._leaving(), below=self._priorities[key])

    def _evict(self, missing: int, *, below: int | None = None) -> None:
        there = [
            key
            for key, each in self.requests.items()
            if each.is_admitted
            and not each.is_evicted
            and (below is None or self._priorities[key] < below)
        ]
        if below is not None and sum(map(_size, there)) < missing:
            return
        for key in sorted(there, key=lambda key: self._priorities[key]):
            if missing > 0:
                self.requests[key] = EVICTED
                self.evictions += 1
                missing -= _size(key)

    def _reserved(self) -> int:
        return sum(_size(key) for key, each in self.requests.items() if each.is_reserved)

    def _leaving(self) -> int:
        return sum(_size(key) for key, each in self.requests.items() if each.is_evicted)

    def check(self) -> None:
        used: dict[JobId, int] = {}
        for processes in self._world.witness.living:
            used[processes.job] = used.get(processes.job, 0) + len(processes.gpus)
        for job, gpus in used.items():
            requests = self.requests_of(job)
            quota = sum(high - low for (low, high), each in requests.items() if each.is_reserved)
            assert gpus <= quota or job not in self._world.entries, (
                f"{job} uses {gpus} GPUs, and has quota for {quota}"
            )


def _size(key: Key) -> int:
    return key[1].high - key[1].low


class QueuedStory(Story):
    """A story in which all jobs are in a queue."""

    def __init__(self, plot: Plot, seed: object, reclaims: int) -> None:
        super().__init__(plot, seed)
        gpus = sum(len(node.gpus) for node in self.world.nodes.values())
        self._reclaims = reclaims
        self._gpus = gpus
        self.kueue = PlayedKueue(self.world, gpus)

    def tell(self) -> None:
        for _ in range(self._reclaims):
            self.world.later(0.0, self.plot.seconds, self._reclaim)
        self._look()
        super().tell()
        self.kueue.taken = 0

    def _submit(self) -> None:
        chance = self.world.chance
        self._names += 1
        options = chance.choice(((1, 2), (1, 2, 4), (2, 3), (2,), (1,)))
        can_change = chance.random() < 0.8
        job = make_job(
            f"job-{self._names}",
            options=options,
            # Without a checkpoint a job waits for all that it asks for.
            requested=options[-1] if can_change else options[0],
            priority=chance.choice((0, 0, 1)),
            checkpoint=Checkpoint(shared=True, trusted=can_change),
            training=Training(iterations=chance.choice((60, 150, 300)), batch_size=64),
        )
        self.world.submit(job)
        self._wake()

    def _reclaim(self) -> None:
        if not self.is_calm:
            self.kueue.taken = self.world.chance.randint(0, self._gpus)

    def _look(self) -> None:
        """Play the operator's writes, and Kueue."""
        kueue, scene = self.kueue, self._leading_scene()
        kueue.check()
        if scene is not None:
            queues = {
                job: read_demand(entry, queue=QUEUE)
                for job, entry in scene.entries.items()
                if job in self.world.entries
            }
            for job, demand in iter_demands(scene, queues):
                requests = kueue.requests_of(job)
                layers = split(demand, requests)
                for layer, wanted in find_due(demand, requests).items():
                    place = layers.index(layer) if layer in layers else 0
                    priority = priority_of(scene.entries[job].job.priority, layer, place)
                    kueue.write(job, layer, wanted, priority=priority)
        for job, _ in list(kueue.requests):
            if job not in self.world.entries:
                kueue.forget(job)
        before = dict(kueue.requests)
        kueue.look()
        kueue.check()
        if kueue.requests != before and scene is not None:
            self._wake()
        self.world.after(1.0, self._look)

    def _leading_scene(self) -> Scene | None:
        """Return what the leader sees, unless it was killed or is held back."""
        reigns = self.government.reigns
        if not reigns or reigns[-1].leash.is_dead or reigns[-1].leash.held is not None:
            return None
        return reigns[-1].controller.scene


def tell(policy: Policy, mechanism: Mechanism, seed: int, *, reclaims: int = 12) -> PlayedKueue:
    story = QueuedStory(
        Plot(policy, mechanism), f"queued/{policy.name}/{mechanism}/{seed}", reclaims
    )
    try:
        story.tell()
        assert story.end() == []
        entries = story.world.entries
        left = {job for job, _ in story.kueue.requests}
        # A job that is too large for this cluster waits for ever.
        assert all(not entries[job].status.is_final for job in left), "no layer stays behind"
        return story.kueue
    finally:
        story.close()


each_mechanism = pytest.mark.parametrize("mechanism", Mechanism)


@each_mechanism
@pytest.mark.parametrize("seed", range(2))
def test_processes_never_use_more_than_their_quota(mechanism: Mechanism, seed: int):
    kueue = tell(policies.make("foresight"), mechanism, seed)
    assert kueue.evictions == kueue.cleared


NAMES = ("foresight", "adaptive", "max-min", "fifo")
EVICTIONS = 500 // (len(NAMES) * len(Mechanism)) + 1


@pytest.mark.slow
@each_mechanism
@pytest.mark.parametrize("name", NAMES)
def test_each_of_500_evictions_is_cleared(name: str, mechanism: Mechanism):
    evictions, seed = 0, 100
    while evictions < EVICTIONS:
        kueue = tell(policies.make(name), mechanism, seed)
        assert kueue.evictions == kueue.cleared
        evictions += kueue.evictions
        seed += 1

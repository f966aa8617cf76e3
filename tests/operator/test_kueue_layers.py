"""The layers of a job's quota: which Workloads it has, its ceiling, and that quota covers what it uses in each drawn world."""

import itertools
import random
from dataclasses import dataclass, field, replace

import pytest

from dljob.core.model import Ceiling
from dljob.operator.kueue.layers import (
    MOST_LAYERS,
    Demand,
    Layer,
    Request,
    Wanted,
    count_admitted,
    find_ceiling,
    find_due,
    split,
)

LOW, MIDDLE, HIGH = Layer(0, 2), Layer(2, 4), Layer(4, 8)
JOB = Demand(queue="q", options=(2, 4, 8))
PENDING = Request("q")
ADMITTED = Request(
    "q", is_judged=True, is_reserved=True, is_admitted=True, is_ready=True, flavor="a100"
)
NODES = (frozenset[tuple[str, str]](), frozenset({("gpu", "h100")}))
ELSEWHERE = replace(ADMITTED, nodes=NODES[1])
EVICTED = replace(ADMITTED, is_evicted=True, told="back for team-b")
ALL = {LOW: ADMITTED, MIDDLE: ADMITTED, HIGH: ADMITTED}


def running(gpus: int, *, holds: int | None = None, known: int = 8) -> Demand:
    used = gpus if holds is None else max(gpus, holds)
    return replace(JOB, decided=gpus, used=used, known=known, trains=True)


def test_layer_is_asked_for_when_those_below_are_admitted():
    assert find_due(JOB, {}) == {LOW: Wanted.ASKED}
    assert find_due(JOB, {LOW: PENDING}) == {}
    assert find_due(JOB, {LOW: ADMITTED}) == {MIDDLE: Wanted.ASKED}
    assert find_due(JOB, {LOW: ADMITTED, MIDDLE: ADMITTED}) == {HIGH: Wanted.ASKED}
    assert find_due(JOB, ALL) == {}


def test_ceiling_is_the_sum_of_the_admitted_layers_up_to_a_gap():
    cases = [
        ({LOW: PENDING}, 0),
        ({LOW: ADMITTED}, 2),
        ({LOW: ADMITTED, HIGH: ADMITTED}, 2),
        ({LOW: ADMITTED, MIDDLE: EVICTED, HIGH: ADMITTED}, 2),
        ({LOW: ADMITTED, MIDDLE: ELSEWHERE}, 2),
        ({LOW: ADMITTED, MIDDLE: replace(ADMITTED, flavor="spot")}, 4),
        (ALL, 8),
    ]
    for requests, gpus in cases:
        ceiling = find_ceiling(JOB, requests)
        assert ceiling is not None
        assert ceiling.gpus == gpus, requests


def test_evicted_layer_is_cleared_only_after_a_decision_and_the_release():
    requests = {**ALL, HIGH: EVICTED}
    assert find_due(running(8), requests) == {}
    assert find_due(running(8, known=4), requests) == {}
    assert find_due(running(4, holds=8, known=4), requests) == {}
    assert find_due(running(4, known=8), requests) == {}, "a decision may still count on it"
    assert find_due(running(4, known=4), requests) == {HIGH: Wanted.CLEARED}


def test_layer_above_a_gap_is_given_back():
    requests = {**ALL, MIDDLE: EVICTED}
    assert find_due(running(2, known=2), requests) == {MIDDLE: Wanted.CLEARED, HIGH: Wanted.GONE}


def test_evicted_minimum_is_cleared_when_the_job_holds_nothing():
    requests = dict.fromkeys(ALL, EVICTED)
    gone = {MIDDLE: Wanted.GONE, HIGH: Wanted.GONE}
    assert find_due(running(0, holds=2, known=0), requests) == gone
    assert find_due(running(0, known=0), requests) == {LOW: Wanted.CLEARED, **gone}


@pytest.mark.parametrize("why", ["over", "in another queue"])
def test_job_gives_all_back_when_it_holds_nothing(why):
    # The controller sees a job that is over or suspended without a queue.
    queue = "" if why == "over" else "other"
    demand = replace(JOB, queue=queue, used=3)
    kept = find_due(demand, ALL)
    assert Wanted.GONE not in (kept.get(LOW), kept.get(MIDDLE))
    due = find_due(replace(demand, used=0), ALL)
    assert due == dict.fromkeys(ALL, Wanted.GONE)


def test_unused_layers_are_given_back():
    demand = replace(running(4, known=4), reach=4)
    assert find_due(demand, ALL) == {HIGH: Wanted.GONE}
    ceiling = find_ceiling(demand, ALL)
    assert ceiling is not None
    assert ceiling.gpus == 4, "no decision may count on a layer that goes"


def test_layer_on_other_nodes_is_given_back():
    requests = {LOW: ADMITTED, MIDDLE: ELSEWHERE}
    assert find_due(running(2, known=2), requests) == {MIDDLE: Wanted.RETURNED}
    assert find_due(running(2, holds=4, known=2), requests) == {}
    assert find_due(running(4, known=2), requests) == {}, "the job has still to shrink"


def test_job_that_does_not_start_has_no_layer_and_stays_bound():
    idle = replace(JOB, reach=0)
    assert find_due(idle, {LOW: ADMITTED}) == {LOW: Wanted.GONE}
    assert find_due(idle, {}) == {}
    ceiling = find_ceiling(idle, {})
    assert ceiling is not None
    assert (ceiling.gpus, ceiling.reason) == (0, "Returned")


def test_training_is_reported_once():
    unreported = replace(ADMITTED, is_ready=False)
    assert find_due(running(2), {**ALL, LOW: unreported}) == {LOW: Wanted.READY}
    assert find_due(replace(running(2), trains=False), {**ALL, LOW: unreported}) == {}


def test_layer_in_use_keeps_its_size_when_options_change():
    demand = replace(running(4, known=4), options=(1, 3, 4, 6))
    assert split(demand, ALL) == (LOW, MIDDLE, Layer(4, 6))
    assert split(replace(demand, decided=0), ALL)[0] == Layer(0, 1)


@pytest.mark.parametrize(
    ("options", "gpus", "ceiling"),
    [((3,), 4, 3), ((6,), 8, 6), ((1,), 2, 1), ((1, 2), 4, 2), ((2, 4, 16), 8, 8)],
)
def test_edit_takes_no_quota_from_a_running_job(options, gpus, ceiling):
    demand = replace(running(gpus, known=gpus), options=options)
    found = find_ceiling(demand, ALL)
    assert found is not None
    assert found.gpus == ceiling
    assert not any(layer.low < gpus for layer in find_due(demand, ALL))


def test_job_that_has_moved_to_another_queue_starts_on_its_quota():
    moved = replace(JOB, queue="other")
    ceiling = find_ceiling(moved, ALL)
    assert ceiling is not None
    assert ceiling.gpus == 0
    assert set(find_due(moved, ALL).values()) == {Wanted.GONE}


def test_many_options_make_few_layers():
    layers = split(replace(JOB, options=range(1, 65)), {})
    assert len(layers) == MOST_LAYERS
    assert (layers[0], layers[-1].high) == (Layer(0, 1), 64)
    assert all(one.high == other.low for one, other in itertools.pairwise(layers))


def test_rigid_job_has_all_or_nothing():
    rigid = replace(JOB, options=(4,), is_whole=True)
    assert split(rigid, {}) == (Layer(0, 4),)
    assert find_ceiling(rigid, {Layer(0, 4): ADMITTED}) == Ceiling(
        4,
        "Admitted",
        "Kueue admits 4 of 4 GPUs in queue q (flavor a100, none borrowed)",
        is_whole=True,
    )


def test_whole_layer_in_use_stays_when_the_job_can_change():
    """A job without a checkpoint starts with one layer, and a trial shows later that it changes live."""
    whole = Layer(0, 4)
    live = replace(running(4, known=4), options=(2, 4, 8))
    assert split(live, {whole: ADMITTED}) == (whole, Layer(4, 8))
    assert find_due(live, {whole: ADMITTED}) == {Layer(4, 8): Wanted.ASKED}
    assert split(replace(live, decided=0), {whole: ADMITTED})[0] == LOW
    # If a live change fails, it keeps all layers below what it has.
    rigid = replace(live, options=(4,), is_whole=True)
    ceiling = find_ceiling(rigid, ALL)
    assert ceiling is not None
    assert (ceiling.gpus, split(rigid, ALL)) == (4, (LOW, MIDDLE))


@pytest.mark.parametrize(
    ("requests", "gpus"),
    [
        ({}, 4),
        ({LOW: PENDING}, 4),
        ({LOW: ADMITTED}, 4),
        ({LOW: ADMITTED, MIDDLE: replace(PENDING, is_judged=True)}, 2),
        ({LOW: replace(PENDING, is_judged=True)}, 0),
    ],
)
def test_running_job_keeps_its_gpus_until_kueue_has_decided(requests, gpus):
    """As after the setting is new, or a person has deleted Workloads."""
    ceiling = find_ceiling(running(4), requests)
    assert ceiling is not None
    assert ceiling.gpus == gpus
    assert find_due(running(4, known=0), {}) == {LOW: Wanted.ASKED}


@pytest.mark.parametrize(
    ("requests", "borrowed", "told"),
    [
        ({}, 0, "Kueue has admitted none of 8 GPUs in queue q yet"),
        (
            {LOW: replace(PENDING, told="ClusterQueue c is stopped")},
            0,
            "Kueue has admitted none of 8 GPUs in queue q yet: ClusterQueue c is stopped",
        ),
        (
            {LOW: ADMITTED},
            0,
            "Kueue admits 2 of 8 GPUs in queue q (flavor a100, none borrowed)",
        ),
        (ALL, 6, "Kueue admits 8 of 8 GPUs in queue q (flavor a100, 6 borrowed)"),
        (
            {**ALL, HIGH: EVICTED},
            6,
            "Kueue takes layer 4-8 back for team-b, and leaves 4 GPUs in queue q",
        ),
        (
            {**ALL, MIDDLE: EVICTED, HIGH: EVICTED},
            6,
            "Kueue takes layers 2-4 and 4-8 back for team-b, and leaves 2 GPUs in queue q",
        ),
    ],
)
def test_sentences_name_queue_layer_and_taker(requests, borrowed, told):
    ceiling = find_ceiling(JOB, requests, borrowed=borrowed)
    assert ceiling is not None
    assert ceiling.told == told


# --- drawn worlds -------------------------------------------------------------------------


@dataclass
class World:
    """One job, and a Kueue that admits, evicts and forgets as it likes."""

    rng: random.Random
    quota: int
    requests: dict[Layer, Request] = field(default_factory=dict)
    demand: Demand = JOB
    """As the last cycle saw it."""
    held: int = 0
    wishes: bool = True
    """The job is in its queue, and neither suspended nor over."""
    options: list[int] = field(default_factory=lambda: [2, 4, 8])
    can_change: bool = True
    is_steady: bool = False
    """Kueue admits a layer on the nodes of the lowest."""

    @property
    def reserved(self) -> int:
        return sum(
            high - low for (low, high), request in self.requests.items() if request.is_reserved
        )

    def admit(self) -> None:
        waiting = [layer for layer, request in self.requests.items() if not request.is_reserved]
        self.rng.shuffle(waiting)
        for layer in waiting:
            if self.reserved + layer.high - layer.low <= self.quota:
                lowest = self.requests[min(self.requests)]
                nodes = lowest.nodes if self.is_steady else self.rng.choice(NODES)
                self.requests[layer] = replace(ADMITTED, nodes=nodes)

    def evict(self) -> None:
        """Any layer, as Kueue does where a smaller one above it suffices."""
        there = [layer for layer, request in self.requests.items() if request.is_admitted]
        if there:
            self.requests[self.rng.choice(there)] = EVICTED

    def lower_quota(self) -> None:
        self.quota = self.rng.randint(0, 8)
        for layer in sorted(self.requests, reverse=True):
            if self.reserved - self._leaving() > self.quota and self.requests[layer].is_admitted:
                self.requests[layer] = EVICTED

    def _leaving(self) -> int:
        return sum(high - low for (low, high), each in self.requests.items() if each.is_evicted)

    def edit(self) -> None:
        self.options = sorted(self.rng.sample(range(1, 9), self.rng.randint(1, 4)))

    def turn(self) -> None:
        """A trial has shown that the job changes live, or a change has failed."""
        self.can_change = not self.can_change

    def toggle(self) -> None:
        self.wishes = not self.wishes

    def stop_using(self) -> None:
        reach = self.rng.choice([JOB.reach, self.demand.decided])
        self.demand = replace(self.demand, reach=reach)

    def decide(self) -> None:
        """One cycle: it reads the ceiling, and decides within it."""
        held = self.demand.decided
        whole = [held if held in self.options else self.options[-1]]
        demand = replace(
            self.demand,
            queue="q" if self.wishes else "",
            options=self.options if self.can_change else whole,
            is_whole=not self.can_change,
        )
        ceiling = find_ceiling(demand, self.requests)
        known = ceiling.gpus if ceiling is not None else 0
        allowed = [n for n in demand.options if n <= known]
        decided = self.rng.choice(allowed) if allowed else 0
        self.demand = replace(
            demand, known=known, decided=decided, used=max(self.held, decided), trains=decided > 0
        )
        if self.rng.random() < 0.5:
            self.release()

    def release(self) -> None:
        self.held = self.demand.decided
        self.demand = replace(self.demand, used=self.held)

    def write(self) -> None:
        for layer, wanted in find_due(self.demand, self.requests).items():
            match wanted:
                case Wanted.GONE | Wanted.RETURNED:
                    del self.requests[layer]
                case Wanted.CLEARED:
                    self.requests[layer] = PENDING
                case Wanted.READY:
                    assert self.requests[layer].is_admitted
                case Wanted.ASKED:
                    assert layer not in self.requests
                    self.requests[layer] = PENDING

    def check(self) -> None:
        assert self.reserved >= max(self.held, self.demand.decided), "uses more than it has quota"


def settle(world: World) -> None:
    world.is_steady = True
    for _ in range(30):
        world.decide()
        world.release()
        world.write()
        world.admit()
        world.check()


@pytest.mark.parametrize("seed", range(300))
def test_quota_covers_the_use_and_evictions_end(seed):
    rng = random.Random(seed)
    world = World(rng, quota=rng.randint(0, 8))
    doings = [
        *([world.admit, world.decide, world.write] * 4),
        *[world.release, world.evict, world.lower_quota, world.edit, world.toggle],
        *[world.stop_using, world.turn],
    ]
    for _ in range(60):
        rng.choice(doings)()
        world.check()
    world.wishes = True
    world.demand = replace(world.demand, reach=JOB.reach)
    settle(world)
    assert not any(request.is_evicted for request in world.requests.values())
    layers = split(world.demand, world.requests)
    top = count_admitted(world.demand, layers, world.requests)
    assert world.reserved == top <= world.quota, "no quota is kept that it cannot use"
    higher = next((layer.high for layer in layers if layer.low == top), None)
    assert higher is None or higher > world.quota, "it gets all that there is"
    world.wishes = False
    settle(world)
    assert world.requests == {}

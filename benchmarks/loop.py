"""
The cost of the control loop: whole cycles with many jobs, most of which just go on.

The platform and the SideCars are in memory and answer at once, so that what is measured is the
controller: seeing, judging, deciding, coordinating and recording. ``quiet`` cycles find nothing
new; in ``busy`` ones every SideCar reports progress; ``deciding`` ones are asked for by a job that
was just submitted.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click
from _measuring import describe_machine, print_result, summarize
from _progress import run

from dljob.control.loop import Controller
from dljob.control.reporting.metrics import Metrics
from dljob.control.scheduling import Options
from dljob.control.situation.dialer import Contact
from dljob.control.situation.ports import (
    Address,
    Entry,
    Observation,
    Pod,
    PodKey,
    PodOrder,
    PodPhase,
)
from dljob.control.situation.rules import News
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Booking, DecisionNumber, StartNumber, Status
from dljob.core import policies
from dljob.core.measuring import Resumption
from dljob.core.model import (
    Cause,
    CauseCode,
    Checkpoint,
    GpuDemand,
    Job,
    JobId,
    Node,
    NodeName,
    Phase,
    Placement,
    Snapshot,
    Training,
)
from dljob.core.planning import Plan
from dljob.core.predicting.learning_curves import Forecast
from dljob.core.profiles import JobType, Profile, Speed
from dljob_wire.messages import Peer, Process, Progress, Run, Shape, State, Target
from dljob_wire.messages import Phase as SideCarPhase

GPUS_A_NODE = 8
ITERATIONS = 10**9
KIND = JobType("resnet")
PROFILES = {KIND: Profile(KIND, {Shape(n): Speed(n**0.8) for n in (1, 2, 4, 8)})}


def make_job(name: str) -> Job:
    return Job(
        id=JobId(name),
        type=KIND,
        gpus=GpuDemand(options=(8,), requested=8),
        training=Training(iterations=ITERATIONS),
        checkpoint=Checkpoint(shared=True),
    )


class Place:
    """A platform, the SideCars on it and a memory, all of which answer at once."""

    def __init__(self, *, jobs: int, sidecars: int) -> None:
        self.now = 1000.0
        self.nodes = tuple(Node.of(f"n{n:05}", GPUS_A_NODE) for n in range(sidecars))
        self.entries: dict[JobId, Entry] = {}
        self.contacts: dict[PodKey, Contact] = {}
        self.pods: dict[PodKey, Pod] = {}
        self.writes = 0
        for order in range(jobs):
            self.add(order, self.nodes[order].name if order < sidecars else None)

    def add(self, order: int, node: NodeName | None) -> None:
        job = make_job(f"job-{order:05}")
        status = Status(
            phase=Phase.QUEUED, cause=Cause(CauseCode.NO_ROOM), iterations_total=ITERATIONS
        )
        if node is not None:
            status = Status(
                phase=Phase.RUNNING,
                generation=DecisionNumber(1),
                placement=Placement.of({node: range(GPUS_A_NODE)}),
                pods=(Booking(node, 1, DecisionNumber(1)),),
                booked=1,
                shaped=DecisionNumber(1),
                running=StartNumber(3),
                containers=1,
                decided_at=self.now,
                counted_at=self.now,
            )
            key = PodKey(job.id, node)
            self.pods[key] = Pod(key, PodPhase.UP, Address(socket=f"/{job.id}"))
            self.contacts[key] = Contact(make_state(), reachable=True, since=1.0, first_seen=1.0)
        self.entries = {**self.entries, job.id: Entry(job, order, status, spec_generation=1)}

    def train(self) -> None:
        """Let every SideCar report progress."""
        for key, contact in self.contacts.items():
            assert contact.state is not None
            iteration = contact.state.progress.iteration + 1
            progress = Progress(iteration=iteration, iterations_per_second=1.0)
            state = replace(contact.state, version=contact.state.version + 1, progress=progress)
            self.contacts[key] = replace(contact, state=state)

    # --- the platform

    async def observe(self) -> Observation:
        return Observation(self.entries, self.nodes, self.pods)

    async def record(self, statuses: Mapping[JobId, Status]) -> None:
        self.writes += len(statuses)
        self.entries = dict(self.entries)
        for job, status in statuses.items():
            self.entries[job] = replace(self.entries[job], status=status)

    async def is_overtaken(self) -> bool:
        raise AssertionError("no SideCar is doubted here")

    async def launch(self, order: PodOrder) -> None:
        raise AssertionError(f"no GPU is free for {order}")

    async def remove(self, key: PodKey, *, because: str) -> None:
        raise AssertionError(f"{key}: {because}")

    async def tell(self, job: JobId, reason: str, message: str, *, warning: bool = False) -> None:
        assert reason == "Waiting", (job, message, warning)

    def host_of(self, key: PodKey) -> str:
        return str(key.node)

    def rendezvous_port(self, job: JobId, generation: int, processes: int) -> int:
        raise AssertionError(f"nothing is begun: {job} {generation} {processes}")

    # --- the client of the SideCars

    def follow(self, key: PodKey, address: Address) -> None:
        assert self.pods[key].address == address

    def forget(self, key: Any) -> Any:
        raise AssertionError(f"{key} does not go")

    def declare(self, key: PodKey, target: Target) -> None:
        """Let it obey us from now on; nothing else is to be said."""
        contact = self.contacts[key]
        state = contact.state
        assert state is not None
        assert replace(target, epoch=state.epoch) == state.target
        stamped = replace(state, version=state.version + 1, epoch=target.epoch, target=target)
        self.contacts[key] = replace(contact, state=stamped)

    def contact(self, key: PodKey) -> Contact:
        return self.contacts[key]

    def believe(self, left: State) -> State | None:
        return left

    # --- the memory

    def profiles(self) -> Mapping[JobType, Profile]:
        return PROFILES

    def forecasts(self) -> Mapping[JobId, Forecast]:
        return {}

    def resumptions(self) -> Mapping[JobId, Resumption]:
        return {}

    def update(self, scene: Scene) -> None:
        assert scene.nodes

    def note(self, plan: Plan, snapshot: Snapshot, statuses: Mapping[JobId, Status]) -> None:
        assert len(statuses) == len(plan.steps) <= len(snapshot.pending)

    def keep_policy_state(self, policy: str, state: object) -> None:
        pass

    def policy_state(self, policy: str) -> object:  # noqa: ARG002 - nothing came before
        return None

    def note_news(self, job: JobId, news: News, now: float) -> None:
        raise AssertionError(f"{job}: {news} at {now}")

    def note_cost(self, job: JobId, generation: int, seconds: float, how: str) -> None:
        raise AssertionError(f"{job}: {generation} took {seconds} ({how})")


def make_state() -> State:
    """Make the state of a SideCar that trains on all GPUs of its node, and obeyed our predecessor."""
    gpus = tuple(map(str, range(GPUS_A_NODE)))
    run = Run(1, 3, "x", gpus, 0, GPUS_A_NODE, (Peer("n", GPUS_A_NODE),), 20000)
    return State(
        incarnation="x",
        version=1,
        phase=SideCarPhase.RUNNING,
        released=False,
        epoch=1,
        generation=3,
        target=run,
        held=gpus,
        held_generation=3,
        processes=tuple(Process(rank, 100 + rank) for rank in range(GPUS_A_NODE)),
        progress=Progress(iteration=1, iterations_per_second=1.0),
    )


def measure(*, jobs: int, sidecars: int, policy: str, runs: int) -> dict[str, Any]:
    """Time ``runs`` cycles of each kind."""
    place = Place(jobs=jobs, sidecars=sidecars)
    options = Options(policy=policies.make(policy))
    controller = Controller(
        place,
        place,
        learning=place,
        metrics=Metrics(),
        options=options,
        epoch=2,
        clock=lambda: place.now,
    )
    loop = asyncio.new_event_loop()

    def time_cycles(prepare: Any, seconds: float) -> dict[str, float]:
        times = []
        for _ in range(runs):
            place.now += seconds
            prepare()
            began = time.perf_counter()
            loop.run_until_complete(controller.cycle())
            times.append((time.perf_counter() - began) * 1000)
        return summarize(times)

    try:
        # The first look stamps what was found, and nothing is decided before that is done.
        time_cycles(lambda: None, 0.001)
        written = place.writes
        quiet = time_cycles(lambda: None, 0.001)
        busy = time_cycles(place.train, 0.001)
        writes = place.writes - written
        deciding = time_cycles(lambda: place.add(len(place.entries), None), 0.001)
    finally:
        loop.close()
    return {
        "jobs": jobs,
        "sidecars": sidecars,
        "policy": policy,
        "runs": runs,
        "quiet_ms": quiet,
        "busy_ms": busy,
        "writes": writes,
        "deciding_ms": deciding,
        "machine": describe_machine(),
    }


@click.command(help=__doc__)
@click.option("--jobs", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--sidecars", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--policy", default="adaptive", show_default=True)
@click.option("--runs", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, jobs: int, sidecars: int, policy: str, runs: int, form: str) -> None:
    """Measure it."""
    print_result(measure(jobs=jobs, sidecars=sidecars, policy=policy, runs=runs), form)


if __name__ == "__main__":
    run(main)

"""
Small scenes in a few words: jobs, their decisions, and the reports of their SideCars.

The product's own table makes the states of SideCars from a list of events, so that no test starts
from an impossible state.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from dljob.control.situation.dialer import NO_CONTACT, Contact
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry, Pod, PodKey, PodPhase
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import Begun
from dljob.control.situation.status import Booking, DecisionNumber, Status
from dljob.core.model import JobId, Mechanism, Node, NodeName, Phase, Placement
from dljob_sidecar.agent import Stopwatch
from dljob_sidecar.behaviour.events import CheckpointDone, Event, Gone, RankEnded, Started, Told
from dljob_sidecar.behaviour.machine import Limits, Machine, react
from dljob_wire.messages import Failure, Peer, Process, Progress, Run, State, Stop, Target
from tests.builders import make_job

EPOCH = 2
NOW = 1000.0


# --- commands and reports -------------------------------------------------------------------


def run(
    generation: int,
    *gpus: str | int,
    epoch: int = EPOCH,
    incarnation: str = "x",
    peers: int = 1,
    at: int = 0,
) -> Run:
    """Make the ``at``-th part of a start over several equal containers."""
    return Run(
        epoch,
        generation,
        incarnation,
        tuple(map(str, gpus)),
        rank_offset=at * len(gpus),
        world_size=peers * len(gpus),
        peers=tuple(Peer(f"n{n}", len(gpus)) for n in range(peers)),
        rendezvous_port=20000,
    )


def stop(generation: int, *, epoch: int = EPOCH, incarnation: str = "x", **rest: Any) -> Stop:
    return Stop(epoch, generation, incarnation, **rest)


def after(
    *events: Event | Target, progress: Progress | None = None, incarnation: str = "x"
) -> State:
    """The state of a SideCar after these events, of its first attempt."""
    machine, ticks = Machine(incarnation, Limits(saves=True)), count()
    stopwatch = Stopwatch(lambda: float(next(ticks)))
    for event in events:
        told = Told(event) if isinstance(event, Run | Stop) else event
        reaction = react(machine, told)
        assert reaction.refused is None, reaction
        machine = reaction.machine
        stopwatch.see(machine)
    return state_of(
        machine,
        len(events) + 1,
        processes=_processes(machine),
        progress=progress or Progress(),
        change=stopwatch.change,
        failure=_failure(machine),
    )


def state_of(machine: Machine, version: int, **more: Any) -> State:
    """The report of a SideCar with this machine."""
    return State(
        incarnation=machine.incarnation,
        version=version,
        phase=machine.phase,
        released=machine.released,
        epoch=machine.term.epoch,
        generation=machine.term.generation,
        target=machine.target,
        held=machine.held,
        held_generation=0 if machine.run is None else machine.run.generation,
        leaving=machine.is_leaving,
        problems=machine.problems,
        **more,
    )


def _failure(machine: Machine) -> Failure | None:
    first = machine.culprit
    if first is None:
        return None
    return Failure(first.rank, first.at, first.exit_code, first.signal)


def _processes(machine: Machine) -> tuple[Process, ...]:
    if machine.run is None:
        return ()
    ends = {end.rank: end for end in machine.ended}
    first = machine.run.rank_offset
    return tuple(
        Process(
            rank,
            pid=100 + rank,
            exit_code=ends[rank].exit_code if rank in ends else None,
            signal=ends[rank].signal if rank in ends else None,
        )
        for rank in range(first, first + machine.run.processes)
    )


def ready(epoch: int = EPOCH) -> State:
    """A SideCar that has a stamp and has run nothing."""
    return after(stop(0, epoch=epoch))


def new(incarnation: str = "x") -> State:
    return after(incarnation=incarnation)


def running(told: Run, *then: Event | Target, **rest: Any) -> State:
    return after(told, Started(1), *then, **rest)


def ended(told: Run, code: int | None = 0, signum: int | None = None) -> State:
    ranks = range(told.rank_offset, told.rank_offset + told.processes)
    return after(told, Started(1), *(RankEnded(1, rank, code, signum) for rank in ranks), Gone(1))


def released(told: Run, by: Stop) -> State:
    """The state after a run and a stop: saved, terminated, with nothing left."""
    return running(told, by, CheckpointDone(1), RankEnded(1, told.rank_offset, 0), Gone(1))


# --- casts ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sat:
    """A pod of a job in a scene to make."""

    state: State | None = None
    phase: PodPhase = PodPhase.UP
    reachable: bool = True
    since: float = 0.0
    outdated: bool = False
    declared: Target | None = None
    overtaken: tuple[Run, ...] = ()
    asked: bool = True
    fresh: bool = False
    serial: int = 1
    shaped: int = 0
    pod: Mapping[str, Any] = field(default_factory=dict)

    def job_pod(self, job: JobId, node: NodeName) -> JobPod:
        key = PodKey(job, node)
        contact = NO_CONTACT
        if self.state is not None or self.since:
            contact = Contact(
                self.state,
                reachable=self.reachable and self.state is not None,
                since=self.since,
                outdated=self.outdated,
                declared=self.declared,
                overtaken=self.overtaken,
            )
        pod = Pod(key, self.phase, **self.pod)
        booking = Booking(node, self.serial, DecisionNumber(self.shaped))
        return JobPod(key, booking, pod, contact, asked=self.asked, fresh=self.fresh, left=pod.left)


PENDING = Sat(phase=PodPhase.PENDING, fresh=True)
ENDED = Sat(phase=PodPhase.ENDED)


@dataclass(frozen=True)
class Cast:
    """A job in a scene to make."""

    entry: Entry
    job_pods: Mapping[NodeName, JobPod]


def cast(
    name: str,
    holds: Mapping[str, Iterable[int]] | None = None,
    *,
    job_pods: Mapping[str, Sat | State] | None = None,
    order: int = 0,
    cancelled: bool = False,
    problem: str = "",
    **rest: Any,
) -> Cast:
    """A job in a scene; ``rest`` holds its pods by node, such as n0, and fields of its status and of the job."""
    job_id = JobId(name)
    sats = {key: rest.pop(key) for key in list(rest) if re.fullmatch(r"n\d+", key)}
    there = {
        NodeName(node): (sat if isinstance(sat, Sat) else Sat(sat)).job_pod(job_id, NodeName(node))
        for node, sat in {**(job_pods or {}), **sats}.items()
    }
    ours = {key: rest.pop(key) for key in list(rest) if key in Status.__dataclass_fields__}
    placement = None
    if holds is not None:
        placement = Placement.of({NodeName(n): ids for n, ids in holds.items()})
    ours.setdefault("generation", 1)
    ours.setdefault("phase", Phase.RUNNING if placement is not None else Phase.QUEUED)
    pods = tuple(job_pod.booking for job_pod in there.values())
    status = Status(placement=placement, pods=pods, booked=len(pods), **ours)
    job = make_job(name, **rest)
    return Cast(Entry(job, order, status, cancelled=cancelled, problem=problem), there)


def make_scene(
    *casts: Cast,
    nodes: Mapping[str, int] | None = None,
    now: float = NOW,
    mechanism: Mechanism = Mechanism.IN_PLACE,
    begun: Mapping[str, Begun] | None = None,
) -> Scene:
    sizes = nodes if nodes is not None else {"n0": 4, "n1": 4, "n2": 4}
    entries = {
        each.entry.job.id: replace(each.entry, order=order) for order, each in enumerate(casts)
    }
    return Scene(
        now=now,
        epoch=EPOCH,
        entries=entries,
        job_pods={each.entry.job.id: each.job_pods for each in casts if each.job_pods},
        nodes={NodeName(name): Node.of(name, size) for name, size in sizes.items()},
        mechanism=mechanism,
        begun={JobId(name): each for name, each in (begun or {}).items()},
    )

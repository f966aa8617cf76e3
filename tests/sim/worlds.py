"""
Small worlds whose every second can be worked out by hand.

A :class:`Scripted` policy follows a script of numbers of GPUs over time, so that a test sees the cost
of a change apart from the reason for it. :class:`Watched` is a world that checks itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dljob.core.checking import Law
from dljob.core.contract import Decision, Policy, Share, View
from dljob.core.model import (
    Cause,
    CauseCode,
    Checkpoint,
    GpuDemand,
    Job,
    JobId,
    Mechanism,
    Node,
    NodeName,
    Training,
)
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.sim import policies
from dljob.sim.engine.settings import Outage, Setting
from dljob.sim.engine.world import World
from dljob.sim.jobs import workloads
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob.sim.results.records import Happening, Record
from dljob_wire.messages import Shape
from tests.builders import FakePolicy

COSTS = Costs(
    pod_initialization=50.0,
    process_initialization=10.0,
    checkpoint=3.0,
    process_termination=2.0,
    pod_termination=20.0,
    live_shrink=0.5,
    live_grow=2.0,
)
"""A sum of these shows its parts: a restart in place takes 15, recreation 85."""

ONE_NODE = (Node.of("n1", 4),)
TWO_NODES = (Node.of("n1", 4), Node.of("n2", 4))

Wish = int | Mapping[str, int] | None
"""A number of GPUs, or numbers by node, or none."""


def make_traced(
    name: str,
    *,
    at: float = 0.0,
    iterations: float = 1000.0,
    options: tuple[int, ...] = (1, 2, 4),
    requested: int | None = None,
    shared: bool = True,
    is_live: bool = False,
) -> TracedJob:
    """A job that trains by an iteration a second for each GPU."""
    demand = GpuDemand(options=options, requested=requested or options[-1])
    return TracedJob(
        Job(
            id=JobId(name),
            gpus=demand,
            training=Training(iterations=int(iterations)),
            type=JobType("linear"),
            submitted_at=at,
            checkpoint=Checkpoint(shared=shared),
        ),
        iterations,
        is_live=is_live,
    )


def make_workload(*jobs: TracedJob) -> Workload:
    """A workload of jobs that scale linearly, also over several nodes."""
    kind = JobType("linear")
    speeds = {
        Shape(gpus, nodes): Speed(float(gpus))
        for gpus in range(1, 65)
        for nodes in range(1, min(gpus, 8) + 1)
    }
    profiles = {kind: Profile(kind, speeds)}
    return Workload("test", jobs, profiles, profiles)


SHORT: Mapping[str, Mapping[str, str]] = {
    "ones": {"generations": "2", "evaluations": "64"},
    "sia": {"period": "600"},
}
"""Options that make slow policies quick."""


RARE: Mapping[str, Mapping[str, str]] = {
    "optimus-periodic": {"period_seconds": "6000"},
    "sia": {"period": "14400"},
    "themis": {"lease": "14400"},
}
"""Options that make round-based policies decide rarely in a trace of many hours."""


def write_short(name: str) -> str:
    """Name a policy with quick options, as users write it."""
    options = {**SHORT, **RARE}.get(name, {})
    return ":".join([name, *(f"{option}={value}" for option, value in options.items())])


def make_short(name: str) -> Policy:
    """Make a policy with quick options."""
    return policies.make(name, SHORT.get(name))


@dataclass(frozen=True)
class Scripted(FakePolicy):
    """Gives every job its last number in the script, and wakes for the next entry."""

    breaks: ClassVar[frozenset[Law]] = frozenset({Law.PURPOSE})  # A script has no reasons.
    script: Mapping[float, Mapping[str, Wish]] = field(default_factory=dict)

    def allocate(self, view: View) -> Decision:
        wishes: dict[str, Wish] = {}
        for time, words in sorted(self.script.items()):
            if time <= view.now:
                wishes.update(words)
        alive = {state.job.id for state in (*view.running, *view.pending)}
        shares = {
            JobId(job): make_share(wish)
            for job, wish in wishes.items()
            if wish and JobId(job) in alive
        }
        later = [time for time in self.script if time > view.now]
        return Decision(shares, wake_at=min(later, default=None))


def make_share(wish: int | Mapping[str, int]) -> Share:
    # A reason for which a job may lose GPUs although no other job gets them.
    cause = Cause(CauseCode.FASTER_WITH_FEWER)
    if isinstance(wish, int):
        return Share(wish, cause)
    nodes = {NodeName(node): gpus for node, gpus in wish.items()}
    return Share(sum(nodes.values()), cause, nodes=nodes)


def read_workload(path: Path, **changes: Any) -> Workload:
    """Read a trace or DLJob files for one unnamed type of GPU."""
    usual = {"rigid": False, "speeds": None, "seed": 0, "gpu_types": ("",), "largest": 64}
    return workloads.read(path, **{**usual, **changes})


class Watched(World):
    """A world that checks its invariants after every instant."""

    def _follow_instant(self) -> None:
        super()._follow_instant()
        holders = self._coordinator._holders
        held = [ref for run in self._books.runs.values() for ref in run.holds]
        assert len(held) == len(set(held)), "no GPU has two masters"
        assert {ref: run for run in self._books.runs.values() for ref in run.holds} == holders
        assert all(ref.node in self._nodes._alive for ref in held), "no job holds a lost GPU"
        assert self._books.journal.record.used.value == len(held)
        for run in self._books.runs.values():
            if run.works:
                assert run.serving is not None
                assert set(run.serving.refs()) <= run.holds, "a process has all its GPUs"


def play(
    jobs: tuple[TracedJob, ...],
    policy: Policy,
    *,
    nodes: tuple[Node, ...] = ONE_NODE,
    mechanism: str = "in-place",
    costs: Costs = COSTS,
    outages: tuple[Outage, ...] = (),
    checkpoint_every_s: float = 600.0,
    seed: int = 0,
) -> Record:
    setting = Setting(
        nodes=nodes,
        mechanism=Mechanism(mechanism),
        costs=costs,
        outages=outages,
        checkpoint_every_s=checkpoint_every_s,
        seed=seed,
    )
    return Watched(make_workload(*jobs), setting, policy=policy).play()


def times_of(record: Record, what: Happening, job: str) -> list[float]:
    return [e.time for e in record.log if e.what is what and e.job == job]


ENDS = (Happening.HALTS, Happening.PAUSES, Happening.COMPLETED)


def trained_by(record: Record) -> dict[str, float]:
    """Return the GPU-seconds that each job trained, from the log."""
    done: dict[str, float] = {}
    since: dict[str, tuple[float, int]] = {}
    for entry in record.log:
        if entry.what is Happening.TRAINS:
            since[entry.job] = (entry.time, entry.gpus)
        elif entry.what in ENDS and entry.job in since:
            start, gpus = since.pop(entry.job)
            done[entry.job] = done.get(entry.job, 0.0) + (entry.time - start) * gpus
    return done

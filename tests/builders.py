"""
Short ways to make the values that the core works on, for tests of anything that touches it.

Everything has a default, so that a test names only its subject::

    cluster = make_cluster(n1=4, n2=4)
    old = make_state("old", options=(1, 2, 4), holds={"n1": (0, 1)})
    new = make_state("new", options=(4,))
    snapshot = make_snapshot(cluster, old, new)   # in order of arrival

Nodes, jobs and types are named by plain strings here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar

from dljob.core import cycle
from dljob.core.checking import Law
from dljob.core.contract import Decision, Policy, Share, View
from dljob.core.model import (
    Cause,
    CauseCode,
    Checkpoint,
    Cluster,
    Gpu,
    GpuDemand,
    Job,
    JobId,
    JobState,
    Mechanism,
    Node,
    NodeName,
    Placement,
    Snapshot,
    Training,
)
from dljob.core.placement.allotting import Allotted
from dljob.core.planning import Change, Plan, Start, Stop
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.core.recording.record import Given, Record, Submitted
from dljob.core.recording.sums import list_spans
from dljob.sim import policies
from dljob_wire.messages import Shape

MODEL = "resnet"

_FREE = Costs()
_NO_ROOM = Cause(CauseCode.NO_ROOM)

_DEMAND = {field.name for field in fields(GpuDemand)}
_JOB = {field.name for field in fields(Job)}


def make_node(
    name: str,
    gpus: int = 4,
    gpu_type: str = "",
    *,
    unavailable: Iterable[int] = (),
    schedulable: bool = True,
    free: Mapping[str, int] | None = None,
    capacity: Mapping[str, int] | None = None,
) -> Node:
    bad = set(unavailable)
    devices = tuple(Gpu(i, unavailable_because="ECC" if i in bad else "") for i in range(gpus))
    return Node(NodeName(name), devices, gpu_type, schedulable, free, capacity or free)


def make_cluster(*nodes: Node, **sizes: int | tuple[int, str]) -> Cluster:
    """Make a cluster of nodes, or of names with sizes: ``make_cluster(n1=4, n2=(8, "V100"))``."""
    named = (
        make_node(name, *(size if isinstance(size, tuple) else (size,)))
        for name, size in sizes.items()
    )
    return Cluster((*nodes, *named))


def make_placement(gpu_type: str = "", **gpus: Iterable[int]) -> Placement:
    """Make a placement: ``make_placement(n1=(0, 1), n2=(0,))``."""
    return Placement.of({NodeName(node): ids for node, ids in gpus.items()}, gpu_type)


def make_job(
    name: str = "job", *, options: tuple[int, ...] = (1, 2, 4), model: str = MODEL, **rest: Any
) -> Job:
    """Make a job; what it demands of GPUs is named directly: ``make_job(options=(2,), mixed=True)``."""
    demand = {key: rest.pop(key) for key in list(rest) if key in _DEMAND}
    demand.setdefault("requested", options[-1])
    rest.setdefault("training", Training(iterations=1000))
    # One without a checkpoint would keep the GPUs that it starts with.
    rest.setdefault("checkpoint", Checkpoint(trusted=True))
    return Job(
        id=JobId(name), type=JobType(model), gpus=GpuDemand(options=options, **demand), **rest
    )


def make_state(
    name: str = "job",
    *,
    holds: Mapping[str, Iterable[int]] | Placement | None = None,
    gpu_type: str = "",
    order: int = 0,
    **rest: Any,
) -> JobState:
    """
    Make a job with its known facts; fields of the job may be named directly.

    One that holds GPUs trains by an iteration a second, if nothing else is said.
    """
    ours = {key: rest.pop(key) for key in list(rest) if key in _JOB | _DEMAND | {"model"}}
    if holds is not None and not isinstance(holds, Placement):
        holds = make_placement(gpu_type, **holds)
    rest.setdefault("iterations_total", 1000.0)
    rest.setdefault("speed", 1.0 if holds is not None else 0.0)
    rest["bound_to"] = tuple(map(NodeName, rest.get("bound_to", ())))
    return JobState(job=make_job(name, **ours), order=order, placement=holds, **rest)


def make_profile(speeds: Mapping[Any, float] | None = None, model: str = MODEL) -> Profile:
    """Make a profile from speeds by count, or by ``Shape``; by default more GPUs are a bit faster."""
    speeds = speeds or {gpus: gpus**0.8 for gpus in (1, 2, 4, 8, 16, 32, 64)}
    shapes = {
        shape if isinstance(shape, Shape) else Shape(shape, 1, ""): speed
        for shape, speed in speeds.items()
    }
    kind = JobType(model)
    return Profile(kind, {shape: Speed(speed) for shape, speed in shapes.items()})


def make_snapshot(
    cluster: Cluster,
    *states: JobState,
    now: float = 0.0,
    profiles: Iterable[Profile] | None = None,
    costs: Costs = _FREE,
    mechanism: Mechanism = Mechanism.IN_PLACE,
    seed: int = 0,
    policy_state: object = None,
) -> Snapshot:
    """Make a snapshot of jobs, given in order of arrival; those that hold GPUs are the running ones."""
    if len({state.order for state in states}) < len(states):
        states = tuple(replace(state, order=order) for order, state in enumerate(states))
    known = (make_profile(),) if profiles is None else profiles
    return Snapshot(
        now=now,
        cluster=cluster,
        running=tuple(state for state in states if state.placement is not None),
        pending=tuple(state for state in states if state.placement is None),
        profiles={profile.type: profile for profile in known},
        costs=costs,
        mechanism=mechanism,
        seed=seed,
        policy_state=policy_state,
    )


def make_view(snapshot: Snapshot) -> View:
    """Make what a policy is shown of a snapshot where there are no limits."""
    return cycle.show(snapshot, Allotted(snapshot.running, snapshot.queue))


class FakePolicy:
    """The attributes that every policy has; a test adds ``allocate``."""

    name: ClassVar[str] = "fake"
    paper: ClassVar[str] = ""
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()


def make_policy(decision: Decision, breaks: Iterable[Law] = ()) -> Policy:
    """Make a policy that returns this decision, for tests of the steps after the policy."""
    laws = frozenset(breaks)

    class Fixed(FakePolicy):
        breaks: ClassVar[frozenset[Law]] = laws

        def allocate(self, view: View) -> Decision:
            return decision

    return Fixed()


def make_plan(
    snapshot: Snapshot,
    shares: Mapping[str, int | Share],
    *,
    waits: Mapping[str, Cause] | None = None,
    wait: Cause = _NO_ROOM,
    breaks: Iterable[Law] = (),
    worths: Mapping[str, float] | None = None,
) -> Plan:
    """
    Make the plan that follows from these shares, placed, diffed and checked.

    A number is a share of this number of GPUs for the sake of others, as most are.
    """
    decision = Decision(
        {
            JobId(job): Share(share, Cause(CauseCode.MAKES_ROOM))
            if isinstance(share, int)
            else share
            for job, share in shares.items()
        },
        waits={JobId(job): cause for job, cause in (waits or {}).items()},
        wait=wait,
        worths={JobId(job): worth for job, worth in (worths or {}).items()},
    )
    return cycle.schedule(snapshot, make_policy(decision, breaks))


def count_gpus(plan: Plan) -> dict[str, int]:
    """Count the GPUs after the plan of each job that it starts, changes or stops."""
    counts: dict[str, int] = {}
    for step in plan.steps:
        if isinstance(step, Start):
            counts[step.job] = step.placement.gpus
        elif isinstance(step, Change):
            counts[step.job] = step.new.gpus
        elif isinstance(step, Stop):
            counts[step.job] = 0
    return counts


def decide(snapshot: Snapshot, policy: str = "foresight", **options: str) -> dict[str, Any]:
    """Return the steps of a policy's decision by job; the test says their kinds."""
    plan = cycle.schedule(snapshot, policies.make(policy, options))
    return {step.job: step for step in plan.steps}


def make_steps(snapshot: Snapshot, shares: Mapping[str, int | Share], **rest: Any) -> list[Any]:
    """Make the steps of that plan; what kinds they are is for the test to say."""
    return list(make_plan(snapshot, shares, **rest).steps)


def sum_gpu_seconds(record: Record) -> Mapping[str, float]:
    """Return the GPU-seconds of each job that was submitted, from ``since`` to ``until``."""
    sums = {line.job: 0.0 for line in record.lines if isinstance(line, Submitted | Given)}
    for span in list_spans(record):
        sums[span.job] += span.gpu_seconds
    return sums

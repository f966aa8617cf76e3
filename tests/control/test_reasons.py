"""Every job in every state has one true sentence, with numbers."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from dljob.control.deciding import snapshots
from dljob.control.gpus.gpu_table import gpu_rows
from dljob.control.reporting.reasons import Outlook
from dljob.control.situation.dialer import Contact
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry, Pod, PodKey, PodPhase
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Booking, Condition, ConditionType, Status
from dljob.core.model import Cause, CauseCode, Gpu, JobId, Node, NodeName, Phase, Placement
from dljob.core.predicting.predictor import Span
from dljob.core.profiles import Costs
from dljob.store.tables import GpuState
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.messages import Progress, State, Warmth
from tests.builders import make_job, make_profile

NOW = 1000.0
N1, N2 = NodeName("n1"), NodeName("n2")
NODES = {name: Node(name, tuple(Gpu(index) for index in range(4))) for name in (N1, N2)}
HERE = Placement.of({N1: (0, 1)})
BECAUSE = "starts on 2 GPUs on n1: these GPUs would be idle"


def status(phase: Phase, placement: Placement | None = None, **more: Any) -> Status:
    pods = tuple(Booking(node, 1) for node in (placement.nodes if placement is not None else ()))
    more = {"message": BECAUSE, "generation": 1, "pods": pods, **more}
    return Status(phase=phase, placement=placement, submitted_at=NOW - 60, **more)


def entry(name: str, status: Status, *, order: int = 0, **job: Any) -> Entry:
    more = {key: job.pop(key) for key in ("cancelled", "problem") if key in job}
    return Entry(make_job(name, **job), order, status, **more)


STEPPED = Progress(begun=True)


def sidecar(**more: Any) -> State:
    more = {"epoch": 1, "generation": 3, "held_generation": 3, "progress": STEPPED, **more}
    return State("first", 1, **{"phase": SideCarPhase.RUNNING, "released": False, **more})


READY = {"phase": SideCarPhase.READY, "released": True, "generation": 0, "held_generation": 0}


def job_pod(job: str, node: NodeName = N1, state: State | None = None, **pod: Any) -> JobPod:
    key = PodKey(JobId(job), node)
    phase = pod.pop("phase", PodPhase.UP)
    reachable = pod.pop("reachable", phase is PodPhase.UP)
    contact = Contact(
        state, reachable, since=NOW, first_seen=NOW, problem=pod.pop("contact_problem", "")
    )
    return JobPod(key, Booking(node, 1), Pod(key, phase, **pod), contact)


def scene(*entries: Entry, job_pods: tuple[JobPod, ...] = ()) -> Scene:
    by_job: dict[JobId, dict[NodeName, JobPod]] = {}
    for each in job_pods:
        by_job.setdefault(each.key.job, {})[each.key.node] = each
    return Scene(NOW, 1, {each.job.id: each for each in entries}, by_job, NODES)


def tell(world: Scene, name: str = "job") -> str:
    profile = make_profile()
    snapshot = snapshots.take_snapshot(world, profiles={profile.type: profile}, costs=Costs())
    return Outlook(world, snapshot).sentence(world.entries[JobId(name)])


TRAINS = entry(
    "job", status(Phase.RUNNING, HERE, speed=2.0, iteration=500, iterated_at=NOW, started_at=NOW)
)
RUNS = (job_pod("job", state=sidecar(held=("0", "1"))),)


def test_training_job_shows_speed_and_time_left():
    assert tell(scene(TRAINS, job_pods=RUNS)) == (
        "trains on 2 GPUs on n1 at 2 iterations/s; 50 % is done, and about 4 to 5 min is left."
        f" Lately: {BECAUSE}"
    )


def test_stalled_job_shows_for_how_long():
    # The condition is older, with a shorter time.
    stalled = Condition(ConditionType.PROGRESSING, False, "Stalled", "no iteration for 300 s")
    status = replace(TRAINS.status, iterated_at=NOW - 720.0).with_condition(stalled, NOW)
    told = tell(scene(replace(TRAINS, status=status), job_pods=RUNS))
    assert "It makes no progress: no iteration for about 12 min. Lately" in told


def test_waiting_job_names_the_holders_of_gpus():
    waits = entry(
        "new", status(Phase.QUEUED, cause=Cause(CauseCode.NO_ROOM)), order=1, options=(8,)
    )
    holders = replace(TRAINS, job=replace(TRAINS.job, id=JobId("old")))
    job_pods = (job_pod("old", state=sidecar(held=("0", "1"))),)
    assert tell(scene(holders, waits, job_pods=job_pods), "new") == (
        "waits: needs 8 GPUs; 6 are free, and 2 more when old ends"
    )


CRASHED = "rank 0 exited with status 1; attempt 2 of 4 follows a pause of 40 s"
ASIDE = Condition(ConditionType.SET_ASIDE, True, "BrokenLaw", "no valid decision can be made")


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (
            entry("job", status(Phase.SUSPENDED, cause=Cause(CauseCode.SUSPENDED)), suspend=True),
            "waits: it is suspended, until dljob resume (spec.suspend: false)",
        ),
        (
            entry("job", status(Phase.QUEUED, retry_at=NOW + 30, message=CRASHED)),
            f"is tried again in about 30 s: {CRASHED}",
        ),
        (
            entry("job", status(Phase.QUEUED).with_condition(ASIDE, NOW)),
            "is set aside: no valid decision can be made",
        ),
        (
            entry("job", status(Phase.QUEUED), problem="its spec cannot be read"),
            "its spec cannot be read",
        ),
    ],
    ids=["suspended", "crashed", "set aside", "unreadable"],
)
def test_job_without_gpus_says_why(one, expected):
    assert tell(scene(one)) == expected


OBSTACLES: dict[str, tuple[tuple[JobPod, ...], str]] = {
    "no pod yet": ((), "its SideCar on n1 is about to be started"),
    "a pod that comes": (
        (job_pod("job", phase=PodPhase.PENDING, reason="Pulling", message="an image"),),
        "its SideCar on n1 is pending (Pulling: an image)",
    ),
    "a pod that is lost": ((job_pod("job", phase=PodPhase.LOST),), "its SideCar on n1 is lost"),
    "a SideCar that is silent": (
        (job_pod("job", reachable=False, contact_problem="connection refused"),),
        "its SideCar on n1 does not answer (connection refused)",
    ),
    "a pod that still has it": (
        (job_pod("job", state=sidecar(**READY)), job_pod("old", state=sidecar(held=("0", "1")))),
        "it waits for old to release n1/0, n1/1",
    ),
    "itself, as it was": (
        (job_pod("job", state=sidecar(generation=1, held_generation=1, held=("0",))),),
        "its former processes on n1 are saving and ending",
    ),
    "spare interpreters": (
        (job_pod("job", state=sidecar(**READY, warmth=Warmth(wanted=2, ready=1))),),
        "its interpreters on n1 are getting ready (1 of 2); it starts without them in 30 s at most",
    ),
    "nothing": (
        (job_pod("job", state=sidecar(phase=SideCarPhase.STARTING, held=("0", "1"))),),
        "its processes are being started",
    ),
}


@pytest.mark.parametrize(("job_pods", "expected"), OBSTACLES.values(), ids=OBSTACLES)
def test_starting_job_names_its_obstacle(job_pods, expected):
    starts = entry("job", status(Phase.INITIALIZED, HERE))
    ending = entry("old", status(Phase.QUEUED, pods=(Booking(N1, 1),)), order=1)
    assert tell(scene(starts, ending, job_pods=job_pods)) == f"{BECAUSE}. Now {expected}"


def test_growing_job_trains_until_its_new_pod_is_warm():
    grown = Placement.of({N1: (0,), N2: (0, 1, 2)})
    grows = entry("job", status(Phase.ADJUSTING, grown))
    cold = sidecar(**READY, warmth=Warmth(wanted=3, ready=1))
    job_pods = (
        # It has fewer spares than it wants, too, but is not waited for.
        job_pod("job", state=sidecar(generation=1, held_generation=1, held=("0",))),
        job_pod("job", N2, state=cold),
    )
    world = replace(scene(grows, job_pods=job_pods), now=NOW + 8.0)
    assert tell(world) == (
        f"{BECAUSE}. Now it trains on as before while its interpreters on n2 are getting ready"
        " (1 of 3), for 22 s at most"
    )
    late = replace(world, now=NOW + 30.0)
    assert tell(late).endswith("Now its former processes on n1 are saving and ending")


def remaining(world: Scene, job: str = "job", *, is_measured: bool = True) -> Span | None:
    profile = make_profile()
    profiles = {profile.type: profile} if is_measured else {}
    snapshot = snapshots.take_snapshot(world, profiles=profiles, costs=Costs())
    return Outlook(world, snapshot).remaining(JobId(job))


def test_time_left_is_shown_only_if_known():
    span = remaining(scene(TRAINS, job_pods=RUNS))
    assert span == pytest.approx((250.0, 250.0 / 1.1, 250.0 / 0.9))
    assert remaining(scene(entry("job", status(Phase.QUEUED)))) is None
    endless = replace(TRAINS.job, training=replace(TRAINS.job.training, iterations=None))
    assert remaining(scene(replace(TRAINS, job=endless), job_pods=RUNS)) is None
    half = replace(TRAINS, status=replace(TRAINS.status, gang=4))
    assert remaining(scene(half, job_pods=RUNS)) is None
    assert remaining(scene(TRAINS, job_pods=RUNS), "unheard-of") is None
    assert remaining(scene(TRAINS, job_pods=RUNS), is_measured=False) == (inf, 0.0, 250.0)
    silent = replace(TRAINS, status=replace(TRAINS.status, speed=0.0))
    assert remaining(scene(silent, job_pods=RUNS), is_measured=False) is None


def rows(world: Scene):
    snapshot = snapshots.take_snapshot(world, profiles={}, costs=Costs())
    return {f"{row.node}/{row.gpu}": row for row in gpu_rows(world, snapshot.cluster)}


def test_every_gpu_is_free_reserved_in_use_or_unavailable():
    coming = entry("new", status(Phase.INITIALIZED, Placement.of({N2: (0, 1)})), order=1)
    lost = entry("lost", status(Phase.QUEUED, pods=(Booking(N2, 1),)), order=2)
    lost = replace(
        lost, status=replace(lost.status, leftover=frozenset(Placement.of({N2: (3,)}).refs()))
    )
    each = replace(TRAINS, job=replace(TRAINS.job, processes="perGpu"))
    world = scene(
        each,
        coming,
        lost,
        job_pods=(
            *RUNS,
            job_pod("new", N2, state=sidecar(**READY)),
            job_pod("lost", N2, phase=PodPhase.LOST),
        ),
    )
    found = rows(world)
    assert [found[f"n1/{index}"].state for index in range(4)] == [
        GpuState.IN_USE,
        GpuState.IN_USE,
        GpuState.FREE,
        GpuState.FREE,
    ]
    assert (found["n1/1"].job, found["n1/1"].worker) == ("job", 1)
    assert (found["n2/0"].state, found["n2/0"].job) == (GpuState.RESERVED, "new")
    assert found["n2/0"].worker is None
    # The lost pod may still use it.
    assert (found["n2/3"].state, found["n2/3"].job) == (GpuState.IN_USE, "lost")
    assert "does not answer" in found["n2/3"].reason


def test_gpu_that_changes_hands_is_shown_with_its_holder():
    old = entry("old", status(Phase.ADJUSTING, Placement.of({N1: (0,)})))
    new = entry("new", status(Phase.INITIALIZED, Placement.of({N1: (1,)})), order=1)
    job_pods = (
        job_pod("old", state=sidecar(generation=1, held_generation=1, held=("0", "1"))),
        job_pod("new", state=sidecar(**READY)),
    )
    assert rows(scene(old, new, job_pods=job_pods))["n1/1"].job == "old"

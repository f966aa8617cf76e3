"""GPUs that containers cannot use: when they are out of service, when they return, and their job."""

from dataclasses import replace

import pytest

from dljob.control.acting.job_in_scene import NAMES_S, is_ready
from dljob.control.gpus.marking import marked
from dljob.control.gpus.uuids import GpuUuids
from dljob.control.gpus.visibility import MissingGpus
from dljob.control.judging.judging import judge
from dljob.control.situation.rules import Rules
from dljob.control.situation.scene import Scene
from dljob.core.model import GpuRef, JobId, Node, NodeName
from dljob_sidecar.behaviour.events import Gone, StartFailed
from dljob_wire.messages import Gpu, Problem, Progress, State
from tests.control.deeds import deeds
from tests.control.scenes import after, cast, make_scene, new, ready, run, running, stop

A, N0 = JobId("a"), NodeName("n0")
CLOSED = "/dev/nvidia1 cannot be opened: Operation not permitted"
BLIND = Problem("GPUsNotVisible", "no GPU is to be seen in this container: NVML counts none")
WELL = (Gpu(0, "GPU-a"), Gpu(1, "GPU-b"))
LOST = (WELL[0], replace(WELL[1], lost_because=CLOSED))


def scene_of(state: State, *, holds=(0, 1), uuids=("GPU-a", "GPU-b")) -> Scene:
    """One job on a node of two GPUs, with this state of its SideCar."""
    scene = make_scene(cast("a", {"n0": holds}, n0=state))
    node = Node.of("n0", 2)
    gpus = tuple(replace(g, uuid=uuid) for g, uuid in zip(node.gpus, uuids, strict=True))
    return replace(scene, nodes={N0: replace(node, gpus=gpus)})


def training(*gpus: Gpu, incarnation="x", stalled=False, problems=()) -> State:
    told = running(run(3, 0, 1, incarnation=incarnation), incarnation=incarnation)
    progress = Progress(begun=True, stalled=stalled)
    return replace(told, gpus=gpus, progress=progress, problems=problems)


def out(missing: MissingGpus, scene: Scene) -> dict[int, str]:
    missing.update(scene)
    gpus = marked(scene.nodes[N0], missing.unavailable).gpus
    return {gpu.index: gpu.unavailable_because for gpu in gpus if gpu.unavailable_because}


EMPTY = replace(make_scene(), nodes={N0: Node.of("n0", 2)})


def test_vanished_gpu_is_out_until_its_container_is_gone():
    missing = MissingGpus()
    assert out(missing, scene_of(training(*WELL))) == {}
    told = out(missing, scene_of(training(*LOST)))
    assert told == {1: f"it vanished from a SideCar on its node: {CLOSED}"}
    assert out(missing, EMPTY) == {}, "a new container may see it"


def test_gpu_missing_in_a_new_container_is_out_until_seen():
    missing = MissingGpus()
    why = f"a new SideCar on its node does not see it: {CLOSED}"
    assert out(missing, scene_of(training(*LOST))) == {1: why}
    assert out(missing, EMPTY) == {1: why}
    assert out(missing, scene_of(training(*WELL, incarnation="y"))) == {}
    assert out(missing, EMPTY) == {}


def test_cordon_or_reinstatement_brings_gpus_back():
    missing = MissingGpus()
    assert set(out(missing, scene_of(training(*LOST)))) == {1}
    cordoned = replace(EMPTY.nodes[N0], schedulable=False)
    for nodes in ({N0: cordoned}, {}, {N0: cordoned}):
        missing.update(replace(EMPTY, nodes=nodes))
    assert out(missing, EMPTY) == {}
    missing.update(scene_of(training(*LOST)))
    assert missing.reinstate(GpuRef(N0, 1))
    assert out(missing, EMPTY) == {}


@pytest.mark.parametrize(
    ("state", "uuids", "missing"),
    [
        (training(), ("GPU-a", "GPU-b"), set()),
        (training(problems=(BLIND,)), ("", ""), set()),
        (training(WELL[1]), ("GPU-a", "GPU-b"), {0}),
        (training(Gpu(0, "GPU-z")), ("", ""), set()),
        (training(*WELL), ("", ""), set()),
    ],
)
def test_unreported_gpu_is_missing_if_it_is_expected(state, uuids, missing):
    assert set(out(MissingGpus(), scene_of(state, uuids=uuids))) == missing


def test_own_runtime_class_says_nothing_about_the_node():
    scene = scene_of(training(problems=(BLIND,)))
    entry = scene.entries[A]
    template = {"spec": {**entry.job.template.get("spec", {}), "runtimeClassName": "mine"}}
    job = replace(entry.job, template=template)
    own = replace(scene, entries={A: replace(entry, job=job)})
    assert out(MissingGpus(), own) == {}


def test_gpu_unknown_to_the_driver_is_missing():
    failed = after(
        run(3, 0, 1), StartFailed(1, Problem("UnknownGPUs", "this machine has no GPU 1"))
    )
    state = replace(failed, gpus=(WELL[0],))
    why = "a new SideCar on its node does not see it: this machine has no GPU 1"
    assert out(MissingGpus(), scene_of(state, uuids=("", ""))) == {1: why}


def judged(state: State):
    return judge(scene_of(state), Rules()).get(A)


def test_running_training_goes_on():
    verdict = judged(training(*LOST))
    assert verdict is None or verdict.status.placement is not None


@pytest.mark.parametrize(
    "state",
    [
        training(*LOST, stalled=True),
        replace(new(), gpus=LOST),
        replace(new(), problems=(BLIND,)),
        replace(
            after(run(3, 0, 1), StartFailed(1, Problem("GPUsVanished", CLOSED)), Gone(1)), gpus=LOST
        ),
    ],
    ids=["hangs", "has not begun", "sees none", "could not begin"],
)
def test_job_that_cannot_train_moves_without_a_failure(state):
    verdict = judged(state)
    status = verdict.status
    assert (status.placement, status.failures, status.setbacks) == (None, 0, 1)
    (news,) = [each for each in verdict.news if each.reason == "GPUsVanished"]
    assert news.warning
    assert "its processes cannot use GPU n0/" in news.message


def names(uuids: GpuUuids, scene: Scene) -> list[str]:
    uuids.update(scene)
    return [gpu.uuid for gpu in uuids.mark(scene).nodes[N0].gpus]


def test_uuids_are_learnt_from_complete_reports():
    uuids, unnamed = GpuUuids(), ("", "")
    assert names(uuids, scene_of(training(WELL[0]), uuids=unnamed)) == ["", ""]
    assert names(uuids, scene_of(training(*WELL), uuids=unnamed)) == ["GPU-a", "GPU-b"]
    assert names(uuids, EMPTY) == ["GPU-a", "GPU-b"]
    assert uuids.mark(EMPTY).nodes[N0] is uuids.mark(EMPTY).nodes[N0]


@pytest.mark.parametrize(
    "gpus",
    [(Gpu(0, "GPU-a"), Gpu(1, "GPU-a")), (Gpu(0), Gpu(1, "GPU-b")), (Gpu(0, "a"), Gpu(2, "b"))],
)
def test_impossible_uuids_are_not_learnt(gpus):
    assert names(GpuUuids(), scene_of(training(*gpus), uuids=("", ""))) == ["", ""]


def numbers(uuids: GpuUuids, scene: Scene) -> dict[int, str]:
    uuids.update(scene)
    return {gpu.index: gpu.uuid for gpu in uuids.mark(scene).nodes[N0].gpus}


def node_of(count: int, *job_pods: State) -> Scene:
    """A node of ``count`` unnamed GPUs, with a job for each SideCar there."""
    jobs = [cast(name, {"n0": (0,)}, n0=s) for name, s in zip("abc", job_pods, strict=False)]
    return make_scene(*jobs, nodes={"n0": count})


FOUR = tuple(Gpu(index, f"GPU-{name}") for index, name in enumerate("abcd"))
MOVED = (FOUR[0], replace(FOUR[2], index=1), replace(FOUR[3], index=2))
"""The GPUs in containers that begin after the death of GPU-b."""


def test_number_stays_with_its_gpu_when_another_dies():
    uuids = GpuUuids()
    whole = {0: "GPU-a", 1: "GPU-b", 2: "GPU-c", 3: "GPU-d"}
    old, later = training(*FOUR), training(*MOVED, incarnation="y")
    assert numbers(uuids, node_of(4, old)) == whole
    # First the node does not know; then it has fewer GPUs than before.
    assert numbers(uuids, node_of(4, old, later)) == whole
    left = {0: "GPU-a", 2: "GPU-c", 3: "GPU-d"}
    assert numbers(uuids, node_of(3, old)) == left
    assert numbers(uuids, node_of(3)) == left
    # A replacement gets the free number.
    repaired = tuple(replace(gpu, uuid=gpu.uuid.replace("b", "e")) for gpu in FOUR)
    mended = training(*repaired, incarnation="z")
    assert numbers(uuids, node_of(4, mended)) == whole | {1: "GPU-e"}


def test_lost_handle_costs_one_uuid_only():
    uuids = GpuUuids()
    hole = replace(FOUR[1], uuid="", lost_because="NVML cannot use it")
    assert numbers(uuids, node_of(3, training(FOUR[0], hole, FOUR[2]))) == {
        0: "GPU-a",
        1: "",
        2: "GPU-c",
    }
    whole = training(*FOUR[:3], incarnation="y")
    assert numbers(uuids, node_of(3, whole)) == {0: "GPU-a", 1: "GPU-b", 2: "GPU-c"}
    again = node_of(3, training(FOUR[0], hole, FOUR[2], incarnation="z"))
    assert numbers(uuids, again) == {0: "GPU-a", 1: "GPU-b", 2: "GPU-c"}


def test_gpu_held_by_index_is_that_device():
    """Its run is older than the knowledge of UUIDs, and its NVML numbers stay those of its start."""
    holder = replace(running(run(3, 3, incarnation="x"), incarnation="x"), gpus=FOUR)
    later = training(*MOVED, incarnation="y")
    uuids = GpuUuids()
    uuids.restore({N0: {0: "GPU-a", 1: "GPU-c", 2: "GPU-d"}})
    scene = node_of(3, holder, later)
    uuids.update(scene)
    named = uuids.mark(scene)
    assert GpuRef(N0, 2) in named.held_by(JobId("a"))
    assert not named.is_free_for(JobId("b"), GpuRef(N0, 2))


def test_uuids_of_the_platform_win():
    assert names(GpuUuids(), scene_of(training(*WELL), uuids=("U0", "U1"))) == ["U0", "U1"]


@pytest.mark.parametrize(
    ("state", "uuids", "age", "is_waited_for"),
    [
        (ready(), ("", ""), 1.0, True),
        (ready(), ("", ""), NAMES_S, False),
        (ready(), ("GPU-a", "GPU-b"), 1.0, False),
        (replace(ready(), gpus=WELL[:1]), ("", ""), 1.0, False),
    ],
)
def test_job_by_uuid_waits_shortly_for_uuids(state, uuids, age, is_waited_for):
    for ids, must_wait in (("uuid", is_waited_for), ("index", False)):
        cast_ = cast("a", {"n0": (0, 1)}, n0=state, ids=ids)
        scene = make_scene(cast_, now=age)  # First heard at 0.
        node = Node.of("n0", 2)
        gpus = tuple(replace(g, uuid=u) for g, u in zip(node.gpus, uuids, strict=True))
        scene = replace(scene, nodes={N0: replace(node, gpus=gpus)})
        assert is_ready(scene, A) is not must_wait


def test_pod_with_lost_gpus_is_removed_from_outside():
    told = run(3, 0, 1)
    stopping = running(told, stop(4, leave=True))
    unproven = Problem("GPUMemoryNotReleased", "GPU-b does not report its memory in use")
    stuck = replace(stopping, gpus=LOST, problems=(unproven,))
    scene = make_scene(cast("a", n0=stuck, generation=2))
    [deed] = deeds(scene).values()
    assert deed.startswith("remove: ")
    for state in (stopping, replace(stuck, gpus=WELL), replace(stuck, problems=())):
        scene = make_scene(cast("a", n0=state, generation=2))
        assert deeds(scene) == {}

"""GPUs in use by other programs are out until a SideCar sees them empty; the job moves."""

from dataclasses import replace

import pytest

from dljob.control.gpus.occupancy import RETRY_S, SETTLE_S, Occupancy
from dljob.control.judging.judging import judge
from dljob.control.situation.rules import Rules
from dljob.control.situation.scene import Scene
from dljob.core.model import GpuRef, JobId, NodeName
from dljob_sidecar.behaviour.events import Gone, StartFailed
from dljob_wire.messages import Gpu, Problem, State
from tests.control.scenes import NOW, Sat, after, cast, make_scene, ready, run

A, N0 = JobId("a"), NodeName("n0")
SAID = "GPU 1 (GPU-b): process 4711 (python) computes on it"
WHY = f"it is not empty: {SAID}"
EMPTY = (Gpu(0, "GPU-a"), Gpu(1, "GPU-b"))
BUSY = (EMPTY[0], replace(EMPTY[1], busy_unassigned=True))


def refused(
    name: str = "GPUNotEmpty", gpus: tuple[str, ...] = ("1",), seen: tuple[Gpu, ...] = BUSY
) -> State:
    problem = Problem(name, SAID, "end it", gpus)
    return replace(after(run(3, 0, 1), StartFailed(1, problem), Gone(1)), gpus=seen)


def scene_of(*states: State, now: float = NOW, reachable: bool = True) -> Scene:
    """A job for each state, all on one node."""
    jobs = [
        cast(name, {"n0": (0, 1)}, n0=Sat(state, reachable=reachable))
        for name, state in zip("abc", states, strict=False)
    ]
    return make_scene(*jobs, nodes={"n0": 2}, now=now)


def out(occupancy: Occupancy, scene: Scene) -> dict[int, str]:
    occupancy.update(scene)
    gpus = occupancy.mark(scene).nodes[N0].gpus
    return {gpu.index: gpu.unavailable_because for gpu in gpus if gpu.unavailable_because}


def test_occupied_gpu_is_out_until_it_is_seen_empty():
    occupancy = Occupancy()
    assert out(occupancy, scene_of(refused())) == {1: WHY}
    assert out(occupancy, scene_of(refused(), now=NOW + 1000.0)) == {1: WHY}
    # An older report does not count again.
    assert out(occupancy, scene_of(refused(seen=EMPTY), now=NOW + 1001.0)) == {}
    assert out(occupancy, scene_of(refused(), now=NOW + 1002.0)) == {}


def test_another_sidecar_sees_it_empty_after_a_while():
    occupancy, other = Occupancy(), replace(ready(), gpus=EMPTY)
    assert out(occupancy, scene_of(refused(seen=()), other)) == {1: WHY}
    assert out(occupancy, scene_of(refused(seen=()), other, now=NOW + SETTLE_S - 1)) == {1: WHY}
    assert out(occupancy, scene_of(refused(seen=BUSY), other, now=NOW + SETTLE_S)) == {1: WHY}
    assert out(occupancy, scene_of(other, now=NOW + SETTLE_S)) == {}


def test_unobserved_gpu_returns_after_a_while():
    occupancy = Occupancy()
    assert out(occupancy, scene_of(refused())) == {1: WHY}
    silent = scene_of(refused(seen=EMPTY), now=NOW + RETRY_S - 1, reachable=False)
    assert out(occupancy, silent) == {1: WHY}
    assert out(occupancy, scene_of(now=NOW + RETRY_S)) == {}


def test_administrator_may_reinstate_it():
    occupancy = Occupancy()
    out(occupancy, scene_of(refused()))
    assert occupancy.reinstate(GpuRef(N0, 1))
    assert not occupancy.reinstate(GpuRef(N0, 1))
    assert out(occupancy, scene_of(refused())) == {}


@pytest.mark.parametrize("gpus", [(), ("7",), ("GPU-of-another-job",)])
def test_job_takes_out_only_its_own_gpus(gpus):
    assert out(Occupancy(), scene_of(refused(gpus=gpus))) == {}


@pytest.mark.parametrize("name", ["GPUNotEmpty", "GPUsNotResolved"])
def test_job_moves_at_once_without_a_failure(name):
    scene = scene_of(refused(name))
    status = judge(scene, Rules())[A].status
    assert (status.placement, status.failures, status.setbacks) == (None, 0, 1)
    assert status.retry_at <= scene.now
    news = judge(scene, Rules())[A].news
    assert [(each.reason, each.warning) for each in news] == [(name, True)]
    # It is reported once for each start. It is said once of each start.
    known = scene.with_statuses({A: replace(status, placement=scene.entries[A].status.placement)})
    again = judge(known, Rules()).get(A)
    assert again is None or name not in [each.reason for each in again.news]

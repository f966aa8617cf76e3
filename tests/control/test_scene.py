"""Which job may hold which GPU, and which start may go on."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.situation.ports import PodPhase
from dljob.control.situation.process_sets import find_intact
from dljob.core.model import GpuRef, JobId, NodeName, Phase
from dljob_sidecar.behaviour.events import RankEnded
from tests.control.scenes import (
    ENDED,
    EPOCH,
    PENDING,
    Sat,
    cast,
    ended,
    make_scene,
    new,
    ready,
    released,
    run,
    running,
    stop,
)

A, B = JobId("a"), JobId("b")
N0, N1 = NodeName("n0"), NodeName("n1")


def gpus(*numbers, node=N0):
    return {GpuRef(node, number) for number in numbers}


def held(sat, **rest):
    """The GPUs that a job may hold with GPU 0 of this decision and GPU 3 of the last one."""
    rest.setdefault("leftover", frozenset(gpus(3)))
    return make_scene(cast("a", {"n0": (0,)}, generation=4, n0=sat, **rest)).held_by(A)


@pytest.mark.parametrize(
    ("sat", "numbers"),
    [
        pytest.param(ENDED, (), id="it has ended"),
        pytest.param(PENDING, (), id="only this controller can command it, and has not"),
        pytest.param(Sat(phase=PodPhase.PENDING), (0, 3), id="a former controller may have"),
        pytest.param(Sat(phase=PodPhase.LOST), (0, 3), id="its state is unknown"),
        pytest.param(ready(), (), id="it has run nothing, and obeys this controller"),
        pytest.param(new(), (0, 3), id="it may still obey a former controller"),
        pytest.param(Sat(new(), fresh=True), (), id="no former controller can have commanded it"),
        pytest.param(running(run(7, 1)), (1,), id="its report is exact"),
        pytest.param(Sat(running(run(7, 1)), reachable=False), (1,), id="also when it is silent"),
        pytest.param(running(run(7, 1), run(9, 0)), (0, 1), id="the next run takes its own"),
        pytest.param(running(run(7, 1), stop(8)), (1,), id="it stops"),
        pytest.param(released(run(7, 1), stop(8)), (), id="it has stopped"),
        pytest.param(ended(run(7, 1)), (), id="it has ended by itself"),
        pytest.param(Sat(ready(), declared=run(9, 0)), (0,), id="it may have the new run"),
        pytest.param(
            Sat(ready(), declared=stop(10), overtaken=(run(9, 2),)), (2,), id="or the run before"
        ),
        pytest.param(
            Sat(running(run(9, 0)), overtaken=(run(7, 2),)), (0,), id="it has a newer run"
        ),
        pytest.param(
            running(run(7, 1, epoch=1)), (0, 1, 3), id="the run of another epoch, and ours"
        ),
        pytest.param(running(run(7, "GPU-strange")), (0, 1, 2, 3), id="an unknown GPU, so any"),
    ],
)
def test_pod_may_hold(sat, numbers):
    assert held(sat) == gpus(*numbers)


def test_decisions_on_other_nodes_do_not_count():
    other = frozenset({GpuRef(N1, 1)})
    assert held(new(), leftover=other) == gpus(0)


def test_gpus_may_be_named_by_uuid():
    scene = make_scene(cast("a", {"n0": (0,)}, n0=running(run(3, "GPU-8f7c"))))
    node = scene.nodes[N0]
    named = replace(node, gpus=(node.gpus[0], replace(node.gpus[1], uuid="GPU-8f7c")))
    scene = replace(scene, nodes={N0: named})
    assert scene.held_by(A) == gpus(1)


def test_gpu_with_two_holders_is_free_for_neither():
    scene = make_scene(
        cast("a", generation=2, n0=running(run(3, 0))),
        cast("b", {"n0": (0,)}, n0=running(run(3, 0))),
    )
    assert not scene.is_free_for(A, GpuRef(N0, 0))
    assert not scene.is_free_for(B, GpuRef(N0, 0))
    assert scene.is_free_for(A, GpuRef(N0, 1))


def undisturbed(*sats, **rest):
    job_pods = {f"n{n}": sat for n, sat in enumerate(sats)}
    scene = make_scene(cast("a", {"n2": (0,)}, generation=4, job_pods=job_pods, **rest))
    return find_intact(scene, A)


RUN0, RUN1 = run(3, 0, peers=2), run(3, 0, peers=2, at=1)


def test_whole_start_may_go_on():
    start = undisturbed(running(RUN0), running(RUN1))
    assert (start.generation, start.is_running) == (3, True)
    assert start.gpus == gpus(0) | gpus(0, node=N1)


def test_unused_pods_do_not_matter():
    assert undisturbed(running(run(3, 0)), Sat(ready(), fresh=True)) is not None


@pytest.mark.parametrize(
    "sats",
    [
        pytest.param((ready(),), id="nothing lives"),
        pytest.param((running(RUN0),), id="a container is missing"),
        pytest.param((running(RUN0), running(RUN1, stop(4))), id="one was ordered to stop"),
        pytest.param(
            (running(RUN0), Sat(running(RUN1), declared=stop(4))), id="or the stop is on its way"
        ),
        pytest.param((running(run(3, 0), run(5, 0)),), id="it changes"),
        pytest.param(
            (running(RUN0), running(RUN1, RankEnded(1, 1, 1))), id="a process has crashed"
        ),
        pytest.param((running(run(3, 0, epoch=EPOCH - 1)),), id="it may obey another controller"),
        pytest.param((running(run(3, 0)), running(run(5, 0))), id="two starts"),
        pytest.param((running(run(3, 0)), Sat(phase=PodPhase.LOST)), id="its state is unknown"),
    ],
)
def test_disturbed_start_may_not_go_on(sats):
    assert undisturbed(*sats) is None


def test_broken_start_may_not_go_on():
    assert undisturbed(running(run(3, 0)), broken=3) is None


def test_latest_start_is_that_of_its_pods():
    pods: dict[str, Any] = {
        "n0": released(run(3, 0), stop(4)),
        "n1": running(run(5, 0)),
        "n2": ready(),
    }
    scene = make_scene(cast("a", generation=4, phase=Phase.QUEUED, **pods))
    assert [job_pod.key.node for job_pod in scene.latest_start(A)] == [N1]

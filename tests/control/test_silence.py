"""A silent SideCar is ended; a controller that hears none of many suspects itself."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from dljob.control.deciding.snapshots import take_snapshot
from dljob.control.judging.silence import AVOID_S, SilentPlaces
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import ConditionType
from dljob.core.model import JobId, NodeName, Phase
from dljob.core.placement.needs import Needs
from dljob.core.profiles import Costs
from tests.control.governing import RULES, Government, governed, has_begun, status, submit, told
from tests.control.scenes import NOW, Sat, cast, make_scene, ready

LONG_S = 30 * RULES.lost_seconds
"""Ten minutes."""


@contextmanager
def trainings(
    nodes: int, *, gpus: int = 1, jobs: int | None = None
) -> Iterator[tuple[Any, list[JobId]]]:
    """Train jobs of one GPU each, by default one on each node."""
    with governed({f"n{number}": gpus for number in range(nodes)}) as government:
        government.begin()
        names = [submit(government, f"job-{number}") for number in range(jobs or nodes)]
        government.world.run(60, until=lambda: has_begun(government, *names))
        assert has_begun(government, *names)
        government.world.run(5)  # A start counts as used once it is recorded.
        yield government, names


def cut(government: Government, nodes: Iterable[NodeName]) -> None:
    """Let no request of a controller arrive at these nodes."""
    government.world.silent.update(nodes)
    for reign in government.reigns:
        reign.dialer.notice_silence()


def node_of(government: Government, job: JobId) -> NodeName:
    (node,) = status(government, job).placement.nodes
    return NodeName(node)


def removed(government: Government) -> set[str]:
    """The pods that a controller removed, each as JOB on NODE."""
    lines = (line.partition(" removes ")[2] for line in government.world.log)
    return {line.partition(":")[0] for line in lines if line}


def aside(government: Government, job: JobId) -> tuple[bool, str] | None:
    condition = status(government, job).condition(ConditionType.SET_ASIDE)
    return None if condition is None else (condition.status, condition.reason)


def starts(government: Government, jobs: Iterable[JobId]) -> dict[JobId, int]:
    return {job: status(government, job).run_generation for job in jobs}


@pytest.mark.parametrize("nodes", [2, 4, 12])
def test_total_silence_ends_no_training(nodes: int):
    with trainings(nodes) as (government, jobs):
        before = starts(government, jobs)
        cut(government, government.world.nodes)
        government.world.run(LONG_S)
        assert not removed(government)
        for job in jobs:
            assert aside(government, job) == (True, "SideCarsSilent")
            assert [reason for reason, _ in told(government, job)].count("SetAside") == 1
        assert government.scene.is_suspicious

        government.world.silent.clear()
        government.world.run(LONG_S)
        assert not removed(government)
        assert starts(government, jobs) == before
        assert {aside(government, job) for job in jobs} == {(False, "Sound")}
        assert has_begun(government, *jobs)
        assert not government.scene.is_suspicious


def test_one_silent_sidecar_of_four_is_removed():
    with trainings(4) as (government, jobs):
        node = node_of(government, jobs[1])
        cut(government, {node})
        government.world.run(RULES.lost_seconds / 2)
        assert not removed(government)
        government.world.run(LONG_S)
        assert removed(government) == {f"{jobs[1]} on {node}"}
        assert has_begun(government, jobs[0], *jobs[2:])
        assert {aside(government, job) for job in jobs} == {None}


def test_silent_sidecar_that_is_alone_is_removed():
    with trainings(1) as (government, (job,)):
        cut(government, {node_of(government, job)})
        government.world.run(LONG_S)
        assert removed(government) == {f"{job} on n0"}


@pytest.mark.parametrize(("count", "are_many"), [(2, False), (3, True)])
def test_more_than_two_silent_of_twelve_are_suspicious(count: int, are_many: bool):
    with trainings(12) as (government, jobs):
        lost = {node_of(government, job) for job in jobs[:count]}
        cut(government, lost)
        government.world.run(LONG_S)
        assert bool(removed(government)) is not are_many
        assert government.scene.is_suspicious is are_many


def test_sidecars_that_fall_silent_in_turn_are_not_removed():
    with trainings(4) as (government, jobs):
        for job in jobs:
            cut(government, {node_of(government, job)})
            government.world.run(RULES.lost_seconds / 5)
        government.world.run(LONG_S)
        assert not removed(government)


def test_new_leader_that_hears_no_sidecar_removes_none():
    with trainings(4) as (government, jobs):
        before = starts(government, jobs)
        cut(government, government.world.nodes)
        government.world.run(RULES.lost_seconds / 2)
        government.succeed()
        government.world.run(LONG_S)
        assert not removed(government)
        assert {aside(government, job) for job in jobs} == {(True, "SideCarsSilent")}
        government.world.silent.clear()
        government.world.run(LONG_S)
        assert starts(government, jobs) == before
        assert has_begun(government, *jobs)


def test_silence_is_counted_again_once_most_are_back():
    with trainings(4) as (government, jobs):
        cut(government, government.world.nodes)
        government.world.run(LONG_S)
        for job in jobs[1:]:
            government.world.silent.discard(node_of(government, job))
        government.world.run(60, until=lambda: not government.scene.is_suspicious)
        assert not government.scene.is_suspicious
        government.world.run(RULES.lost_seconds / 2)
        assert not removed(government)
        government.world.run(2 * RULES.lost_seconds)
        assert removed(government) == {f"{jobs[0]} on {node_of(government, jobs[0])}"}


def test_pods_of_a_dead_node_are_not_suspicious():
    with trainings(3, gpus=4, jobs=8) as (government, jobs):
        dead = node_of(government, jobs[0])
        assert sum(node_of(government, job) == dead for job in jobs) > 2
        world = government.world
        cut(government, {dead})
        world.run(RULES.lost_seconds / 2)
        world.lost_nodes[dead] = world.nodes.pop(dead)
        government.wake()
        world.run(LONG_S, until=lambda: government.scene.is_suspicious)
        assert not government.scene.is_suspicious
        assert {aside(government, job) for job in jobs} == {None}


def test_newcomer_starts_where_sidecars_answer():
    with trainings(4, gpus=2, jobs=5) as (government, jobs):
        heard = node_of(government, jobs[0])
        cut(government, set(government.world.nodes) - {heard})
        government.world.run(60, until=lambda: government.scene.is_suspicious)
        assert government.scene.is_suspicious
        for job in [each for each in jobs if node_of(government, each) == heard]:
            government.world.cancel(job)
        newcomers = [submit(government, f"new-{number}") for number in range(4)]
        government.world.run(60)
        placed = [job for job in newcomers if status(government, job).placement is not None]
        assert {node_of(government, job) for job in placed} <= {heard}
        assert not removed(government)


def test_cancelled_job_ends_in_spite_of_suspicion():
    with trainings(4) as (government, jobs):
        cut(government, government.world.nodes)
        government.world.run(60, until=lambda: government.scene.is_suspicious)
        node = node_of(government, jobs[0])
        government.world.cancel(jobs[0])
        government.world.run(LONG_S)
        assert removed(government) == {f"{jobs[0]} on {node}"}
        assert all(status(government, job).phase is Phase.RUNNING for job in jobs[1:])


def with_pod(serial: int, *, at: float, is_heard: bool = False) -> Scene:
    """A scene with a pod of job a on n0, long silent or heard."""
    sat = Sat(ready() if is_heard else None, since=at - 61.0, serial=serial)
    scene = make_scene(cast("a", {"n0": (0,)}, n0=sat), now=at)
    return replace(scene, needs={JobId("a"): Needs()})


def nodes_for(scene: Scene) -> frozenset[str]:
    (state,) = take_snapshot(scene, profiles={}, costs=Costs()).running
    assert state.needs is not None
    return state.needs.nodes if state.needs.nodes is not None else frozenset(scene.nodes)


def test_job_avoids_a_node_after_two_silent_pods():
    places, others = SilentPlaces(), {"n1", "n2"}
    assert nodes_for(places.update(with_pod(1, at=NOW))) == {"n0", *others}
    assert nodes_for(places.update(with_pod(1, at=NOW + 5))) == {"n0", *others}
    assert nodes_for(places.update(with_pod(2, at=NOW + 70))) == others
    # It tries again after a while, and once is enough then.
    later = NOW + 75 + AVOID_S
    assert nodes_for(places.update(replace(with_pod(2, at=NOW + 70), now=later))) == {"n0", *others}


def test_job_returns_to_a_node_where_a_pod_answered():
    places = SilentPlaces()
    places.update(with_pod(1, at=NOW))
    places.update(with_pod(2, at=NOW + 30, is_heard=True))
    assert not places.update(with_pod(2, at=NOW + 100)).avoided

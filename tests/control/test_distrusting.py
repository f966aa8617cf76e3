"""A controller compares a SideCar's report with its own knowledge."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from dljob.control.acting.recording import Records
from dljob.control.judging.distrusting import DistrustedPods
from dljob.control.observing import Observer
from dljob.control.scheduling import Options
from dljob.control.situation.dialer import Contact, Contacts, ForeignEpoch
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import MOST_JUMP, Behind, Fenced, Observation, Platform, PodKey
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import MOST_RESTARTS, Commanded, Sent
from dljob.core import policies
from dljob.core.model import JobId, NodeName
from dljob_sidecar.behaviour.events import Started
from dljob_wire.messages import Phase, Problem, State
from tests.control.scenes import EPOCH, NOW, Sat, after, make_scene, run, running, stop
from tests.control.scenes import cast as play

HIGHEST = 2**53 - 1


class Record:
    """The record of the current leader."""

    def __init__(self, *, is_overtaken: bool = False) -> None:
        self.is_over = is_overtaken
        self.asked = 0

    async def is_overtaken(self) -> bool:
        self.asked += 1
        return self.is_over


def scene_of(state: State | None, **rest: Any) -> Scene:
    """A job with GPU 0 of n0 whose SideCar reports ``state``, and another job with GPU 1."""
    sat = Sat(state, **rest)
    return make_scene(play("a", {"n0": [0]}, n0=sat), play("b", {"n0": [1]}, n0=running(run(3, 1))))


def pod_in(scene: Scene) -> JobPod:
    [(_, job_pod)] = scene.pods_of(next(iter(scene.entries))).items()
    return job_pod


def examine(
    scene: Scene, sent: Commanded | None = None, record: Record | None = None, **rest: Any
) -> tuple[DistrustedPods, str]:
    """Examine the first job's report; return the reason to distrust it, too."""
    distrust = DistrustedPods(cast(Platform, record or Record()), EPOCH, **rest)
    job_pod = pod_in(scene)
    commanded: Mapping[Any, Commanded] = {}
    if sent is not None:
        commanded = {(job_pod.key.job, job_pod.booking): sent}
    asyncio.run(distrust.examine(scene, [job_pod], commanded=commanded))
    lie = distrust.found.get((job_pod.key.job, job_pod.booking, job_pod.pod.start))
    return distrust, lie.sentence if lie is not None else ""


def doubted(epoch: int, installation: str = "", *, state: State | None = None) -> Scene:
    """The first job's SideCar obeys another controller."""
    scene = scene_of(state, since=1.0, reachable=False)
    job_pod = pod_in(scene)
    contact = replace(job_pod.contact, foreign=ForeignEpoch(epoch, installation))
    return with_job_pod(scene, replace(job_pod, contact=contact))


def with_job_pod(scene: Scene, job_pod: JobPod) -> Scene:
    return replace(scene, job_pods={**scene.job_pods, job_pod.key.job: {job_pod.key.node: job_pod}})


OURS = Commanded(run(3, 0), NOW - 1.0, frozenset({"0"}))


def test_obedient_sidecar_is_believed():
    for state in (running(run(3, 0)), after(run(3, 0))):
        assert examine(scene_of(state), OURS)[1] == ""


@pytest.mark.parametrize("epoch", [EPOCH + 1, EPOCH + MOST_JUMP + 1, HIGHEST])
def test_unrecorded_later_leader_is_a_lie(epoch):
    record = Record()
    _, why = examine(doubted(epoch, state=running(run(3, 0))), OURS, record)
    assert f"epoch {epoch}" in why
    assert record.asked == 1


def test_recorded_later_leader_ends_the_controller():
    with pytest.raises(Fenced, match="obeys another controller"):
        examine(doubted(EPOCH + 1), None, Record(is_overtaken=True))


def test_later_epochs_than_recorded_mean_a_restored_record():
    distrust, why = examine(doubted(EPOCH + 5))
    assert why == ""
    with pytest.raises(Behind, match="restored from a backup") as behind:
        distrust.end_meeting()
    assert behind.value.epoch == EPOCH + 6


@pytest.mark.parametrize(
    ("scene", "may_rise"),
    [
        (doubted(EPOCH + MOST_JUMP + 1), True),
        (doubted(EPOCH + 1, "another"), True),
        (doubted(EPOCH + 1), False),
    ],
    ids=["too far", "of another installation", "once is enough"],
)
def test_report_of_a_sidecar_cannot_use_up_epochs(scene, may_rise):
    distrust, why = examine(scene, may_rise=may_rise)
    assert "it obeys another controller" in why
    distrust.end_meeting()


def lies() -> dict[str, tuple[State, Commanded | None, str]]:
    trains = running(run(3, 0))
    return {
        "never sent": (trains, None, "has sent it no command"),
        "newer than sent": (running(run(HIGHEST, 0)), OURS, f"obeys generation {HIGHEST} of this"),
        "other than sent": (
            running(run(3, 1)),
            OURS,
            "obeys another command of generation 3",
        ),
        "newer than decided": (running(run(HIGHEST, 0, epoch=1)), None, "the latest decided is 3"),
        "another command shown": (replace(trains, generation=2), OURS, "shows another command"),
        "released and held": (replace(trains, released=True), OURS, "contradicts that"),
        "trains without GPUs": (replace(trains, held=()), OURS, "contradicts that"),
        "rests and holds": (replace(trains, phase=Phase.STOPPED), OURS, "contradicts that"),
        "holds more": (replace(trains, held=("0", "1", "2")), OURS, "other GPUs than those of the"),
        "held more before": (
            replace(after(run(3, 0), Started(1), run(5, 0)), held=("0", "1")),
            replace(OURS, target=run(5, 0)),
            "holds GPU n0/1, which was decided for b",
        ),
    }


@pytest.mark.parametrize("name", lies())
def test_impossible_report_is_found(name):
    state, sent, expected = lies()[name]
    assert expected in examine(scene_of(state), sent)[1]


def test_start_that_a_restored_record_lacks_is_believed():
    """An earlier controller recorded this start before it ordered it: no other job is given these GPUs."""
    assert examine(scene_of(running(run(3, 0, 2, epoch=1))))[1] == ""


def test_inherited_pod_keeps_a_contested_gpu_until_its_end():
    scene = scene_of(running(run(3, 0, 1, epoch=1)))
    distrust, why = examine(scene)
    assert "was decided for b" in why
    job_pod = pod_in(scene)
    lie = distrust.found.get((job_pod.key.job, job_pod.booking, job_pod.pod.start))
    assert lie is not None
    untrusted = replace(job_pod, untrusted=lie.sentence, claimed=lie.claimed)
    after_it = with_job_pod(scene, untrusted)
    [mine] = {ref for ref in after_it.may_hold(untrusted) if ref.number == 1}
    assert len(after_it.holders[mine]) == 2


def test_disobedient_sidecar_is_ended_in_time():
    state = running(run(3, 0))
    at = NOW - 60.0 - 10.0 - 300.0
    late = Commanded(stop(4), at - 1.0, frozenset({"0"}))
    assert "ordered it to stop 371 s ago" in examine(scene_of(state), late)[1]
    assert examine(scene_of(state), replace(late, at=at + 1.0))[1] == ""
    stuck = replace(state, problems=(Problem("ProcessesDoNotEnd", "they still live"),))
    assert examine(scene_of(stuck), late)[1] == ""
    assert examine(scene_of(stuck), replace(late, at=NOW - 2300.0))[1] != ""


def test_untrusted_pod_keeps_its_gpus():
    scene = scene_of(after(run(3, 0), Started(1)))
    job_pod = replace(pod_in(scene), untrusted="it lies")
    assert job_pod.state is None
    assert not job_pod.has_ended
    assert {ref.number for ref in with_job_pod(scene, job_pod).may_hold(job_pod)} == {0}


def test_another_container_start_is_another_witness():
    scene = doubted(HIGHEST)
    distrust, why = examine(scene, may_rise=False)
    assert why
    job_pod = pod_in(scene)
    assert (job_pod.key.job, job_pod.booking, "17 4711") not in distrust.found


def test_restarted_sidecar_gets_new_time_to_obey():
    again = after(incarnation="y")
    long_ago = Commanded(run(3, 0), 1.0, frozenset({"0"}))
    assert examine(scene_of(again), long_ago)[1] == ""
    restless = replace(long_ago, restarts=(NOW,) * MOST_RESTARTS)
    assert "has still not done so" in examine(scene_of(again), restless)[1]


def test_container_start_resets_the_time_to_obey():
    late = Commanded(run(3, 0), 1.0, frozenset({"0"}), restarts=(NOW,) * MOST_RESTARTS, start="7")
    assert examine(scene_of(after(incarnation="y"), pod={"start": "8"}), late)[1] == ""
    assert examine(scene_of(after(incarnation="y"), pod={"start": "7"}), late)[1] != ""


class Cluster(Record):
    """A platform with the pods of a scene; a late report arrives when it is asked for the leader."""

    def __init__(self, scene: Scene, reports: "Reports", late: tuple[PodKey, Contact]) -> None:
        super().__init__()
        self._scene = scene
        self._reports = reports
        self._late = late

    async def observe(self) -> Observation:
        job_pods = (
            job_pod for job_pods in self._scene.job_pods.values() for job_pod in job_pods.values()
        )
        return Observation(
            self._scene.entries,
            tuple(self._scene.nodes.values()),
            {job_pod.key: job_pod.pod for job_pod in job_pods},
        )

    async def is_overtaken(self) -> bool:
        key, contact = self._late
        self._reports.contacts[key] = contact
        return await super().is_overtaken()


class Reports:
    """The contacts of a scene, as a dialer has them."""

    def __init__(self, scene: Scene) -> None:
        self.contacts = {
            job_pod.key: job_pod.contact
            for job_pods in scene.job_pods.values()
            for job_pod in job_pods.values()
        }

    def follow(self, entries: object, addresses: object, *, now: float) -> None:
        """There is nothing to dial."""

    def find(self, key: PodKey) -> Contact:
        return self.contacts[key]


def test_report_during_the_leader_check_is_examined():
    inherited = play("b", {"n0": [1]}, n0=running(run(3, 1, epoch=EPOCH - 1)))
    doubtful = doubted(EPOCH + 1, state=running(run(3, 0)))
    own = play("a", {"n0": [0]}, n0=Sat(None))
    scene = with_job_pod(make_scene(own, inherited), pod_in(doubtful))
    b = PodKey(JobId("b"), NodeName("n0"))
    # The controller has commanded nothing, so that no SideCar can obey it.
    late = Contact(running(run(3, 1)), reachable=True)
    reports = Reports(scene)
    platform = cast(Platform, Cluster(scene, reports, (b, late)))
    observer = Observer(
        platform,
        cast(Contacts, reports),
        sent=Sent(),
        records=Records(platform),
        quarantine=Quarantine(),
        options=Options(policy=policies.make("adaptive")),
        epoch=EPOCH,
        clock=lambda: NOW,
    )
    found = asyncio.run(observer.observe())
    reasons = {
        job: job_pod.untrusted
        for job, job_pods in found.job_pods.items()
        for job_pod in job_pods.values()
    }
    assert "epoch 3" in reasons[JobId("a")]
    assert "has sent it no command" in reasons[JobId("b")]

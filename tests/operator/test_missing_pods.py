"""What proves the end of a pod whose object was removed by force."""

import pytest

from dljob.control.situation.ports import Address, Pod, PodKey, PodPhase
from dljob.core.model import JobId, NodeName
from dljob.operator.pods.booked_pods import MissingPods
from dljob.operator.proofs import OUT_OF_SERVICE
from dljob_sidecar.behaviour.events import Gone, RankEnded
from tests.control.scenes import Sat, ready, released, run, running, stop

KEY = PodKey(JobId("lab/job"), NodeName("n1"))
WAS = Pod(KEY, PodPhase.UP, Address(host="10.0.0.1", port=8470, name="x.job.dljob"))


def node(boot="first", taints=()):
    return {"metadata": {"name": "n1"}, "spec": {"taints": list(taints)}} | {
        "status": {"nodeInfo": {"bootID": boot}}
    }


def absent(before):
    known = MissingPods()
    known.note(KEY, "job-1", last=WAS, node=before)
    return known


def test_missing_object_proves_nothing():
    for now in (node(), node(boot="")):
        pod = absent(node()).read(KEY, "job-1", node=now)
        assert (pod.phase, pod.reason, pod.address) == (PodPhase.LOST, "PodVanished", WAS.address)
        assert "reboot the machine" in pod.message


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (None, "NodeGone"),
        (node(taints=[{"key": OUT_OF_SERVICE}]), "NodeGone"),
        (node(boot="second"), "NodeRebooted"),
    ],
)
def test_missing_or_rebooted_machine_proves_the_end(now, reason):
    pod = absent(node()).read(KEY, "job-1", node=now)
    assert (pod.phase, pod.reason) == (PodPhase.ENDED, reason)


def test_unknown_boot_proves_nothing():
    assert absent(None).read(KEY, "job-1", node=node()).phase is PodPhase.LOST
    assert absent(node(boot="")).read(KEY, "job-1", node=node()).phase is PodPhase.LOST


def missing(*, was_used, at=None):
    known = MissingPods()
    known.note_missing(KEY, "job-1", node=at or node(), was_used=was_used)
    return known


def test_unused_pod_has_ended():
    pod = missing(was_used=False).read(KEY, "job-1", node=node())
    assert (pod.phase, pod.reason) == (PodPhase.ENDED, "NeverUsed")


def test_used_pod_without_an_object_is_lost():
    known = missing(was_used=True)
    assert known.read(KEY, "job-1", node=node()).phase is PodPhase.LOST
    assert known.read(KEY, "job-1", node=node(boot="second")).phase is PodPhase.ENDED
    assert known.read(KEY, "job-1", node=None).phase is PodPhase.ENDED
    known = absent(node())
    known.note_missing(KEY, "job-1", node=node(), was_used=False)
    assert known.read(KEY, "job-1", node=node()).phase is PodPhase.LOST, "it existed"


def test_unbooked_pod_is_forgotten():
    known = absent(node())
    known.keep([])
    assert known.read(KEY, "job-1", node=node()) is None


LEAVES = stop(8, leave=True)


@pytest.mark.parametrize(
    ("state", "has_ended"),
    [
        (None, False),
        (running(run(3, 0)), False),
        (ready(), False),
        (released(run(3, 0), stop(8)), False),
        (running(run(3, 0), LEAVES), False),
        (running(run(3, 0), LEAVES, RankEnded(1, 0, 0), Gone(1)), True),
    ],
)
def test_leaving_sidecar_without_gpus_proves_the_end(state, has_ended):
    lost = Sat(state, phase=PodPhase.LOST, pod={"vanished": True})
    assert lost.job_pod(KEY.job, KEY.node).has_ended is has_ended
    # The container of any other pod may start again.
    assert not Sat(state, phase=PodPhase.LOST).job_pod(KEY.job, KEY.node).has_ended

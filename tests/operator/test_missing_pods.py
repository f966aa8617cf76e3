"""
A pod whose object was removed by force: the facts that prove its end then, and those that do not.
"""

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


def test_that_its_object_is_gone_proves_nothing_and_its_sidecar_is_spoken_to_yet():
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
def test_that_the_machine_is_gone_or_another_start_of_it_does(now, reason):
    pod = absent(node()).read(KEY, "job-1", node=now)
    assert (pod.phase, pod.reason) == (PodPhase.ENDED, reason)


def test_a_start_of_a_machine_that_was_not_known_before_is_no_proof():
    assert absent(None).read(KEY, "job-1", node=node()).phase is PodPhase.LOST
    assert absent(node(boot="")).read(KEY, "job-1", node=node()).phase is PodPhase.LOST


def missing(*, was_used, at=None):
    known = MissingPods()
    known.note_missing(KEY, "job-1", node=at or node(), was_used=was_used)
    return known


def test_one_that_nothing_ever_ran_in_need_not_be_there_to_have_ended():
    pod = missing(was_used=False).read(KEY, "job-1", node=node())
    assert (pod.phase, pod.reason) == (PodPhase.ENDED, "NeverUsed")


def test_one_that_was_used_and_is_not_there_is_as_lost_as_one_that_was_seen_to_go():
    known = missing(was_used=True)
    assert known.read(KEY, "job-1", node=node()).phase is PodPhase.LOST
    assert known.read(KEY, "job-1", node=node(boot="second")).phase is PodPhase.ENDED
    assert known.read(KEY, "job-1", node=None).phase is PodPhase.ENDED
    known = absent(node())
    known.note_missing(KEY, "job-1", node=node(), was_used=False)
    assert known.read(KEY, "job-1", node=node()).phase is PodPhase.LOST, "it was seen"


def test_what_nobody_has_booked_any_more_is_forgotten():
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
def test_the_word_of_a_sidecar_that_leaves_and_has_released_all_is_a_proof(state, has_ended):
    lost = Sat(state, phase=PodPhase.LOST, pod={"vanished": True})
    assert lost.job_pod(KEY.job, KEY.node).has_ended is has_ended
    # Of any other pod its container may be started again.
    assert not Sat(state, phase=PodPhase.LOST).job_pod(KEY.job, KEY.node).has_ended

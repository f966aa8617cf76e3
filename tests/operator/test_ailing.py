"""Why pods are not up or have ended, in the documents of real kubelets and controllers."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.situation.ports import Pod, PodKey, PodPhase
from dljob.core.model import JobId, NodeName
from dljob.operator.pods.pod_states import read_pod
from dljob_wire.codec import encode_left
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.messages import Process, State

Json = dict[str, Any]

KEY = PodKey(JobId("lab/job"), NodeName("n1"))
NODE = {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
RUNS = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def pod(phase: str, *containers: Json, deleted: bool = False, bound: bool = True, **more: Any):
    """A pod in its kubelet's words; all containers except ``trainer`` are init containers."""
    metadata = {"name": "job-1"} | ({"deletionTimestamp": "2026"} if deleted else {})
    inits = [each for each in containers if each["name"] != "trainer"]
    others = [each for each in containers if each["name"] == "trainer"]
    status = {"phase": phase, "initContainerStatuses": inits, "containerStatuses": others, **more}
    return {"metadata": metadata, "spec": {"nodeName": "n1"} if bound else {}, "status": status}


def container(state: Json, last: Json | None = None, name: str = "trainer") -> Json:
    return {"name": name, "state": state, "lastState": last or {}}


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def ended(code: int, reason: str = "Error", message: str = "") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def disrupted(reason: str) -> list[Json]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "so"}]


def read(document: Json) -> Pod:
    return read_pod(KEY, document, node=NODE, uid="uid")


LEFT = State("x", 9, SideCarPhase.EXITED, released=True, epoch=2, generation=6, held_generation=5)
MESSAGE = encode_left(replace(LEFT, processes=(Process(0, 0, exit_code=0),))).decode()


def test_left_message_is_read_from_the_container_status():
    last = container(RUNS, ended(137, message=MESSAGE))
    waits = container(waiting("CrashLoopBackOff"), ended(137, message=MESSAGE))
    for document, phase in (
        (pod("Succeeded", container(ended(0, "Completed", MESSAGE))), PodPhase.ENDED),
        (pod("Running", last, podIP="10.0.0.7"), PodPhase.UP),
        (pod("Running", waits), PodPhase.PENDING),
    ):
        seen = read(document)
        assert seen.phase is phase
        assert seen.left is not None
        assert (seen.left.incarnation, seen.left.held_generation) == ("x", 5)
        assert "incarnation" not in seen.message


def test_message_of_a_failed_training_is_shown_to_users():
    for text in ("loss is NaN", "{}", '{"incarnation": 7}', "\ud800", "[" * 4096):
        seen = read(pod("Failed", container(ended(3, message=text))))
        assert seen.left is None
        assert seen.message == f"container trainer ended with exit code 3: {text}"


PULLING = 'Back-off pulling image "lab/train:1": ErrImagePull: not found'
MISSING = 'secret "token" not found'
FATAL, STUCK, BOTH, NEITHER = (True, False), (False, True), (True, True), (False, False)


@pytest.mark.parametrize(
    ("found", "reason", "told", "whose"),
    [
        (waiting("ImagePullBackOff", PULLING), "ImagePullBackOff", PULLING, STUCK),
        (waiting("ErrImagePull", "not found"), "ImagePullBackOff", "not found", STUCK),
        (waiting("InvalidImageName", "bad"), "InvalidImageName", "bad", BOTH),
        (waiting("ErrImageNeverPull", "absent"), "ErrImageNeverPull", "absent", BOTH),
        (
            waiting("CreateContainerConfigError", MISSING),
            "CreateContainerConfigError",
            MISSING,
            STUCK,
        ),
        (waiting("CreateContainerError", "no disk"), "CreateContainerError", "no disk", STUCK),
        (waiting("RunContainerError"), "RunContainerError", "does not start", STUCK),
        (waiting("ContainerCreating"), "", "kubectl describe pod job-1", NEITHER),
        (waiting("PodInitializing"), "", "kubectl describe pod job-1", NEITHER),
    ],
)
def test_waiting_container_gives_its_reason(found, reason, told, whose):
    seen = read(pod("Pending", container(found)))
    assert (seen.phase, seen.reason) == (PodPhase.PENDING, reason)
    assert told in seen.message
    assert (seen.fault, seen.stuck) == whose


@pytest.mark.parametrize(
    ("last", "reason", "told", "whose"),
    [
        (ended(137, "OOMKilled"), "OOMKilled", "raise resources.limits.memory", FATAL),
        (ended(127, message="a\nno python"), "ContainerFailed", "code 127: no python", BOTH),
        (ended(126), "ContainerFailed", "exit code 126", BOTH),
        (ended(1), "ContainerFailed", "exit code 1", NEITHER),
        (ended(128, "StartError", "exec: no"), "StartError", "(StartError): exec: no", NEITHER),
    ],
)
def test_failed_container_says_how_it_ended(last, reason, told, whose):
    backs_off = read(pod("Running", container(waiting("CrashLoopBackOff", "back-off"), last)))
    between = read(pod("Running", container(last)))
    for seen in (backs_off, between):
        assert (seen.phase, seen.reason) == (PodPhase.PENDING, reason)
        assert told in seen.message
        assert (seen.fault, seen.stuck) == whose


def test_last_end_is_known_in_the_next_start():
    last = ended(137, "OOMKilled")
    seen = read(pod("Running", container(RUNS, last), podIP="10.0.0.1"))
    assert (seen.phase, seen.reason, seen.fault) == (PodPhase.UP, "OOMKilled", True)
    seen = read(pod("Running", container(RUNS), podIP="10.0.0.1"))
    assert (seen.phase, seen.reason, seen.fault) == (PodPhase.UP, "", False)


@pytest.mark.parametrize(
    ("name", "found", "last", "reason", "fault"),
    [
        ("init", waiting("CrashLoopBackOff"), ended(1), "InitContainerFailed", True),
        ("init", ended(3), None, "InitContainerFailed", True),
        ("init", waiting("CrashLoopBackOff"), ended(137, "OOMKilled"), "OOMKilled", True),
        ("init", waiting("ErrImagePull", "not found"), None, "ImagePullBackOff", False),
        ("dljob-sidecar", ended(1), None, "InitContainerFailed", False),
    ],
)
def test_init_containers_count_for_the_user_except_ours(name, found, last, reason, fault):
    before = container(found, last, name)
    seen = read(pod("Pending", before, container(waiting("PodInitializing"))))
    assert (seen.reason, seen.fault, seen.stuck) == (reason, fault, True)
    assert name in seen.message


def test_running_or_done_init_container_is_no_reason():
    for state in (ended(0, "Completed"), RUNS):
        assert read(pod("Pending", container(state, name="init"))).reason == ""


def test_unschedulable_pod_says_so():
    message = "0/3 nodes are available"
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    seen = read(pod("Pending", bound=False, conditions=[condition]))
    assert (seen.reason, seen.message, seen.fault) == ("Unschedulable", message, False)
    assert "no scheduler" in read(pod("Pending", bound=False)).message


LOW = "The node was low on resource: memory."


def gone(reason: str = "", message: str = "so", *, target: str = "", deleted: bool = False) -> Json:
    """A failed pod with a reason of its own or a disruption."""
    document: Json = pod("Failed", container(ended(143)), deleted=deleted)
    document["status"] |= {"reason": reason, "message": message} if reason else {}
    document["status"]["conditions"] = disrupted(target) if target else []
    return document


@pytest.mark.parametrize(
    ("document", "reason", "told", "whose"),
    [
        (gone("Evicted", LOW, target="TerminationByKubelet"), "Evicted", LOW, STUCK),
        (gone(target="EvictionByEvictionAPI", deleted=True), "Drained", "drained", STUCK),
        (gone(target="PreemptionByScheduler", deleted=True), "Preempted", "priority", STUCK),
        (gone(target="DeletionByTaintManager", deleted=True), "NodeTainted", "taint", STUCK),
        (gone("OutOfcpu", "enough resource: cpu"), "OutOfcpu", "enough resource: cpu", STUCK),
        (gone("DeadlineExceeded", "too long"), "DeadlineExceeded", "too long", FATAL),
        (gone(deleted=True), "PodDeleted", "was deleted", NEITHER),
        (pod("Failed", container(ended(137, "OOMKilled"))), "OOMKilled", "more memory", FATAL),
        (pod("Succeeded", container(ended(0, "Completed"))), "Completed", "exit code 0", NEITHER),
    ],
)
def test_ended_pod_gives_its_reason(document, reason, told, whose):
    seen = read(document)
    assert (seen.phase, seen.reason) == (PodPhase.ENDED, reason)
    assert told in seen.message
    assert (seen.fault, seen.unwelcome) == whose


def test_planned_disruption_that_did_not_come_does_not_count():
    planned = disrupted("EvictionByEvictionAPI")
    planned[0]["status"] = "False"
    seen = read(pod("Failed", container(ended(1)), conditions=planned))
    assert (seen.reason, seen.unwelcome) == ("ContainerFailed", False)


def test_pod_of_a_missing_node_has_ended():
    seen = read_pod(KEY, pod("Running", container(RUNS)), node=None, uid="uid")
    assert (seen.phase, seen.reason) == (PodPhase.ENDED, "NodeGone")

"""
Misfortunes of pods on a real control plane: their reasons, Events, counts and next steps.

All stories share a stage, and each has its own jobs.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.operator.stages import Stage, lasting_stage
from tests.servers.api import Refused
from tests.servers.controlplane import ControlPlane
from tests.servers.nodes import say_ready

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


NODES = {"gpu-a": 4, "gpu-b": 4}
QUICK = {
    # The stories rely on the placement of jobs, so they need a policy of simple rules.
    "policy": "adaptive",
    "rules.retrySeconds": 0.2,
    "rules.longestRetrySeconds": 0.4,
    # Longer than a machine stalls: a story repairs a pod within twice this time, and a node within it again.
    "rules.stuckSeconds": 5,
    "rules.mostSetbacks": 1,
    "rules.lostSeconds": 60,
    "dialing.waitSeconds": 2,
    "dialing.longestPauseSeconds": 0.5,
    "dialing.refusedPauseSeconds": 0.5,
}
LONG = 10**6
BRIEF = 100


@pytest.fixture(scope="module")
def stage(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with lasting_stage(control_plane, tmp_path_factory, NODES) as stage:
        stage.start_operator(settings=QUICK)
        yield stage


@pytest.fixture(autouse=True)
def tidy(stage: Stage) -> Iterator[None]:
    """Remove all jobs after each story."""
    yield
    for job in stage.api.get(stage.path())["items"]:
        # A story may have deleted it.
        with contextlib.suppress(Refused):
            stage.api.delete(stage.path(job["metadata"]["name"]))
    stage.wait(lambda: not stage.api.get(stage.path())["items"] and not stage.pods())


def submit(stage: Stage, name: str, *, iterations: int = BRIEF, image: str = "", **spec: Any):
    document = stage.make_job(name, iterations=iterations)
    document["spec"] |= {"gpus": {"options": [1]}} | spec
    if image:
        document["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return stage.api.post(stage.path(), document)


def told(stage: Stage, name: str, reason: str, part: str = "") -> str:
    """Wait for an Event of this reason about a job; return its message."""

    def found() -> str:
        events = stage.events(name)
        return next((said for why, said in events if why == reason and part in said), "")

    message: str = stage.wait(found)
    return message


def node_of(stage: Stage, name: str) -> str:
    nodes = stage.status(name).get("allocation", {}).get("nodes", ())
    return nodes[0]["name"] if nodes else ""


def runs(stage: Stage, name: str, pod: str) -> bool:
    return pod in stage.kubelets.pids() and stage.phase(name) == "Running"


def test_deleted_pod_restarts_the_job(stage: Stage):
    submit(stage, "deleted", iterations=LONG)
    stage.wait(lambda: runs(stage, "deleted", "deleted-1"))
    stage.api.delete(stage.pod_path("deleted-1"))
    assert "was deleted" in told(stage, "deleted", "PodDeleted")
    stage.wait(lambda: runs(stage, "deleted", "deleted-2"))
    assert stage.counts("deleted") == (0, 1)


def test_out_of_memory_is_the_jobs_failure(stage: Stage):
    submit(stage, "greedy", iterations=LONG, backoffLimit=1)
    stage.wait(lambda: runs(stage, "greedy", "greedy-1"))
    stage.kubelets.ails.out_of_memory.add("greedy-1")
    message = told(stage, "greedy", "OOMKilled", "attempt 2 of 2")
    assert "raise resources.limits.memory" in message
    stage.wait(lambda: stage.counts("greedy") == (1, 0) and stage.phase("greedy") == "Running")
    stage.kubelets.ails.out_of_memory.add("greedy-1")
    assert "it failed 2 times" in stage.wait_for_phase("greedy", "Failed")["message"]
    finished = stage.condition("greedy", "Finished")
    assert finished["reason"] == "BackoffLimitExceeded"
    assert "more memory than its limit" in finished["message"]


NOT_FOUND = {
    "reason": "ErrImagePull",
    "message": 'failed to pull and unpack image "lab/none:1": not found',
}


def test_missing_image_fails_the_job_after_a_limit(stage: Stage):
    stage.kubelets.ails.waits["lab/none:1"] = dict(NOT_FOUND)
    submit(stage, "imageless", image="lab/none:1")
    submit(stage, "neighbour")
    assert "not found" in told(stage, "imageless", "ImagePullBackOff")
    assert "tried 2 times" in stage.wait_for_phase("imageless", "Failed")["message"]
    assert stage.condition("imageless", "Finished")["reason"] == "ImagePullBackOff"
    assert stage.counts("imageless") == (0, 1)
    stage.wait_for_phase("neighbour", "Completed")


def test_waiting_pod_says_so_and_starts_later(stage: Stage):
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "token" not found'}
    stage.kubelets.ails.waits["lab/waits"] = waiting
    submit(stage, "waits", image="lab/waits")
    assert waiting["message"] in told(stage, "waits", waiting["reason"])
    shows = stage.condition("waits", "Initialized")
    assert (shows["status"], shows["reason"]) == ("False", waiting["reason"])
    stage.kubelets.ails.waits.clear()
    stage.wait_for_phase("waits", "Completed")


def pod_of(stage: Stage, name: str) -> str:
    def trains() -> str:
        found = [pod for pod in stage.kubelets.pids() if pod.startswith(f"{name}-")]
        return found[0] if found and stage.phase(name) == "Running" else ""

    pod: str = stage.wait(trains)
    return pod


def test_gpus_of_a_lost_node_wait_for_a_proof(stage: Stage):
    submit(stage, "lost", iterations=LONG)
    pod = pod_of(stage, "lost")
    node, pid = node_of(stage, "lost"), stage.kubelets.pids()[pod]
    submit(stage, "elsewhere", gpus={"options": [4]}, iterations=LONG)
    pod_of(stage, "elsewhere")
    stage.kubelets.silent.add(node)
    say_ready(stage.api, node, "Unknown")
    assert "until their end is proven" in told(stage, "lost", "NodeLost")
    stage.wait(lambda: not node_of(stage, "lost"))
    # A forced deletion is no proof.
    stage.api.delete(stage.pod_path(pod), gracePeriodSeconds=0)
    say_ready(stage.api, node, "True")
    submit(stage, "next", gpus={"options": [4]})
    stage.wait(lambda: stage.condition("next", "Scheduled").get("status") == "False")
    assert stage.kubelets.pids().get(pod) == pid, "its end is not proven"
    stage.kubelets.silent.clear()
    stage.wait(lambda: pod_of(stage, "lost") != pod)
    assert stage.counts("lost")[0] == 0
    stage.api.delete(stage.path("lost"))
    stage.wait_for_phase("next", "Completed")


@pytest.mark.parametrize("answers", [True, False])
def test_removed_pod_object_is_no_proof(stage: Stage, answers: bool):
    name = "vanished" if answers else "dead"
    submit(stage, name, iterations=LONG)
    pod = pod_of(stage, name)
    node = node_of(stage, name)
    stage.kubelets.silent.add(node)
    if not answers:
        os.kill(stage.kubelets.pids()[pod], signal.SIGKILL)
    stage.api.delete(stage.pod_path(pod), gracePeriodSeconds=0)
    stage.api.merge(stage.pod_path(pod), {"metadata": {"finalizers": None}})
    assert "proven" in told(stage, name, "PodLost")
    if not answers:
        # The SideCar is gone, so only a reboot of the machine is a proof.
        boot = {"status": {"nodeInfo": {"bootID": "another"}}}
        stage.api.merge(f"/api/v1/nodes/{node}/status", boot)
    stage.wait(lambda: stage.status(name).get("podsBooked", 0) > 1)
    stage.kubelets.silent.clear()
    assert pod_of(stage, name) != pod
    assert stage.counts(name)[0] == 0

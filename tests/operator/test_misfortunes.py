"""
The misfortunes of pods, on a real control plane: each has its reason in the status and an Event,
counts against the job or does not, and leads to the right next step.

All stories are played on one stage, one after the other, each with jobs of its own.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.operator.stages import Stage, staged
from tests.servers.api import Refused
from tests.servers.controlplane import ControlPlane
from tests.servers.namespaces import make_namespace, remove_namespace
from tests.servers.nodes import say_ready

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

Json = dict[str, Any]

NODES = {"gpu-a": 4, "gpu-b": 4}
QUICK = {
    # These stories rely on which job gets which GPUs, so they name a policy of simple rules.
    "policy": "adaptive",
    "rules.retrySeconds": 0.2,
    "rules.longestRetrySeconds": 0.4,
    # Longer than a machine stands still: a story mends a pod within twice this time, and a node within the next one.
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
    folder = tmp_path_factory.mktemp("misfortunes")
    with control_plane.api() as api:
        namespace = make_namespace(api)
        with staged(control_plane, namespace, folder, NODES) as stage:
            stage.start_operator(settings=QUICK)
            yield stage
        remove_namespace(api, namespace)


@pytest.fixture(autouse=True)
def tidy(stage: Stage) -> Iterator[None]:
    """Leave nothing to the next story."""
    yield
    for job in stage.api.get(stage.path())["items"]:
        # A story may have deleted it already.
        with contextlib.suppress(Refused):
            stage.api.delete(stage.path(job["metadata"]["name"]))
    stage.wait(lambda: not stage.api.get(stage.path())["items"] and not stage.pods())


def submit(stage: Stage, name: str, *, iterations: int = BRIEF, image: str = "", **spec: Any):
    document = stage.make_job(name, iterations=iterations)
    document["spec"] |= {"gpus": {"options": [1]}} | spec
    if image:
        document["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return stage.api.post(stage.path(), document)


def condition(stage: Stage, name: str, kind: str) -> Json:
    found = stage.status(name).get("conditions", ())
    return next((each for each in found if each["type"] == kind), {})


def told(stage: Stage, name: str, reason: str, part: str = "") -> str:
    """Wait for an Event of this reason about a job, and return what it says."""

    def found() -> str:
        events = stage.events(name)
        return next((said for why, said in events if why == reason and part in said), "")

    message: str = stage.wait(found)
    return message


def pod_path(stage: Stage, pod: str) -> str:
    return f"/api/v1/namespaces/{stage.namespace}/pods/{pod}"


def node_of(stage: Stage, name: str) -> str:
    nodes = stage.status(name).get("allocation", {}).get("nodes", ())
    return nodes[0]["name"] if nodes else ""


def runs(stage: Stage, name: str, pod: str) -> bool:
    return pod in stage.kubelets.pids() and stage.phase(name) == "Running"


def iteration(stage: Stage, name: str) -> int:
    done: int = stage.status(name).get("progress", {}).get("iteration", 0)
    return done


def counts(stage: Stage, name: str) -> tuple[int, int]:
    """
    Return how often a job failed, and how often it restarted for a reason that was not its own.
    """
    status = stage.status(name)
    return status.get("failures", 0), status.get("restarts", 0)


# --- pods that were taken -----------------------------------------------------------------


def test_a_job_whose_pod_is_deleted_by_hand_is_started_anew(stage: Stage):
    submit(stage, "deleted", iterations=LONG)
    stage.wait(lambda: runs(stage, "deleted", "deleted-1"))
    stage.api.delete(pod_path(stage, "deleted-1"))
    assert "was deleted" in told(stage, "deleted", "PodDeleted")
    stage.wait(lambda: runs(stage, "deleted", "deleted-2"))
    assert counts(stage, "deleted") == (0, 1)


# --- pods that fail -----------------------------------------------------------------------


def test_running_out_of_memory_is_the_jobs_own_failure(stage: Stage):
    submit(stage, "greedy", iterations=LONG, backoffLimit=1)
    stage.wait(lambda: runs(stage, "greedy", "greedy-1"))
    stage.kubelets.ails.out_of_memory.add("greedy-1")
    message = told(stage, "greedy", "OOMKilled", "attempt 2 of 2")
    assert "raise resources.limits.memory" in message
    stage.wait(lambda: counts(stage, "greedy") == (1, 0) and stage.phase("greedy") == "Running")
    stage.kubelets.ails.out_of_memory.add("greedy-1")
    status = stage.wait_for_phase("greedy", "Failed")
    assert "it failed 2 times" in status["message"]
    finished = condition(stage, "greedy", "Finished")
    assert finished["reason"] == "BackoffLimitExceeded"
    assert "more memory than its limit" in finished["message"]


# --- pods that do not start ---------------------------------------------------------------

NOT_FOUND = {
    "reason": "ErrImagePull",
    "message": 'failed to pull and unpack image "lab/none:1": not found',
}


def test_an_image_that_cannot_be_pulled_is_told_and_given_up_after_a_limit(stage: Stage):
    stage.kubelets.ails.waits["lab/none:1"] = dict(NOT_FOUND)
    submit(stage, "imageless", image="lab/none:1")
    submit(stage, "neighbour")
    assert "not found" in told(stage, "imageless", "ImagePullBackOff")
    status = stage.wait_for_phase("imageless", "Failed")
    assert "tried 2 times" in status["message"]
    assert condition(stage, "imageless", "Finished")["reason"] == "ImagePullBackOff"
    assert counts(stage, "imageless") == (0, 1)
    stage.wait_for_phase("neighbour", "Completed")


def test_a_pod_that_waits_says_so_and_starts_when_what_it_waits_for_is_there(stage: Stage):
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "token" not found'}
    stage.kubelets.ails.waits["lab/waits"] = waiting
    submit(stage, "waits", image="lab/waits")
    assert waiting["message"] in told(stage, "waits", waiting["reason"])
    shows = condition(stage, "waits", "Initialized")
    assert (shows["status"], shows["reason"]) == ("False", waiting["reason"])
    stage.kubelets.ails.waits.clear()
    stage.wait_for_phase("waits", "Completed")


# --- nodes that are lost ------------------------------------------------------------------


def pod_of(stage: Stage, name: str) -> str:
    def trains() -> str:
        found = [pod for pod in stage.kubelets.pids() if pod.startswith(f"{name}-")]
        return found[0] if found and stage.phase(name) == "Running" else ""

    pod: str = stage.wait(trains)
    return pod


def test_what_a_lost_node_had_stays_unavailable_until_its_end_is_proven(stage: Stage):
    submit(stage, "lost", iterations=LONG)
    pod = pod_of(stage, "lost")
    node, pid = node_of(stage, "lost"), stage.kubelets.pids()[pod]
    submit(stage, "elsewhere", gpus={"options": [4]}, iterations=LONG)
    pod_of(stage, "elsewhere")
    stage.kubelets.silent.add(node)
    say_ready(stage.api, node, "Unknown")
    assert "until their end is proven" in told(stage, "lost", "NodeLost")
    stage.wait(lambda: not node_of(stage, "lost"))
    # As impatient people do, to no avail.
    stage.api.delete(pod_path(stage, pod), gracePeriodSeconds=0)
    say_ready(stage.api, node, "True")
    submit(stage, "next", gpus={"options": [4]})
    stage.wait(lambda: condition(stage, "next", "Scheduled").get("status") == "False")
    assert stage.kubelets.pids().get(pod) == pid, "nothing proves that it has ended"
    stage.kubelets.silent.clear()
    stage.wait(lambda: pod_of(stage, "lost") != pod)
    assert counts(stage, "lost")[0] == 0
    stage.api.delete(stage.path("lost"))
    stage.wait_for_phase("next", "Completed")


@pytest.mark.parametrize("answers", [True, False])
def test_a_pod_whose_object_was_taken_away_is_not_taken_for_ended(stage: Stage, answers: bool):
    name = "vanished" if answers else "dead"
    submit(stage, name, iterations=LONG)
    pod = pod_of(stage, name)
    node = node_of(stage, name)
    stage.kubelets.silent.add(node)
    if not answers:
        os.kill(stage.kubelets.pids()[pod], signal.SIGKILL)
    stage.api.delete(pod_path(stage, pod), gracePeriodSeconds=0)
    stage.api.merge(pod_path(stage, pod), {"metadata": {"finalizers": None}})
    assert "proven" in told(stage, name, "PodLost")
    if not answers:
        # The SideCar cannot be asked any more, so only a reboot of the machine is a proof.
        boot = {"status": {"nodeInfo": {"bootID": "another"}}}
        stage.api.merge(f"/api/v1/nodes/{node}/status", boot)
    stage.wait(lambda: stage.status(name).get("podsBooked", 0) > 1)
    stage.kubelets.silent.clear()
    assert pod_of(stage, name) != pod
    assert counts(stage, name)[0] == 0

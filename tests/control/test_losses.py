"""The effect of a lost part on a job, in the smallest scene that tells one kind from another."""

from collections.abc import Mapping
from typing import Any

import pytest

from dljob.control.judging.conditions import NOT_STARTED
from dljob.control.judging.judging import judge
from dljob.control.situation.ports import PodPhase
from dljob.control.situation.rules import Rules, Verdict
from dljob.control.situation.status import ConditionType
from dljob.core.model import JobId, NodeName, Phase
from dljob_wire.messages import State
from tests.control.scenes import NOW, PENDING, Sat, after, cast, make_scene, run, running, stop

A = JobId("a")
RUN0, RUN1 = run(3, 0, peers=2), run(3, 0, peers=2, at=1)
RESTARTED = after(stop(0, incarnation="y"), incarnation="y")
RULES = Rules()


def verdict(*job_pods: Sat | State, nodes: Mapping[str, int] | None = None, **rest: Any) -> Any:
    there = {f"n{number}": job_pod for number, job_pod in enumerate(job_pods)}
    rest = {"phase": Phase.RUNNING, "running": 3, "containers": len(job_pods), **rest}
    job = cast("a", dict.fromkeys(there, (0,)), job_pods=there, **rest)
    return judge(make_scene(job, nodes=nodes), RULES).get(A)


def gone(reason, **pod):
    return Sat(phase=PodPhase.ENDED, pod={"reason": reason, "message": f"so: {reason}", **pod})


def told(said):
    return [news.reason for news in said.news]


@pytest.mark.parametrize("job_pods", [(), (running(RUN0),)])
def test_a_pod_that_its_node_would_not_have_is_no_failure_and_looks_for_another(job_pods):
    said = verdict(*job_pods, gone("Evicted", unwelcome=True))
    assert (said.status.failures, said.status.restarts) == (0, 1)
    assert (said.status.placement, said.status.phase) == (None, Phase.QUEUED)
    assert said.status.retry_at == NOW, "at once, the first time"
    assert told(said) == ["Evicted"]
    condition = said.status.condition(ConditionType.INITIALIZED)
    assert (condition.status, condition.reason, condition.message) == (
        False,
        "Evicted",
        "so: Evicted",
    )


def test_a_pod_that_was_deleted_is_made_anew_where_it_was():
    said = verdict(gone("PodDeleted"))
    assert (said.status.placement is not None, said.status.restarts) == (True, 1)
    assert told(said) == ["PodDeleted"]


def test_nothing_comes_back_to_a_node_that_is_away():
    said = verdict(running(RUN0), gone("NodeGone"), nodes={"n0": 4})
    assert said.status.placement is None
    assert said.status.broken == 3, "what is left of it waits for ever"


def test_the_jobs_own_fault_counts_before_all_others():
    killed = Sat(RESTARTED, pod={"reason": "OOMKilled", "message": "too much", "fault": True})
    said = verdict(gone("Evicted", unwelcome=True), killed)
    assert (said.status.failures, told(said)) == (1, ["OOMKilled"])


def test_what_a_container_died_of_before_this_start_is_forgiven():
    """The container is part of the start that lives, so its earlier end was reported then."""
    before = Sat(running(RUN0), pod={"reason": "OOMKilled", "message": "long ago", "fault": True})
    said = verdict(before, gone("PodDeleted"))
    assert (said.status.failures, told(said)) == (0, ["PodDeleted"])


# --- those that do not start --------------------------------------------------------------

IMAGE = {"reason": "ImagePullBackOff", "message": "not found", "stuck": True}


def starting(pod, *, waited, **rest):
    job_pod = Sat(phase=PodPhase.PENDING, fresh=True, pod=pod)
    return verdict(job_pod, phase=Phase.INITIALIZED, running=0, booked_at=NOW - waited, **rest)


def test_who_waits_for_somebody_to_act_gives_its_gpus_back_soon():
    said = starting(IMAGE, waited=RULES.stuck_seconds - 1)
    assert (said.status.placement is not None, told(said)) == (True, ["ImagePullBackOff"])
    said = starting(IMAGE, waited=RULES.stuck_seconds + 1)
    assert (said.status.placement, said.status.setbacks) == (None, 1)
    assert said.status.failures == 0


def test_and_is_given_up_after_a_limit():
    said = starting(IMAGE, waited=RULES.stuck_seconds + 1, setbacks=RULES.most_setbacks)
    assert said.status.phase is Phase.FAILED
    finished = said.status.condition(ConditionType.FINISHED)
    assert finished.reason == "ImagePullBackOff"
    assert f"tried {RULES.most_setbacks + 1} times" in finished.message


def test_what_can_never_start_is_a_failure_each_time_it_is_tried():
    pod = IMAGE | {"reason": "InvalidImageName", "fault": True}
    said = starting(pod, waited=RULES.stuck_seconds + 1)
    assert (said.status.failures, said.status.placement) == (1, None)
    # Until its next attempt it is not judged again for the same.
    later = starting(pod, waited=RULES.stuck_seconds + 1, failures=1, retry_at=NOW + 5)
    assert later.status.failures == 1


def test_a_pod_of_which_nobody_says_anything_is_told_of_after_a_while():
    pod = {"message": "kubectl describe pod a-1"}
    assert told(starting(pod, waited=RULES.quiet_seconds - 1)) == []
    said = starting(pod, waited=RULES.quiet_seconds + 1)
    assert told(said) == [NOT_STARTED]
    assert said.status.condition(ConditionType.INITIALIZED).message == pod["message"]


def test_where_hundreds_start_at_once_it_is_told_later():
    quiet = cast(
        "a", {"n0": (0,)}, job_pods={"n0": PENDING}, phase=Phase.INITIALIZED, booked_at=NOW - 6
    )
    others = [
        cast(f"b{number}", {"n0": (1,)}, job_pods={"n0": PENDING}, phase=Phase.INITIALIZED)
        for number in range(199)
    ]
    assert told(judge(make_scene(quiet), RULES)[A]) == [NOT_STARTED]
    assert told(judge(make_scene(quiet, *others), RULES)[A]) == []


def test_that_a_sidecar_cannot_be_spoken_to_is_told_with_its_reason():
    said = judged_while_silent(None, "its certificate is of another authority", seconds=31)
    assert told(said) == ["SideCarSilent"]
    assert "another authority" in said.news[0].message


def test_a_sidecar_that_is_slow_to_start_is_no_warning():
    assert told(judged_while_silent(None, "connection refused", seconds=29)) == []
    once_up = running(run(3, 0))
    assert "SideCarSilent" in told(judged_while_silent(once_up, "connection reset", seconds=29))


@pytest.mark.parametrize("state", [None, running(run(3, 0))], ids=["at its start", "in training"])
def test_that_a_certificate_is_over_is_told_and_nothing_is_taken_from_the_job(state):
    said = judged_while_silent(state, "certificate has expired", outdated=True)
    found = said.status.condition(ConditionType.INITIALIZED)
    assert found is not None
    assert (found.reason, "has expired" in found.message) == ("CertificateExpired", True)
    assert said.status.placement is not None


def judged_while_silent(
    state: State | None, problem: str, *, seconds: float = 6, outdated: bool = False
) -> Verdict:
    job_pod = Sat(state, since=NOW - seconds, reachable=False, outdated=outdated)
    job = cast("a", {"n0": (0,)}, job_pods={"n0": job_pod}, phase=Phase.INITIALIZED, booked_at=1.0)
    scene = make_scene(job)
    known = scene.job_pods[A][NodeName("n0")]
    object.__setattr__(known.contact, "problem", problem)
    return judge(scene, RULES)[A]

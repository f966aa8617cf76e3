"""The effect of a lost part on a job, in the smallest scene for each kind of loss."""

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
def test_evicted_pod_is_no_failure_and_moves(job_pods):
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


@pytest.mark.parametrize(
    ("job_pods", "nodes", "reason", "stays"),
    [
        pytest.param((), None, "PodDeleted", True, id="deleted pod"),
        pytest.param((running(RUN0),), {"n0": 4}, "NodeGone", False, id="lost node"),
    ],
)
def test_lost_pod_restarts_where_its_node_remains(job_pods, nodes, reason, stays):
    said = verdict(*job_pods, gone(reason), nodes=nodes)
    assert (said.status.placement is not None, said.status.restarts) == (stays, 1)
    assert told(said) == [reason]
    assert said.status.broken == (0 if stays else 3), "the rest of a start waits for ever"


def test_fault_of_the_job_counts_first():
    killed = Sat(RESTARTED, pod={"reason": "OOMKilled", "message": "too much", "fault": True})
    said = verdict(gone("Evicted", unwelcome=True), killed)
    assert (said.status.failures, told(said)) == (1, ["OOMKilled"])


def test_end_before_the_present_start_is_forgiven():
    """The container is part of the living start, so its earlier end was reported then."""
    before = Sat(running(RUN0), pod={"reason": "OOMKilled", "message": "long ago", "fault": True})
    said = verdict(before, gone("PodDeleted"))
    assert (said.status.failures, told(said)) == (0, ["PodDeleted"])


IMAGE = {"reason": "ImagePullBackOff", "message": "not found", "stuck": True}


def starting(pod, *, waited, **rest):
    job_pod = Sat(phase=PodPhase.PENDING, fresh=True, pod=pod)
    return verdict(job_pod, phase=Phase.INITIALIZED, running=0, booked_at=NOW - waited, **rest)


def test_stuck_pod_releases_gpus_soon():
    said = starting(IMAGE, waited=RULES.stuck_seconds - 1)
    assert (said.status.placement is not None, told(said)) == (True, ["ImagePullBackOff"])
    said = starting(IMAGE, waited=RULES.stuck_seconds + 1)
    assert (said.status.placement, said.status.setbacks) == (None, 1)
    assert said.status.failures == 0


def test_stuck_pod_fails_the_job_after_a_limit():
    said = starting(IMAGE, waited=RULES.stuck_seconds + 1, setbacks=RULES.most_setbacks)
    assert said.status.phase is Phase.FAILED
    finished = said.status.condition(ConditionType.FINISHED)
    assert finished.reason == "ImagePullBackOff"
    assert f"tried {RULES.most_setbacks + 1} times" in finished.message


def test_fault_of_the_job_is_a_failure_at_each_start():
    pod = IMAGE | {"reason": "InvalidImageName", "fault": True}
    said = starting(pod, waited=RULES.stuck_seconds + 1)
    assert (said.status.failures, said.status.placement) == (1, None)
    # It is not judged again before its next attempt.
    later = starting(pod, waited=RULES.stuck_seconds + 1, failures=1, retry_at=NOW + 5)
    assert later.status.failures == 1


def test_silent_start_is_reported_after_a_while():
    pod = {"message": "kubectl describe pod a-1"}
    assert told(starting(pod, waited=RULES.quiet_seconds - 1)) == []
    said = starting(pod, waited=RULES.quiet_seconds + 1)
    assert told(said) == [NOT_STARTED]
    assert said.status.condition(ConditionType.INITIALIZED).message == pod["message"]


def test_many_starts_are_reported_later():
    quiet = cast("a", {"n0": (0,)}, n0=PENDING, phase=Phase.INITIALIZED, booked_at=NOW - 6)
    others = [
        cast(f"b{number}", {"n0": (1,)}, n0=PENDING, phase=Phase.INITIALIZED)
        for number in range(199)
    ]
    assert told(judge(make_scene(quiet), RULES)[A]) == [NOT_STARTED]
    assert told(judge(make_scene(quiet, *others), RULES)[A]) == []


def test_unreachable_sidecar_is_reported_with_the_reason():
    said = judged_while_silent(None, "its certificate is of another authority", seconds=31)
    assert told(said) == ["SideCarSilent"]
    assert "another authority" in said.news[0].message


def test_slow_sidecar_is_no_warning():
    assert told(judged_while_silent(None, "connection refused", seconds=29)) == []
    once_up = running(run(3, 0))
    assert "SideCarSilent" in told(judged_while_silent(once_up, "connection reset", seconds=29))


@pytest.mark.parametrize("state", [None, running(run(3, 0))], ids=["at its start", "in training"])
def test_expired_certificate_is_reported_and_takes_nothing(state):
    said = judged_while_silent(state, "certificate has expired", outdated=True)
    found = said.status.condition(ConditionType.INITIALIZED)
    assert found is not None
    assert (found.reason, "has expired" in found.message) == ("CertificateExpired", True)
    assert said.status.placement is not None


def judged_while_silent(
    state: State | None, problem: str, *, seconds: float = 6, outdated: bool = False
) -> Verdict:
    job_pod = Sat(state, since=NOW - seconds, reachable=False, outdated=outdated)
    job = cast("a", {"n0": (0,)}, n0=job_pod, phase=Phase.INITIALIZED, booked_at=1.0)
    scene = make_scene(job)
    known = scene.job_pods[A][NodeName("n0")]
    object.__setattr__(known.contact, "problem", problem)
    return judge(scene, RULES)[A]

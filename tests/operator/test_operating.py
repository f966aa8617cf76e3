"""Jobs from ``kubectl apply`` to their end: a real control plane, real SideCars and trainings."""

import pytest

from dlkube import names
from tests.operator.stages import Stage, staged

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


@pytest.fixture
def stage(control_plane, namespace, tmp_path):
    with staged(control_plane, namespace, tmp_path, {"gpu-a": 4}) as stage:
        yield stage


def test_a_job_trains_to_its_end_and_stays_to_be_looked_at(stage: Stage):
    stage.start_operator()
    stage.submit("first")
    status = stage.wait_for_phase("first", "Completed")
    assert (status["exitCode"], status["shown"]["progress"]) == (0, "100%")

    def is_let_go() -> bool:
        (pod,) = stage.pods()
        return pod["status"]["phase"] == "Succeeded" and "finalizers" not in pod["metadata"]

    stage.wait(is_let_go)


def conditions(stage: Stage, name: str) -> dict[str, tuple[str, str]]:
    found = stage.status(name).get("conditions", ())
    return {each["type"]: (each["status"], each["reason"]) for each in found}


def test_how_far_a_job_is_and_when_it_ends_is_seen_while_it_trains(stage: Stage):
    stage.start_operator()
    stage.submit("job", iterations=20_000)
    stage.wait(lambda: stage.status("job").get("progress", {}).get("iteration", 0) > 400)
    stage.wait(lambda: stage.status("job")["shown"]["speed"] != "-")
    assert stage.status("job")["shown"]["progress"].endswith("%")
    stage.wait(lambda: "etaSeconds" in stage.status("job")["progress"])
    before = stage.status("job")
    begun = before["progress"]["iteration"]
    stage.wait(lambda: stage.status("job")["progress"]["iteration"] > begun + 1000)
    after = stage.status("job")
    # Not by the resource version, which counts the writes of all other objects, too.
    written = after["revision"] - before["revision"]
    advanced = after["progress"]["iteration"] - begun
    assert 0 < written < advanced / 10, "a write for each hundredth, and not for each iteration"
    stage.wait(lambda: conditions(stage, "job").get("TemplateValid") == ("True", "Accepted"))


def test_a_template_that_kubernetes_refuses_is_told_in_the_status(stage: Stage):
    stage.start_operator()
    document = stage.make_job("wrong", iterations=10)
    container = document["spec"]["template"]["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": "nowhere", "mountPath": "/data"}]
    stage.api.post(stage.path(), document)
    stage.submit("right")
    stage.wait(lambda: conditions(stage, "wrong").get("TemplateValid") == ("False", "Refused"))
    stage.wait(lambda: "nowhere" in stage.status("wrong").get("message", ""))
    stage.wait_for_phase("right", "Completed")
    container["volumeMounts"] = []
    stage.api.merge(stage.path("wrong"), {"spec": {"template": document["spec"]["template"]}})
    stage.wait_for_phase("wrong", "Completed")
    assert conditions(stage, "wrong")["TemplateValid"] == ("True", "Accepted")


def test_running_jobs_give_up_gpus_to_one_that_comes_and_get_them_back(stage: Stage):
    stage.start_operator(settings={"policy": "adaptive"})
    stage.submit("old", iterations=4000)
    stage.wait(lambda: stage.status("old").get("allocation", {}).get("gpus") == 4)
    stage.wait_for_phase("old", "Running")
    pids = stage.kubelets.pids()
    stage.submit("new")
    stage.wait_for_phase("new", "Completed")
    stage.wait_for_phase("old", "Completed")
    old = stage.status("old")
    assert old["reshapes"] >= 2
    assert set(pids) == {"old-1"}, "its pod was never replaced"
    told = [message for _, message in stage.events("old")]
    assert any("from 4 to" in message and "new" in message for message in told), told


def test_a_deleted_job_is_gone_when_its_training_has_ended(stage: Stage):
    stage.start_operator()
    stage.submit("unwanted", iterations=10**6)
    stage.wait_for_phase("unwanted", "Running")
    stage.api.delete(stage.path("unwanted"))
    stage.wait(lambda: stage.is_gone("unwanted"))
    assert stage.kubelets.pids() == {}
    stage.wait(lambda: stage.pods() == [])


@pytest.mark.parametrize("why", ["waits", "is suspended", "has a template that is refused"])
def test_a_job_that_never_had_a_pod_is_let_go_at_once(stage: Stage, why: str):
    """Where the API server holds new jobs itself, those are held, too."""
    document = stage.make_job("idle", iterations=10)
    document["metadata"]["finalizers"] = [names.FINALIZER]
    if why == "waits":
        document["spec"]["gpus"] = {"options": [64]}
    elif why == "is suspended":
        document["spec"]["suspend"] = True
    else:
        [container] = document["spec"]["template"]["spec"]["containers"]
        container["volumeMounts"] = [{"name": "nowhere", "mountPath": "/data"}]
    stage.start_operator()
    stage.api.post(stage.path(), document)
    stage.wait(lambda: stage.status("idle").get("conditions"))
    stage.api.delete(stage.path("idle"))
    stage.wait(lambda: stage.is_gone("idle"))


def test_auxiliaries_live_and_die_with_the_training(stage: Stage):
    stage.start_operator()
    server = {"spec": {"containers": [{"name": "ps", "image": "ps", "command": ["serve"]}]}}
    role = {"name": "ps", "replicas": 2, "template": server}
    stage.submit("job", iterations=10**6, auxiliaries=[role])

    def companions() -> set[str]:
        return {
            pod["metadata"]["name"]
            for pod in stage.pods()
            if pod["metadata"]["labels"].get("dljob.io/role") == "ps"
            and "deletionTimestamp" not in pod["metadata"]
        }

    stage.wait(lambda: companions() == {"job-ps-0", "job-ps-1"})
    stage.api.delete(f"/api/v1/namespaces/{stage.namespace}/pods/job-ps-1", gracePeriodSeconds=0)
    stage.wait(lambda: companions() == {"job-ps-0", "job-ps-1"})
    stage.wait_for_phase("job", "Running")
    stage.api.merge(stage.path("job"), {"spec": {"suspend": True}})
    stage.wait_for_phase("job", "Suspended")
    stage.wait(lambda: companions() == set())

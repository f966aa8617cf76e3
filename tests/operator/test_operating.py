"""Jobs from ``kubectl apply`` to their end, on a real control plane with real SideCars and trainings."""

import json
import sys
from functools import partial
from typing import Any

import pytest

from dljob.kube import names
from dljob.operator.reporting.learned_configmap import unpack
from dljob.store.sqlite.store import SqliteStore
from tests.operator.stages import PATIENCE_S, Stage, staged
from tests.operator.walking import find_unnamed
from tests.servers.namespaces import make_namespace

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


def conditions(stage: Stage, name: str) -> dict[str, tuple[str, str]]:
    found = stage.status(name).get("conditions", ())
    return {each["type"]: (each["status"], each["reason"]) for each in found}


def test_progress_and_eta_are_shown_in_training(stage: Stage):
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
    # The resource version would count the writes of other objects, too.
    written = after["revision"] - before["revision"]
    advanced = after["progress"]["iteration"] - begun
    assert 0 < written < advanced / 10, "one write for each hundredth, not for each iteration"
    stage.wait(lambda: conditions(stage, "job").get("TemplateValid") == ("True", "Accepted"))


def test_refused_template_is_reported(stage: Stage):
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


@pytest.mark.story
def test_kubectl_waits_for_complete_and_failed(control_plane, stage: Stage):
    kubectl = control_plane.kubectl.in_namespace(stage.namespace)
    stage.start_operator()
    stage.submit("good", iterations=100)
    stage.submit("bad", backoffLimit=0, activeDeadlineSeconds=1, iterations=10**6)
    for job, outcome, other, reason in (
        ("good", "Complete", "Failed", "Finished"),
        ("bad", "Failed", "Complete", "DeadlineExceeded"),
    ):
        kubectl("wait", f"dljob/{job}", f"--for=condition={outcome}", "--timeout=240s")
        found = conditions(stage, job)
        assert found[outcome] == found["Finished"] == ("True", reason)
        assert other not in found


@pytest.mark.story
def test_running_job_lends_gpus_and_gets_them_back(stage: Stage):
    walk = stage.folder / "walk"
    program = (sys.executable, "-m", "tests.operator.walking", str(walk))
    stage.start_operator(program=program, settings={"policy": "adaptive"})
    stage.submit("old", iterations=10**6)
    stage.wait(lambda: stage.status("old").get("allocation", {}).get("gpus") == 4)
    stage.wait_for_phase("old", "Running")
    assert find_unnamed(walk) == set(), "files that docs/walks.md does not name"
    pids = stage.kubelets.pids()
    stage.submit("new", iterations=100)
    status = stage.wait_for_phase("new", "Completed")
    assert (status["exitCode"], status["shown"]["progress"]) == (0, "100%")
    kinds = [entry["kind"] for entry in status["history"]]
    assert (kinds[0], kinds[-1]) == ("start", "completed")

    def is_let_go() -> bool:
        (pod,) = stage.pods_of("new")
        return pod["status"]["phase"] == "Succeeded" and "finalizers" not in pod["metadata"]

    stage.wait(is_let_go)

    def has_all_back() -> bool:
        status = stage.status("old")
        is_running = status["phase"] == "Running" and status["reshapes"] >= 2
        return bool(is_running and status["allocation"]["gpus"] == 4)

    stage.wait(has_all_back)
    assert stage.kubelets.pids() == pids, "it kept its pod"
    assert "reshape" in [entry["kind"] for entry in stage.status("old")["history"]]
    told = [message for _, message in stage.events("old")]
    assert any("from 4 to" in message and "new" in message for message in told), told


def test_deleted_job_is_gone_when_its_training_has_ended(stage: Stage):
    stage.start_operator()
    stage.submit("unwanted", iterations=10**6)
    stage.wait_for_phase("unwanted", "Running")
    stage.api.delete(stage.path("unwanted"))
    stage.wait(lambda: stage.is_gone("unwanted"))
    assert stage.kubelets.pids() == {}
    stage.wait(lambda: stage.pods() == [])


@pytest.mark.story
def test_ended_job_can_be_deleted_without_an_operator(stage: Stage):
    operator = stage.start_operator()
    stage.submit("done", iterations=40)
    stage.wait_for_phase("done", "Completed")
    stage.wait(lambda: "finalizers" not in stage.job("done")["metadata"])
    assert stage.pods_of("done"), "its logs remain readable"
    operator.stop()
    stage.api.delete(stage.path("done"))
    stage.wait(lambda: stage.is_gone("done"))


def test_deleted_namespace_gets_no_pod_and_no_traceback(control_plane, namespace, tmp_path):
    with control_plane.api() as api:
        going = make_namespace(api)
        with staged(control_plane, going, tmp_path, {"gpu-a": 4}) as stage:
            stage.start_operator(settings={"namespace": namespace})
            stage.submit("late", suspend=True)
            stage.wait_for_phase("late", "Suspended")
            # Without its controller the namespace stays terminating.
            control_plane.controllers.freeze()
            try:
                api.delete(f"/api/v1/namespaces/{going}")
                api.merge(stage.path("late"), {"spec": {"suspend": False}})
                # The dry run of the pods or the launch is refused, whichever comes first.
                refusal = f"the namespace {going} is about to be deleted"
                stage.wait(lambda: refusal in json.dumps(stage.status("late")))
                assert stage.pods() == []
            finally:
                control_plane.controllers.thaw()
            stage.wait(lambda: stage.is_gone("late"))
    log = (tmp_path / "operator-0.log").read_text()
    assert "is about to be deleted; submit the job in another one" in log
    assert "Traceback" not in log


def test_knowledge_outlives_the_store_of_a_leader(stage: Stage):
    """As in an upgrade: the default store is a file that ends with the pod."""
    stage.start_operator(settings={"learning.sampleSeconds": 0.5})
    stage.submit("job", iterations=10**6)
    maps = f"/api/v1/namespaces/{stage.namespace}/configmaps"

    def published() -> dict[str, Any]:
        found = stage.api.get(maps)["items"]
        learned: Any = next(
            (each for each in found if each["metadata"]["name"] == names.LEARNED), {}
        )
        content: dict[str, Any] = unpack(learned)
        return content if content.get("profiles", {}).get("items") else {}

    before = stage.wait(published)
    stage.operators[0].stop()
    stage.api.delete(stage.path("job"))
    other = stage.folder / "other.db"
    stage.start_operator(settings={"store": other})
    stage.wait(lambda: stage.is_gone("job"))
    known = {kind.model for kind in SqliteStore(other).profiles()}
    assert known == {each["type"]["model"] for each in before["profiles"]["items"]}


def test_job_without_a_pod_is_released_at_once(stage: Stage):
    """The API server may have set the finalizer itself."""
    jobs = {name: stage.make_job(name, iterations=10) for name in ("waits", "suspended", "refused")}
    jobs["waits"]["spec"]["gpus"] = {"options": [64]}
    jobs["suspended"]["spec"]["suspend"] = True
    [container] = jobs["refused"]["spec"]["template"]["spec"]["containers"]
    container["volumeMounts"] = [{"name": "nowhere", "mountPath": "/data"}]
    stage.start_operator()
    for document in jobs.values():
        document["metadata"]["finalizers"] = [names.FINALIZER]
        stage.api.post(stage.path(), document)
    for name in jobs:
        stage.wait(partial(conditions, stage, name))
        stage.api.delete(stage.path(name))
        stage.wait(partial(stage.is_gone, name))


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
    stage.api.delete(stage.pod_path("job-ps-1"), gracePeriodSeconds=0)
    stage.wait(lambda: companions() == {"job-ps-0", "job-ps-1"})
    stage.wait_for_phase("job", "Running")
    stage.api.merge(stage.path("job"), {"spec": {"suspend": True}})
    stage.wait_for_phase("job", "Suspended")
    stage.wait(lambda: companions() == set())


def runs(stage: Stage, name: str, pod: str) -> bool:
    """Whether a job has taken a step in this pod."""
    status = stage.status(name)
    has_begun = status.get("progress", {}).get("iteration", 0) > 0
    return pod in stage.kubelets.pids() and status.get("phase") == "Running" and has_begun


@pytest.mark.story
def test_job_survives_an_eviction_and_leaves_a_tainted_node(control_plane, namespace, tmp_path):
    with staged(control_plane, namespace, tmp_path, {"gpu-a": 1, "gpu-b": 1}) as stage:
        stage.start_operator(settings={"rules.retrySeconds": 0.2})
        stage.submit("job", iterations=10**6, gpus={"options": [1]})
        stage.wait(lambda: runs(stage, "job", "job-1"))
        low = "The node was low on resource: memory."
        stage.kubelets.ails.evicted["job-1"] = low
        stage.wait(
            lambda: any(low in said for why, said in stage.events("job") if why == "Evicted")
        )
        stage.wait(lambda: runs(stage, "job", "job-2"))
        [old] = stage.status("job")["allocation"]["nodes"]
        notice = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
        path = f"/api/v1/nodes/{old['name']}"
        taints = stage.api.get(path)["spec"].get("taints", [])
        stage.api.merge(path, {"spec": {"taints": [*taints, notice]}})
        stage.wait(lambda: runs(stage, "job", "job-3"))
        status = stage.status("job")
        assert status["allocation"]["nodes"] != [old]
        # The evicted pod counts; leaving by a checkpoint is neither failure nor loss.
        assert (status.get("failures", 0), status["restarts"]) == (0, 1)


@pytest.mark.story
def test_uninstalling_ends_all_jobs_first(stage: Stage):
    stage.start_operator()
    stage.submit("trains", iterations=10**6)
    stage.submit("waits", suspend=True)
    stage.wait_for_phase("trains", "Running")
    command = [
        sys.executable,
        "-m",
        "dljob.operator.uninstalling",
        f"--kubeconfig={stage.plane.admin}",
    ]
    ended = stage.guard.spawn([*command, f"--namespace={stage.namespace}"], stage.folder / "ending")
    assert ended.wait(PATIENCE_S) == 0, (stage.folder / "ending").read_text()
    assert stage.is_gone("trains")
    assert stage.is_gone("waits")
    stage.wait(lambda: stage.pods() == [] and stage.kubelets.pids() == {})

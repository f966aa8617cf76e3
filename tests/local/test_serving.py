"""The answers of ``dljob up`` at its socket: the real server, the real list of jobs, a played
controller.
"""

import contextlib
import http.client
import json
import socket
import sqlite3
import stat
import threading
import time
from pathlib import Path

import pytest

from dljob.control.deciding import futures
from dljob.control.reporting.reasons import Outlook
from dljob.core.foreseeing import Effect, Turn
from dljob.core.model import Cause, CauseCode, GpuRef, JobId, NodeName, Phase, Placement
from dljob.core.planning import Reshape, Wait
from dljob.core.recording.record import Decided, Given, Gpu, Happened, Submitted, decode
from dljob.core.recording.sums import list_outages
from dljob.local.api import refusals, requests, showing
from dljob.local.api.access import Access
from dljob.local.folders import StateError
from dljob.local.jobs.registry import Registry
from tests.builders import sum_gpu_seconds
from tests.local.asking import Answer, Asker
from tests.local.stages import job_document, staged

CAUSE = Cause(next(iter(CauseCode)))
NODE = NodeName("n1")


def names(answer):
    return [item["metadata"]["name"] for item in answer["items"]]


# --- a list that another process has locked -----------------------------------------------


def test_a_submission_waits_for_a_locked_list_and_other_requests_do_not(up, ask, monkeypatch):
    monkeypatch.setattr(refusals, "PATIENCE_S", 240.0)
    path = up.stage.folders.registry
    answers: list[Answer] = []
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waits = threading.Thread(
            target=lambda: answers.append(ask("POST", "/v1/jobs", job_document("a")))
        )
        waits.start()
        for _ in range(20):
            assert names(ask.get("/v1/jobs")) == []
        assert answers == []
        other.execute("ROLLBACK")
        waits.join(240.0)
    assert [answer.status for answer in answers] == [201]
    assert names(ask.get("/v1/jobs")) == ["a"]


def test_a_request_that_waited_too_long_for_the_lock_is_refused(up, ask, monkeypatch):
    monkeypatch.setattr(refusals, "PATIENCE_S", 0.0)
    with contextlib.closing(sqlite3.connect(up.stage.folders.registry)) as other:
        other.execute("BEGIN IMMEDIATE")
        answer = ask("POST", "/v1/jobs", job_document("a"))
    assert answer.status == 503
    assert answer.json["error"] == (
        "the list of jobs cannot be written (database is locked); end the other process that uses it"
    )


# --- the door -----------------------------------------------------------------------------


def test_only_its_owner_may_open_the_socket_and_a_stale_one_is_replaced(root):
    with staged(root) as first:
        path = first.stage.folders.socket
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with staged(root):
        assert Asker(path).get("/v1/jobs")["items"] == []


@pytest.fixture
def endless(monkeypatch):
    """Let requests wait longer than any test."""
    monkeypatch.setattr(requests, "LONGEST_WAIT_S", 1e6)


def test_a_waiting_request_does_not_delay_the_end_of_the_server(root, endless):
    with staged(root) as up, socket.socket(socket.AF_UNIX) as client:
        wait_at(up, client, "/v1/events")


def test_a_client_that_hangs_up_leaves_nothing_that_waits_for_it(ask, up, endless):
    version = ask.get("/v1/jobs")["metadata"]["resourceVersion"]
    for target in (f"/v1/jobs?watch={version}", "/v1/events"):
        with socket.socket(socket.AF_UNIX) as client:
            wait_at(up, client, target)
        until_waiting(up, 0)


def wait_at(up, client, target):
    """Ask for news that do not come, and return when the server waits for them."""
    client.connect(str(up.stage.folders.socket))
    path = f"{target}{'&' if '?' in target else '?'}seconds=100000"
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    until_waiting(up, 1)


def until_waiting(up, wanted):
    until = time.monotonic() + 240.0
    while up.do(count_waiting) != wanted:
        assert time.monotonic() < until, f"not {wanted} requests wait"
        time.sleep(0.005)


def count_waiting(stage):
    return len(stage.registry.changes._news._waiters) + len(stage.events._news._waiters)


def when_waiting(up, act):
    """Do something on the server's thread as soon as a request waits for news."""

    def wait_and_act():
        until_waiting(up, 1)
        up.do(act)

    thread = threading.Thread(target=wait_and_act, daemon=True)
    thread.start()
    return thread


# --- jobs ---------------------------------------------------------------------------------


def test_a_job_is_shown_as_it_was_written_with_its_status(ask, up):
    document = job_document("a", priority=3)
    document["metadata"]["labels"] = {"team": "vision"}
    ask.submit(document)
    shown = ask.get("/v1/jobs/a")
    assert shown["spec"] == document["spec"]
    assert shown["metadata"]["labels"] == {"team": "vision"}
    assert shown["metadata"]["generation"] == 1
    assert shown["status"]["phase"] == "Submitted"
    up.do(lambda stage: stage.give("a", {"n1": (0, 1)}, speed=2.0, iteration=400))
    status = ask.get("/v1/jobs/a")["status"]
    assert status["phase"] == "Running"
    assert status["allocation"]["nodes"] == [{"name": "n1", "gpuIds": [0, 1]}]
    # 600 iterations are left, of which 2 are done in a second.
    assert status["progress"]["etaSeconds"] == pytest.approx(300, abs=5)


def test_a_job_in_a_namespace_is_found_by_both_names(ask):
    document = job_document("a")
    document["metadata"]["namespace"] = "team"
    ask.submit(document)
    assert ask.get("/v1/jobs/team%2Fa")["metadata"]["namespace"] == "team"
    assert ask("GET", "/v1/jobs/a").status == 404


def test_jobs_are_listed_in_their_order_and_by_their_labels(ask):
    for number, team in enumerate(("vision", "speech", "vision")):
        document = job_document(f"job-{number}")
        document["metadata"]["labels"] = {"team": team}
        ask.submit(document)
    assert names(ask.get("/v1/jobs")) == ["job-0", "job-1", "job-2"]
    assert names(ask.get("/v1/jobs?selector=team%3Dvision")) == ["job-0", "job-2"]
    wrong = ask("GET", "/v1/jobs?selector=team%3D%3D%3Dvision")
    assert wrong.status == 400
    assert "not a part of a selector; write such as" in wrong.json["error"]


def test_several_jobs_are_accepted_all_or_none(ask, up):
    ask.submit(job_document("there"))
    wrong = job_document("wrong", gpus={"options": [0]})
    items = [job_document("right"), wrong, job_document("there"), job_document("right")]
    answer = ask("POST", "/v1/jobs", {"kind": "DLJobList", "items": items})
    assert answer.status == 422
    told = [(each["document"], each["path"], each["message"]) for each in answer.json["problems"]]
    assert told == [
        (1, "spec.gpus.options[0]", "0 is not a positive number"),
        (2, "metadata.name", '"there" is a job already (Submitted)'),
        (3, "metadata.name", '"right" is submitted twice'),
    ]
    assert all(each["remedy"] for each in answer.json["problems"])
    assert names(ask.get("/v1/jobs")) == ["there"]
    assert up.do(lambda stage: stage.wakes) == 1


def test_fields_that_need_a_cluster_are_refused_and_fields_without_effect_noted(ask):
    document = job_document("a")
    pod = document["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "data"}]
    answer = ask("POST", "/v1/jobs", document)
    (problem,) = answer.json["problems"]
    assert problem["path"] == "spec.template.spec.volumes"
    assert (problem["message"], problem["remedy"]) == (
        "needs a cluster",
        "remove it, or run the job on a cluster",
    )
    del pod["volumes"]
    pod["containers"][0]["image"] = "python:3.11"
    other = {**document, "metadata": {"name": "b"}}
    notices = ask.submit(document, other)["notices"]
    assert notices == ["spec.template.spec.containers[0].image has no effect on one machine"]


def test_the_volume_of_the_checkpoints_is_for_clusters_and_no_other_volume_is(ask):
    document = job_document(
        "a", checkpoint={"signal": "SIGTERM", "path": "$(DLJOB_CHECKPOINT_DIR)"}
    )
    pod = document["spec"]["template"]["spec"]
    (trainer,) = pod["containers"]
    trainer["env"] = [{"name": "DLJOB_CHECKPOINT_DIR", "value": "/ckpt/a"}]
    trainer["volumeMounts"] = [{"name": "checkpoints", "mountPath": "/ckpt"}]
    pod["volumes"] = [{"name": "checkpoints", "emptyDir": {}}]
    assert ask.submit(document)["notices"] == []

    pod["volumes"].append({"name": "data"})
    trainer["volumeMounts"].append({"name": "data", "mountPath": "/data"})
    problems = ask("POST", "/v1/jobs", {**document, "metadata": {"name": "b"}}).json["problems"]
    assert [each["path"] for each in problems] == [
        "spec.template.spec.volumes",
        "spec.template.spec.containers[0].volumeMounts",
    ]


def test_a_shared_checkpoint_folder_is_a_notice_unless_the_other_job_has_ended(ask, up):
    first, second, third, fourth = (
        job_document(name, checkpoint={"signal": "SIGTERM", "path": path})
        for name, path in (
            *(("a", "/jobs/x/y"), ("b", "/jobs/x/../x/y")),
            *(("c", "/jobs/x/y"), ("d", "/jobs/x/z")),
        )
    )
    told = "have one checkpoint.path (/jobs/x/y) and will overwrite each other's"
    (notice,) = ask.submit(first, second)["notices"]
    assert f"b and a {told}" in notice
    (notice,) = ask.submit(third, fourth)["notices"]
    assert told in notice
    for name in ("a", "b", "c"):
        up.do(lambda stage, name=name: stage.record(name, phase=Phase.COMPLETED))
    again = job_document("e", checkpoint={"signal": "SIGTERM", "path": "/jobs/x/y"})
    assert ask.submit(again)["notices"] == []


# --- what is shown of a job ---------------------------------------------------------------


def test_job_without_gpus_has_no_eta(ask, up):
    ask.submit(job_document("a"))
    stale = "gives back 2 GPUs: it is suspended"

    def play(stage):
        stage.give("a", {"n1": (0, 1)}, speed=1.0, iterations_total=1000.0)
        scene = stage.scene()
        before = stage.registry.entries[JobId("a")]
        stage.take("a", CauseCode.SUSPENDED, phase=Phase.SUSPENDED, message=stale)
        return Outlook(scene, stage.snapshot(scene)), before, stage.registry.entries[JobId("a")]

    outlook, *entries = up.do(play)
    documents = [
        showing.job_document(entry, version="1", now=time.time(), outlook=outlook)
        for entry in entries
    ]
    has_eta = ["etaSeconds" in document["status"]["progress"] for document in documents]
    assert has_eta == [True, False]
    message = ask.get("/v1/jobs/a")["status"]["message"]
    assert message == ask.get("/v1/jobs/a/why")["message"] != stale


def test_the_gpu_time_of_a_job_is_counted_up_to_now(ask, up):
    ask.submit(job_document("a"))
    then = time.time() - 10.0
    up.do(lambda stage: stage.give("a", {"n1": (0, 1)}, decided_at=then, counted_at=then))
    assert 20.0 <= ask.get("/v1/jobs/a")["status"]["progress"]["gpuSeconds"] < 100.0


def test_a_dry_run_gives_the_same_answer_and_does_nothing(ask, up):
    wrong = job_document("a", gpus={"options": [0]})
    refused = ask("POST", "/v1/jobs", wrong).json
    for target in ("/v1/jobs?dryRun=true", "/v1/plan"):
        assert ask("POST", target, wrong).json == refused
    answer = ask("POST", "/v1/jobs?dryRun=true", job_document("a"))
    assert (answer.status, names(answer.json)) == (200, ["a"])
    assert ask.get("/v1/jobs")["items"] == []
    assert up.do(lambda stage: stage.wakes) == 0


# --- changing -----------------------------------------------------------------------------


def test_a_running_job_takes_a_possible_change(ask, up):
    ask.submit(job_document("a"))
    document = ask.get("/v1/jobs/a")
    document["spec"] |= {"suspend": True, "priority": 5, "activeDeadlineSeconds": 60}
    document["spec"]["gpus"] = {"options": [1, 2]}
    changed = ask("PUT", "/v1/jobs/a", document)
    assert changed.status == 200
    assert changed.json["metadata"]["generation"] == 2
    job = up.do(lambda stage: stage.registry.entries[JobId("a")].job)
    assert (job.suspend, job.priority, job.gpus.options) == (True, 5, (1, 2))
    assert job.limits.active_deadline_seconds == 60
    assert up.do(lambda stage: stage.wakes) == 2


def test_an_impossible_change_is_refused_with_the_reason(ask):
    ask.submit(job_document("a"))
    document = ask.get("/v1/jobs/a")
    document["spec"]["training"] = {"iterations": 5}
    answer = ask("PUT", "/v1/jobs/a", document)
    assert answer.status == 422
    assert answer.json["problems"][0]["path"] == "spec.training.iterations"
    assert "it cannot change while the job runs, because" in answer.json["error"]
    document = job_document("b")
    assert ask("PUT", "/v1/jobs/a", document).json["problems"][0]["path"] == "metadata.name"


def test_of_two_concurrent_changes_of_a_job_the_second_is_refused(ask):
    ask.submit(job_document("a"))
    first, second = ask.get("/v1/jobs/a"), ask.get("/v1/jobs/a")
    first["spec"]["priority"] = 1
    second["spec"]["priority"] = 2
    assert ask("PUT", "/v1/jobs/a", first).status == 200
    answer = ask("PUT", "/v1/jobs/a", second)
    assert (answer.status, "read it and try again" in answer.json["error"]) == (409, True)
    assert ask.get("/v1/jobs/a")["spec"]["priority"] == 1


def test_a_change_whose_body_comes_slowly_takes_nothing_back(ask, up):
    ask.submit(job_document("a"))
    document = ask.get("/v1/jobs/a")
    newer = json.loads(json.dumps(document))
    document["metadata"].pop("generation")
    document["spec"]["priority"] = 2
    newer["spec"]["priority"] = 1
    with ask.slowly("PUT", "/v1/jobs/a", document) as finish:
        assert ask("PUT", "/v1/jobs/a", newer).status == 200
        up.do(lambda stage: stage.give("a", {"n1": (0, 1)}))
        decided = up.do(lambda stage: stage.registry.entries[JobId("a")].status)
        assert finish().status == 200
    entry = up.do(lambda stage: stage.registry.entries[JobId("a")])
    assert entry.status == decided
    assert (entry.job.priority, entry.spec_generation) == (2, 3)


def test_a_path_that_no_file_can_have_is_refused(ask, up):
    long = "/" + "a" * 300 + "/bin/python"
    document = job_document("a", environment={"python": long})
    answer = ask("POST", "/v1/jobs", document)
    assert answer.status == 422
    assert answer.json["problems"][0]["path"] == "spec.environment.python"
    # One of before is shown all the same.
    up.do(lambda stage: stage.registry.submit(document, time.time()))
    ask.submit(job_document("b"))
    assert names(ask.get("/v1/jobs")) == ["a", "b"]


def test_a_cancelled_job_is_on_its_way_out_and_not_changed_any_more(ask, up):
    ask.submit(job_document("a"))
    up.do(lambda stage: stage.give("a", {"n1": (0, 1)}))
    assert ask("DELETE", "/v1/jobs/a").status == 202
    assert ask("DELETE", "/v1/jobs/a").status == 202
    shown = ask.get("/v1/jobs/a")
    assert shown["status"]["message"] == "is cancelled; on n1 its processes are ending"
    assert shown["status"]["cancelled"] is True
    shown["spec"]["priority"] = 5
    assert ask("PUT", "/v1/jobs/a", shown).status == 409
    again = ask("POST", "/v1/jobs", job_document("a")).json
    assert again["problems"][0]["message"] == '"a" is a job already (being cancelled)'
    up.do(lambda stage: stage.registry.forget(JobId("a")))
    assert ask("GET", "/v1/jobs/a").status == 404
    ask.submit(job_document("a"))


def cancelled(ask, query=""):
    answer = ask("DELETE", f"/v1/jobs/a{query}")
    assert answer.status == 202, answer
    return answer.json.get("checkpoints", {}).get("kept")


def save_something(up):
    folder = up.stage.folders.checkpoints("a")
    folder.mkdir(parents=True)
    (folder / "weights").touch()


def test_a_second_request_can_keep_the_checkpoints_and_none_gives_them_up(ask, up):
    save_something(up)
    ask.submit(job_document("a"))
    queries = (
        *("", "?removeCheckpoints=true", "?keepCheckpoints=true"),
        *("", "?removeCheckpoints=true"),
    )
    assert [cancelled(ask, query) for query in queries] == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("phase", "query", "kept"),
    [
        (Phase.COMPLETED, "", True),
        (Phase.COMPLETED, "?removeCheckpoints=true", False),
        (Phase.FAILED, "", False),
    ],
)
def test_the_result_of_a_completed_job_is_removed_only_on_request(ask, up, phase, query, kept):
    save_something(up)
    ask.submit(job_document("a"))
    up.do(lambda stage: stage.record("a", phase=phase))
    assert cancelled(ask, query) is kept


@pytest.mark.parametrize("phase", [Phase.COMPLETED, Phase.QUEUED])
def test_an_answer_names_no_checkpoints_of_a_job_that_saved_nothing(ask, up, phase):
    up.stage.folders.checkpoints("a").mkdir(parents=True)
    ask.submit(job_document("a"))
    up.do(lambda stage: stage.record("a", phase=phase))
    assert cancelled(ask) is None
    assert not up.stage.registry.keeps_checkpoints(JobId("a"))


def test_a_folder_that_the_file_of_a_cancelled_job_names_stays(ask):
    ask.submit(job_document("b", checkpoint={"path": "/data/b"}))
    answer = ask("DELETE", "/v1/jobs/b").json
    assert answer["checkpoints"] == {"path": "/data/b", "kept": True}


# --- watching -----------------------------------------------------------------------------


def watch(ask, version, seconds=60):
    answer = ask.get(f"/v1/jobs?watch={version}&seconds={seconds}")
    return answer, answer["metadata"]["resourceVersion"]


def test_a_watch_returns_every_change_and_nothing_else(ask, up):
    ask.submit(job_document("a"), job_document("b"))
    version = ask.get("/v1/jobs")["metadata"]["resourceVersion"]
    later = when_waiting(up, lambda stage: stage.record("b", phase=Phase.QUEUED, message="waits"))
    news, version = watch(ask, version)
    later.join(240.0)
    assert (names(news), news["removed"], news["complete"]) == (["b"], [], False)
    assert news["items"][0]["status"]["phase"] == "Queued"
    up.do(lambda stage: stage.registry.forget(JobId("a")))
    news, version = watch(ask, version)
    assert (names(news), news["removed"]) == ([], ["a"])
    news, _ = watch(ask, version, seconds=0)
    assert (names(news), news["removed"]) == ([], [])


def test_progress_is_shown_before_it_is_written(ask, up):
    ask.submit(job_document("a"), job_document("b"))
    up.do(lambda stage: stage.give("a", {"n1": (0,)}, iterations_total=1000.0))
    version = ask.get("/v1/jobs")["metadata"]["resourceVersion"]
    up.do(lambda stage: stage.train("a", 250, speed=5.0))
    for shown in (ask.get("/v1/jobs/a"), ask.get("/v1/jobs")["items"][0]):
        progress = shown["status"]["progress"]
        assert (progress["iteration"], progress["iterationsPerSecond"]) == (250, 5.0)
        assert progress["fraction"] == 0.25
        # Less by the time since it came so far.
        assert progress["etaSeconds"] == pytest.approx(150, abs=20)
    # The written status is newer when the next decision is made.
    up.do(lambda stage: stage.give("a", {"n1": (0, 1)}, iteration=300, iterated_at=time.time()))
    assert ask.get("/v1/jobs/a")["status"]["progress"]["iteration"] == 300
    news, _ = watch(ask, version)
    assert names(news) == ["a"]


def test_a_watch_returns_progress_that_is_not_written(ask, up):
    ask.submit(job_document("a"), job_document("b"))
    up.do(lambda stage: stage.give("a", {"n1": (0,)}))
    _, version = watch(ask, ask.get("/v1/jobs")["metadata"]["resourceVersion"], seconds=0.1)
    later = when_waiting(up, lambda stage: stage.train("a", 250))
    news, version = watch(ask, version)
    later.join(240.0)
    assert names(news) == ["a"]
    assert news["items"][0]["status"]["progress"]["iteration"] == 250
    news, _ = watch(ask, version, seconds=0.1)
    assert names(news) == []


def test_a_watcher_of_another_controller_gets_all_jobs(root):
    with staged(root) as up:
        asker = Asker(up.stage.folders.socket)
        asker.submit(job_document("a"))
        version = asker.get("/v1/jobs")["metadata"]["resourceVersion"]
    with staged(root) as up:
        news, _ = watch(asker, version)
        assert (names(news), news["complete"]) == (["a"], True)


def test_an_unknown_version_returns_all_jobs(ask):
    ask.submit(job_document("a"))
    for version in ("", "x", "1.-1", "1.%C2%B2", "1.99999999999999999999", "9.0"):
        news, _ = watch(ask, version)
        assert (names(news), news["complete"]) == (["a"], True), version


# --- why, and what if ---------------------------------------------------------------------


def test_why_uses_the_present_numbers(ask, up):
    ask.submit(job_document("runs"), job_document("waits", gpus={"options": [4]}))
    up.do(lambda stage: stage.give("runs", {"n1": (0, 1)}, speed=2.0, iteration=500))
    up.do(lambda stage: stage.take("waits", CauseCode.NO_ROOM, message="as it was decided"))
    told = ask.get("/v1/jobs/waits/why")["message"]
    assert told == (
        "waits: needs 4 GPUs on one node; the most free on one node is 2, and 2 more when runs ends"
    )
    told = ask.get("/v1/jobs/runs/why")["message"]
    assert told.startswith(
        "trains on 2 GPUs on n1 at 2 iterations/s; 50 % is done, and about 4 to 5 min"
    )


def test_a_plan_shows_the_effects_on_a_new_job_and_on_others(ask, up):
    ask.submit(job_document("a", gpus={"options": [2, 4]}))
    up.do(lambda stage: stage.give("a", {"n1": (0, 1, 2, 3)}, speed=3.0, iteration=10))
    answer = ask("POST", "/v1/plan", job_document("b", gpus={"options": [2]}))
    new, old = answer.json["items"]
    assert (new["job"], new["submitted"], new["step"]) == ("b", True, "start")
    assert new["new"]["gpus"] == 2
    assert new["confidence"] == 1.0
    assert (old["job"], old["submitted"], old["step"]) == ("a", False, "reshape")
    assert (old["old"]["gpus"], old["new"]["gpus"]) == (4, 2)
    assert 0 < old["secondsBefore"] < old["secondsAfter"]
    # It was only asked about.
    assert names(ask.get("/v1/jobs")) == ["a"]
    assert ask.get("/v1/jobs/a")["status"]["allocation"]["gpus"] == 4


def test_the_new_job_of_a_plan_has_waited_for_no_time(ask, monkeypatch):
    seen: list[float] = []

    def preview(before, after, policy):
        seen.extend(after.now - state.job.submitted_at for state in after.pending)
        return ()

    monkeypatch.setattr(futures, "preview", preview)
    assert ask("POST", "/v1/plan", job_document("b")).status == 200
    assert seen == [0.0]


def test_a_plan_of_a_policy_that_fails_is_refused_in_one_line(ask, monkeypatch):
    def fail(*_, **__):
        raise ValueError("no\nsuch")

    monkeypatch.setattr(futures, "preview", fail)
    answer = ask("POST", "/v1/plan", job_document("b"))
    assert answer.status == 409
    assert answer.json["error"] == (
        "the policy adaptive cannot decide about these jobs (ValueError: no such); choose"
        " another one in the setting policy, or correct it"
    )


def test_what_if_plays_two_futures_and_changes_nothing(ask, up):
    ask.submit(job_document("a", gpus={"options": [2, 4]}))
    up.do(lambda stage: stage.give("a", {"n1": (0, 1, 2, 3)}, speed=3.0, iteration=10))
    question = {"job": "a", "most": 2, "another": "a"}
    answer = ask("POST", "/v1/what-if", question)
    assert answer.status == 200
    now, then = ({each["job"]: each for each in f["jobs"]} for f in answer.json["futures"])
    assert (now["a"]["gpus"], then["a"]["gpus"], set(then)) == (4, 2, {"a", "a-2"})
    assert 0.0 < now["a"]["endsInSeconds"] < then["a"]["endsInSeconds"]
    assert names(ask.get("/v1/jobs")) == ["a"]
    answer = ask("POST", "/v1/what-if", {"job": "b", "most": 2})
    assert (answer.status, answer.json["problems"][0]["path"]) == (400, "job")


def test_a_plan_shows_only_the_gpus_of_another_users_job():
    step = Reshape(JobId("a"), Placement.of({NODE: (0, 1)}), Placement.of({NODE: (0,)}), CAUSE)
    waits = Wait(JobId("a"), CAUSE)
    turn = Turn(ahead=3, starts_in=60.0)
    shown = [
        futures.effect_document(
            Effect(job=JobId("a"), step=each, sentence="has 4,711 s left", is_new=False),
            turn,
            is_whole=False,
        )
        for each in (step, waits)
    ]
    assert [each["message"] for each in shown] == ["goes from 2 GPUs to 1 GPU", "waits"]
    assert [each["step"] for each in shown] == ["reshape", "wait"]
    assert all("queue" not in each for each in shown)


# --- GPUs ---------------------------------------------------------------------------------


def gpus(ask):
    (node,) = ask.get("/v1/nodes")["items"]
    return {gpu["index"]: gpu for gpu in node["gpus"]}


def test_every_gpu_is_shown_with_its_job_or_the_reason_why_it_is_unavailable(ask, up):
    ask.submit(job_document("a", framework="pytorch", processes="perGpu"), job_document("b"))
    up.do(lambda stage: stage.give("a", {"n1": (1, 2)}))
    assert ask("PUT", "/v1/nodes/n1/gpus/0/cordon", {"reason": "too hot"}).status == 200
    there = gpus(ask)
    assert [there[index]["state"] for index in range(4)] == [
        "unavailable",
        "in use",
        "in use",
        "free",
    ]
    assert there[0]["reason"] == "too hot"
    assert (there[2]["job"], there[2]["worker"], there[2]["uuid"]) == ("a", 1, "GPU-n1-2")
    assert "since" in there[1]
    assert "job" not in there[3]


def test_a_cordon_is_kept_and_taken_back(ask, up):
    assert ask("PUT", "/v1/nodes/n1/gpus/2/cordon", {}).json["reason"] == "cordoned by hand"
    assert up.do(lambda stage: stage.registry.cordons()) == {("n1", 2): "cordoned by hand"}
    assert ask("DELETE", "/v1/nodes/n1/gpus/2/cordon").json["wasCordoned"] is True
    assert ask("DELETE", "/v1/nodes/n1/gpus/2/cordon").json["wasCordoned"] is False
    assert gpus(ask)[2]["state"] == "free"
    assert up.do(lambda stage: stage.wakes) == 3


def test_a_broken_gpu_is_put_back_into_service_also_while_the_list_is_locked(ask, up, monkeypatch):
    up.do(lambda stage: stage.broken.add(GpuRef(NodeName("n1"), 2)))
    registry, tries = up.stage.registry, []
    write = registry.cordon

    def cordon(*what):
        tries.append(what)
        if len(tries) == 1:
            locked = sqlite3.OperationalError("database is locked")
            locked.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise locked
        write(*what)

    monkeypatch.setattr(registry, "cordon", cordon)
    assert ask("DELETE", "/v1/nodes/n1/gpus/2/cordon").json["wasCordoned"] is True
    assert len(tries) == 2
    assert up.do(lambda stage: stage.broken) == set()


def test_a_gpu_that_does_not_exist_cannot_be_cordoned(ask):
    for target, error in {
        "n2/gpus/0": "n2: there is no such node; there are n1",
        "n1/gpus/4": "n1/4: there is no such GPU; n1 has 0, 1, 2, 3",
        "n1/gpus/x": "n1/x: there is no such GPU; n1 has 0, 1, 2, 3",
    }.items():
        answer = ask("PUT", f"/v1/nodes/{target}/cordon", {})
        assert (answer.status, answer.json["error"]) == (404, error)


# --- what happened ------------------------------------------------------------------------


def test_events_are_listed_after_a_number_and_awaited(ask, up):
    def add(job, reason, **more):
        up.do(lambda stage: stage.events.add(JobId(job), reason, "so it was", **more))

    add("a", "Running")
    add("b", "Crashed", warning=True)
    first, second = ask.get("/v1/events")["items"]
    assert (first["job"], first["reason"], first["type"]) == ("a", "Running", "Normal")
    assert (second["job"], second["type"]) == ("b", "Warning")
    assert ask.get(f"/v1/events?since={second['number']}")["items"] == []
    later = when_waiting(up, lambda stage: stage.events.add(JobId("a"), "Finished", "so it was"))
    (news,) = ask.get(f"/v1/events?since={second['number']}&job=a&seconds=60")["items"]
    later.join(240.0)
    assert news["reason"] == "Finished"


def test_events_of_other_users_do_not_end_a_wait(ask, up, monkeypatch):
    monkeypatch.setattr(Access, "may_see", lambda *_: lambda job: job == JobId("mine"))
    up.do(lambda stage: stage.events.add(JobId("theirs"), "Running", "so it is"))
    later = when_waiting(up, lambda stage: stage.events.add(JobId("mine"), "Finished", "so it is"))
    (news,) = ask.get("/v1/events?since=0&seconds=60")["items"]
    later.join(240.0)
    assert news["job"] == "mine"


def test_the_record_of_a_user_has_jobs_of_others_as_blocks(ask, up, monkeypatch):
    begin = time.time() - 100.0
    up.do(
        lambda stage: stage.keep(
            *(Submitted(at=begin, job=job) for job in ("mine", "theirs", "waits")),
            Given(at=begin + 1.0, job="mine", placement=Placement.of({NODE: (0,)})),
            Given(at=begin + 2.0, job="theirs", placement=Placement.of({NODE: (1, 2)})),
            Happened(at=begin + 3.0, job="theirs", name="Crashed"),
            epoch=1,
        )
    )

    def read(query=""):
        return decode(ask.get(f"/v1/record{query}")["lines"], "the record")

    assert sum_gpu_seconds(read()).keys() == {"mine", "theirs", "waits"}
    monkeypatch.setattr(Access, "sees_all", lambda *_: False)
    monkeypatch.setattr(Access, "may_see", lambda *_: lambda job: job == JobId("mine"))
    for query, since in (("", begin + 2.0), (f"?since={begin + 50.0}", begin + 50.0)):
        record = read(query)
        assert {line.job for line in record.lines if not isinstance(line, Gpu)} == {"mine"}
        held = {
            ref.number: [(each.begin, each.is_held) for each in found]
            for ref, found in list_outages(record).items()
        }
        assert held == {1: [(since, True)], 2: [(since, True)]}
        assert record.header.missing[-1].startswith("you see your own jobs")


def test_events_of_earlier_controllers_come_from_the_history(ask, up):
    epoch, began = up.stage.registry.epoch, 1.7e9

    def crashed(job):
        return Happened(at=began + 2.0, job=job, name="Crashed", message="so it was", warning=True)

    start = Decided(at=began + 1.0, job="a", step="start", sentence="so it was")
    running = Happened(at=began + 3.0, job="a", name="Running")
    up.do(lambda stage: stage.keep(start, crashed("a"), crashed("b"), epoch=epoch - 1))
    up.do(lambda stage: stage.keep(running, epoch=epoch))
    up.do(lambda stage: stage.events.add(JobId("a"), "Running", "so it is"))
    told = ask.get("/v1/events?job=a")["items"]
    assert [(event["reason"], event["type"]) for event in told] == [
        ("Scheduled", "Normal"),
        ("Crashed", "Warning"),
        ("Running", "Normal"),
    ]
    assert len(ask.get(f"/v1/events?job=a&since={told[-1]['number']}")["items"]) == 0
    up.do(lambda stage: setattr(stage, "store_is_away", True))
    assert [event["reason"] for event in ask.get("/v1/events?job=a")["items"]] == ["Running"]


def test_the_history_is_read_from_the_store_oldest_first(ask, up):
    ask.submit(job_document("a"))
    now = time.time()
    lines = [
        Decided(job="a", at=now + at, step=kind, sentence=kind, cost_seconds=cost)
        for at, kind, cost in ((10, "start", None), (20, "reshape", 1.5), (30, "stop", None))
    ]
    former = Decided(job="a", at=now - 1000.0, step="start")
    up.do(lambda stage: stage.keep(former, *lines))
    told = ask.get("/v1/jobs/a/history")["items"]
    assert [each["kind"] for each in told] == ["start", "reshape", "stop"]
    assert told[1]["costSeconds"] == 1.5
    assert [each["kind"] for each in ask.get("/v1/jobs/a/history?limit=1")["items"]] == ["stop"]
    # A job that is gone has a history, and one that never was has none.
    up.do(lambda stage: stage.keep(Decided(job="gone", at=1.0, step="start")))
    assert len(ask.get("/v1/jobs/gone/history")["items"]) == 1
    assert ask("GET", "/v1/jobs/unheard-of/history").status == 404


def test_an_unavailable_store_fails_only_the_history(ask, up):
    ask.submit(job_document("a"))
    up.do(lambda stage: setattr(stage, "store_is_away", True))
    answer = ask("GET", "/v1/jobs/a/history")
    assert (answer.status, answer.json["error"]) == (503, "mongodb://db: does not answer; start it")
    assert names(ask.get("/v1/jobs")) == ["a"]


def test_logs_are_named_by_their_nodes(ask, up):
    ask.submit(job_document("a"))
    assert ask.get("/v1/jobs/a/logs") == {"items": [], "ended": False}
    folder = up.stage.folders.root / "jobs" / "a"
    folder.mkdir()
    (folder / "n1.log").write_text("step 1\n", encoding="utf-8")
    (node,) = ask.get("/v1/jobs/a/logs")["items"]
    assert node == {"node": "n1", "path": str(folder / "n1.log"), "parts": []}
    for part in ("n1.log.1", "n1.log.2"):
        (folder / part).touch()
    (node,) = ask.get("/v1/jobs/a/logs")["items"]
    assert node["parts"] == [str(folder / "n1.log.2"), str(folder / "n1.log.1")]


def test_the_surroundings_of_a_job_are_those_of_its_processes(ask, up):
    document = job_document("a")
    document["metadata"]["annotations"] = {"dljob.io/working-directory": "/usr"}
    trainer = document["spec"]["template"]["spec"]["containers"][0]
    trainer["env"] = [{"name": "LEVEL", "value": "3"}]
    ask.submit(document)
    refused = ask("GET", "/v1/jobs/a/surroundings")
    assert refused.status == 409
    assert refused.json["error"].startswith("a has no GPUs now (Submitted); try again")
    up.do(lambda stage: stage.give("a", {"n1": (1, 3)}))
    (place,) = ask.get("/v1/jobs/a/surroundings")["items"]
    assert Path(place["folder"]) == Path("/usr")
    assert place["environment"]["LEVEL"] == "3"
    assert place["environment"]["CUDA_VISIBLE_DEVICES"] == "GPU-n1-1,GPU-n1-3"
    assert place["environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_settings_have_their_origin_and_metrics_are_text(ask):
    settings = {each["name"]: each for each in ask.get("/v1/config")["items"]}
    assert (settings["seed"]["value"], settings["seed"]["origin"]) == (3, "settings.yaml")
    assert settings["policy"]["origin"] == "default"
    assert settings["pace.periodSeconds"]["description"]
    assert ask("GET", "/metrics").body == b"dljob_jobs 1\n"


# --- what is wrong ------------------------------------------------------------------------

WRONG = (
    (("GET", "/v2/jobs"), 404, "there is nothing at /v2/jobs"),
    (("GET", "/v1/jobs/x"), 404, "x: there is no such job; dljob get lists"),
    (("PATCH", "/v1/jobs"), 405, "/v1/jobs accepts only GET, HEAD"),
    (("POST", "/v1/jobs", b"{"), 400, "the request is not JSON"),
    (("POST", "/v1/jobs", b"[" * 100_000), 400, "the request is not JSON"),
    (("POST", "/v1/jobs", b"\xff"), 400, "the request is not JSON"),
    (("POST", "/v1/jobs", b"[]"), 400, "the request is not a JSON object"),
    (("POST", "/v1/jobs", b'{"kind": "DLJobList"}'), 400, "items: there are none"),
    (("POST", "/v1/jobs", b'{"kind": "DLJobList", "items": [1]}'), 422, "the document is a number"),
    (("POST", "/v1/jobs", b" " * (17 << 20)), 413, "the request is too large"),
    (("GET", "/v1/events?since=x"), 400, 'since: "x" is not a number from 0'),
    (("GET", "/v1/events?since=-1"), 400, 'since: "-1" is not a number'),
    (("GET", "/v1/events?seconds=nan"), 400, 'seconds: "nan" is not a number'),
    (("GET", "/v1/jobs/a/history?limit=inf"), 400, 'limit: "inf" is not a number'),
)


def test_every_refusal_has_the_same_form(ask):
    ask.submit(job_document("a"))
    for request_, status, error in WRONG:
        answer = ask(*request_)
        assert answer.status == status, request_
        told = json.loads(answer.body)
        assert set(told) == {"error", "problems"}, request_
        assert told["error"].startswith(error), request_
        assert "\n" not in told["error"], request_


def test_a_request_before_the_first_cycle_is_answered_after_it(ask, up, monkeypatch):
    monkeypatch.setattr(requests, "PATIENCE_S", 240.0)
    up.do(lambda stage: setattr(stage, "has_looked", False))
    answers: list[Answer] = []
    asks = threading.Thread(target=lambda: answers.append(ask("GET", "/v1/nodes")))
    asks.start()
    # Requests that need no look are answered meanwhile.
    for _ in range(20):
        assert names(ask.get("/v1/jobs")) == []
    up.do(lambda stage: setattr(stage, "has_looked", True))
    asks.join(240.0)
    assert [answer.status for answer in answers] == [200]
    assert answers[0].json["items"]


def test_a_request_is_refused_if_the_first_cycle_takes_too_long(ask, up, monkeypatch):
    monkeypatch.setattr(requests, "PATIENCE_S", 0.0)
    up.do(lambda stage: setattr(stage, "has_looked", False))
    for request_ in (("GET", "/v1/nodes"), ("POST", "/v1/plan", job_document("a"))):
        answer = ask(*request_)
        assert (answer.status, "try again in a moment" in answer.json["error"]) == (503, True)


def test_a_deposed_controller_accepts_no_jobs(ask, up):
    other = Registry.open(up.stage.folders.registry)
    other.close()
    answer = ask("POST", "/v1/jobs", job_document("a"))
    assert answer.status == 503
    assert "another controller has started" in answer.json["error"]
    assert ask.get("/v1/jobs")["items"] == []


def test_an_unwritable_list_of_jobs_is_reported_and_nothing_is_lost(ask, up):
    ask.submit(job_document("a"))
    up.do(lambda stage: stage.registry._file.db.execute("PRAGMA query_only = 1"))
    answer = ask("POST", "/v1/jobs", job_document("b"))
    assert answer.status == 507
    assert answer.json["error"].startswith("the list of jobs cannot be written (")
    up.do(lambda stage: stage.registry._file.db.execute("PRAGMA query_only = 0"))
    assert names(ask.get("/v1/jobs")) == ["a"]
    ask.submit(job_document("b"))


def test_an_internal_error_is_answered_and_the_server_goes_on(ask, up, caplog):
    def break_it(stage):
        stage.registry.entries = None

    ask.submit(job_document("a"))
    entries = up.do(lambda stage: stage.registry.entries)
    up.do(break_it)
    answer = ask("GET", "/v1/jobs")
    assert (answer.status, "please report it" in answer.json["error"]) == (500, True)
    assert "GET /v1/jobs failed" in caplog.text
    up.do(lambda stage: setattr(stage.registry, "entries", entries))
    assert names(ask.get("/v1/jobs")) == ["a"]


def test_a_socket_that_cannot_be_created_is_reported(root):
    door = root / "run" / "dljob.sock"
    door.mkdir(parents=True)
    (root / "run").chmod(0o700)
    remedy = r"dljob\.sock: cannot be created \(.*\); name another folder with --state"
    with pytest.raises(StateError, match=remedy), staged(root):
        pass


def test_a_wrong_address_for_metrics_is_refused(root):
    remedy = r"is not an address with a port; write \[ADDRESS\]:PORT"
    for address in ("9400x", "localhost", "localhost:0", ":99999", "localhost:"):
        with pytest.raises(StateError, match=remedy), staged(root, metrics=address):
            pass


def test_metrics_are_served_where_prometheus_reaches_them_and_nothing_else_is(root):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        remedy = r"cannot be opened \(.*\); choose another port, or end the process that has it"
        with pytest.raises(StateError, match=remedy), staged(root, metrics=f":{port}"):
            pass
        # A server may open it from here on, and no other program gets it while this socket has it.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with staged(root, metrics=f"127.0.0.1:{port}"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240.0)
            connection.request("GET", "/metrics")
            assert connection.getresponse().read() == b"dljob_jobs 1\n"
            connection.request("GET", "/v1/jobs")
            answer = connection.getresponse()
            assert (answer.status, "there is nothing at /v1/jobs" in answer.read().decode()) == (
                404,
                True,
            )
            connection.close()

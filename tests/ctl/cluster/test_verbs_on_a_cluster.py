"""Every verb against a real control plane, as its users type it; one stage for all."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest

from dljob.core.recording.record import Ended, Phase, Stage, decode
from tests.builders import sum_gpu_seconds
from tests.ctl.cluster.playing import home_of
from tests.ctl.test_jobs import table

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

FOREVER = 10**6


@pytest.fixture(scope="module")
def steady(scene):
    """A job that trains for as long as the tests take, on the GPUs that it was given at last."""
    stage = scene.stage
    stage.submit("steady", iterations=FOREVER, gpus={"options": [2]})
    stage.wait_for_phase("steady", "Running")
    # Events are written a moment after the status.
    stage.wait(lambda: "Running" in {reason for reason, _ in stage.events("steady")})
    return "steady"


# --- submit -------------------------------------------------------------------------------


@pytest.mark.story
def test_a_job_is_submitted_looked_at_and_cancelled(scene, ada):
    document = scene.stage.make_job("brief", iterations=200)
    result = ada("submit", ada.file(document))
    assert (result.status, result.stdout, result.stderr) == (0, "brief submitted\n", "")
    assert ada("get", "brief", "-o", "name").stdout == "dljob.dljob.io/brief\n"
    scene.stage.wait_for_phase("brief", "Completed")
    row = next(row for row in table(ada("get").stdout) if row["NAME"] == "brief")
    assert (row["PHASE"], row["PROGRESS"]) == ("Completed", "100%")
    kinds = [entry["kind"] for entry in ada("history", "brief", "-o", "json").data]
    assert (kinds[0], kinds[-1]) == ("start", "completed")
    assert ada("cancel", "brief", "--wait").stdout == "brief cancelled\n"
    result = ada("get", "brief")
    assert (result.status, result.stdout) == (1, "")
    assert "brief: there is no such job; dljob get lists the jobs" in result.stderr


def test_the_record_has_the_gpu_seconds_that_a_job_reports(scene, ada, tmp_path):
    scene.stage.submit("recorded", iterations=200)
    scene.stage.wait_for_phase("recorded", "Completed")
    reported = ada("get", "recorded", "-o", "json").data["status"]["progress"]["gpuSeconds"]
    # Times have milliseconds in a status, and a job has up to four GPUs.
    reported = pytest.approx(reported, abs=0.02)
    file, kept = tmp_path / "record.jsonl", tmp_path / "kept.jsonl"
    told = ada("record", "-o", file)
    assert told.status == 0
    assert "neither the phases of changes" in told.stderr
    with file.open(encoding="utf-8") as lines:
        record = decode(lines, file.name)
    name = f"{scene.namespace}/recorded"
    assert sum_gpu_seconds(record)[name] == reported

    # The operator has kept more, and the store can be asked without it.
    def read_store():
        assert ada("record", "--store", scene.stage.folder / "profiles.db", "-o", kept).status == 0
        with kept.open(encoding="utf-8") as lines:
            return decode(lines, kept.name)

    ended = (name, "Completed")
    scene.stage.wait(
        lambda: ended in {(x.job, x.outcome) for x in read_store().lines if isinstance(x, Ended)}
    )
    record = read_store()
    assert sum_gpu_seconds(record)[name] == reported
    reached = {each.phase for each in record.lines if isinstance(each, Phase) and each.job == name}
    assert {Stage.ASKED, Stage.STARTED, Stage.FIRST_STEP} <= reached
    assert ada("cancel", "recorded", "--wait").status == 0


def test_of_several_jobs_all_are_submitted_or_none(scene, ada, steady):
    good = scene.stage.make_job("good", iterations=10)
    taken = scene.stage.make_job(steady, iterations=10)
    path = ada.file(good, taken)
    result = ada("submit", path)
    assert (result.status, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert re.fullmatch(
        rf'dljob: {path}:\d+: metadata\.name: "steady" is a job already; choose another name, or'
        r" remove that one first: dljob cancel steady",
        line,
    )
    assert scene.stage.is_gone("good")
    twice = ada("submit", ada.file(good, good))
    assert 'metadata.name: "good" is submitted twice' in twice.stderr
    assert scene.stage.is_gone("good")


# --- looking ------------------------------------------------------------------------------


def test_another_policy_is_played_on_a_cluster(scene, ada, steady):
    result = ada("what-if", "--policy", "fifo", "-o", "json", env=home_of(scene.stage))
    _, then = result.data["futures"]
    (end,) = (each for each in then["jobs"] if each["job"] == steady)
    assert (then["policy"], end["gpus"], end["endsInSeconds"] > 0.0) == ("fifo", 2, True)
    assert "does not know whether nodes have" in result.stderr


def test_a_job_is_explained_and_described(scene, ada, steady):
    why = ada("why", steady).stdout
    assert re.match(r"trains on 2 A100 GPUs on gpu-[ab]", why)
    assert ada("why", steady, "-o", "json").data["message"] == why.splitlines()[0]
    text = ada("describe", steady).stdout
    for line in ("Name:          steady\n", "Phase:         Running\n", "  GPUs:        2\n"):
        assert line in text
    assert re.search(r"^  Normal +Scheduled +\S+ +starts on 2 GPUs on gpu-[ab]", text, re.MULTILINE)
    told = ada("describe", steady, "-o", "json").data
    assert told["job"]["metadata"]["name"] == steady
    assert {"Scheduled", "Running"} <= {event["reason"] for event in told["events"]}


def test_every_gpu_is_listed_and_can_be_taken_out_and_given_back(scene, ada, steady):
    def list_gpus():
        return {row["GPU"]: row for row in table(ada("gpu", "list").stdout)}

    # The GPUs of other tests' jobs are free in a moment.
    scene.stage.wait(lambda: "free" in {row["STATE"] for row in list_gpus().values()})
    before = list_gpus()
    assert set(before) == {*(f"gpu-a/{n}" for n in range(4)), "gpu-b/0", "gpu-b/1"}
    mine = [gpu for gpu, row in before.items() if row["JOB"] == steady]
    assert {before[gpu]["STATE"] for gpu in mine} == {"in use"}
    assert len(mine) == 2
    free = next(gpu for gpu, row in before.items() if row["STATE"] == "free")
    assert ada("gpu", "cordon", free, "--reason", "Xid 79").stdout == f"{free} cordoned\n"
    after = list_gpus()
    assert (after[free]["STATE"], after[free]["REASON"]) == ("unavailable", "Xid 79")
    assert ada("gpu", "uncordon", free).stdout == f"{free} uncordoned\n"
    assert ada("gpu", "uncordon", free).stdout == f"{free} was not cordoned\n"
    annotations = scene.stage.api.get(f"/api/v1/nodes/{free[:5]}")["metadata"]["annotations"]
    assert "dljob.io/cordoned-gpus" not in annotations
    wrong = ada("gpu", "cordon", "gpu-b/7")
    assert (wrong.status, wrong.stderr) == (
        1,
        "dljob: gpu-b/7: there is no such GPU; gpu-b has 0, 1\n",
    )
    unknown = ada("gpu", "cordon", "nope/0")
    assert unknown.stderr == "dljob: nope: there is no such node; dljob gpu list shows all nodes\n"


def test_the_jobs_of_a_namespace_are_held_and_released(scene, ada):
    namespace = scene.namespace
    assert ada("hold", namespace, "--reason", "an upgrade").status == 0
    try:
        scene.stage.submit("patient", iterations=40, gpus={"options": [1]})
        scene.stage.wait(lambda: "(an upgrade)" in ada("why", "patient").stdout)
        assert {"NAMESPACE": namespace, "REASON": "an upgrade"} in table(ada("hold").stdout)
    finally:
        assert ada("hold", namespace, "--release").stdout == f"the jobs of {namespace}: released\n"
    scene.stage.wait_for_phase("patient", "Completed")
    unknown = ada("hold", "no-such-namespace")
    assert unknown.stderr == "dljob: no-such-namespace: there is no such namespace\n"


def test_the_settings_of_the_operator_are_shown(scene, ada):
    # They are written a moment after it leads.
    scene.stage.wait(lambda: ada("config", "show", env=home_of(scene.stage)).status == 0)
    settings = {row["name"]: row for row in _settings(scene, ada)}
    assert (settings["policy"]["value"], settings["policy"]["origin"]) == ("foresight", "default")
    assert settings["pods.virtualGpus"]["origin"] == "--virtual-gpus"
    rows = table(ada("config", "show", env=home_of(scene.stage)).stdout)
    assert {"SETTING": "policy", "VALUE": "foresight", "FROM": "default"} in rows
    missing = ada("config", "show", env={"DLJOB_OPERATOR_NAMESPACE": "default"})
    assert missing.status == 1
    assert "no operator shows its settings in namespace default" in missing.stderr


def _settings(scene, ada):
    return ada("config", "show", "-o", "json", env=home_of(scene.stage)).data


# --- watching, logs, commands -------------------------------------------------------------


def lines_of(process):
    assert process.stdout is not None
    return iter(process.stdout.readline, b"")


@contextmanager
def ended(process):
    """Use a process that goes on, and end it."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def start(user, *words, stdin=None, stdout=subprocess.PIPE):
    script = "from dljob.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words)],
        stdin=stdin,
        stdout=stdout,
        env=user.environment(),
    )


def test_watch_reports_every_change_and_the_end(scene, ada):
    with ended(start(ada, "get", "-w")) as process:
        lines = lines_of(process)
        assert next(lines).split()[:2] == [b"NAME", b"PHASE"]
        # Long enough that an operator that stalls sees it train.
        scene.stage.submit("seen", iterations=1000)
        phases = (line.split()[1] for line in lines if line.startswith(b"seen "))
        assert next(phases) in (b"Submitted", b"Queued", b"Initialized")
        assert b"Running" in phases
        assert b"Completed" in phases
        assert ada("cancel", "seen").status == 0
        assert b"Removed" in phases


def test_the_output_of_a_training_is_read(scene, ada, steady):
    all_lines = ada_logs(ada, steady)
    assert len(all_lines) > 2
    assert ada_logs(ada, steady, "--tail", 2) != []
    assert len(ada_logs(ada, steady, "--tail", 2)) == 2
    node = scene.stage.status(steady)["allocation"]["nodes"][0]["name"]
    assert ada_logs(ada, steady, "--node", node, "--tail", 1) != []
    assert ada_logs(ada, steady, "--rank", 0, "--tail", 1) != []
    far = ada("logs", steady, "--rank", 9)
    assert (far.status, f"{steady} has no rank 9; it has " in far.stderr) == (1, True)
    # The API server takes it; what is that old only a real kubelet knows.
    assert len(ada_logs(ada, steady, "--since", "1h")) >= len(all_lines)
    wrong = ada("logs", steady, "--node", "nope")
    assert (wrong.status, "has no log of nope; nodes with one: gpu-" in wrong.stderr) == (1, True)


def ada_logs(ada, *words):
    ran = subprocess.run(
        [sys.executable, "-c", "from dljob.cli.main import main; main()", "logs", *map(str, words)],
        capture_output=True,
        check=True,
        timeout=240.0,
        env=ada.environment(),
    )
    return ran.stdout.splitlines()


def test_output_is_followed_to_the_end_over_a_cut_connection(scene, ada):
    stage = scene.stage
    stage.submit("told", iterations=1500, gpus={"options": [1]})
    stage.wait_for_phase("told", "Running")
    with ended(start(ada, "logs", "told", "-f")) as process:
        lines = lines_of(process)
        read = [next(lines)]
        scene.door.cut()
        read += list(lines)
        code = process.wait(240.0)
    assert code == 0
    assert stage.phase("told") == "Completed"
    assert b"".join(read).decode() == stage.kubelets.log("told-1")


def test_a_command_runs_where_a_job_has_its_gpus(scene, ada, steady):
    allocation = scene.stage.status(steady)["allocation"]["nodes"][0]
    script = "echo $CUDA_VISIBLE_DEVICES; echo oops >&2; exit 7"
    ran = subprocess.run(
        [
            *(sys.executable, "-c", "from dljob.cli.main import main; main()"),
            *("exec", steady, "--", "sh", "-c", script),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240.0,
        env=ada.environment(),
    )
    assert (ran.returncode, ran.stderr.splitlines()[0]) == (7, "oops")
    assert ran.stdout.strip() == ",".join(map(str, allocation["gpuIds"]))
    wrong = ada("exec", steady, "--node", "nope", "--", "true")
    assert (wrong.status, "has no GPUs on nope; name one of gpu-" in wrong.stderr) == (1, True)


def test_typed_input_reaches_the_command(scene, ada, steady):
    leader, follower = os.openpty()
    words = ("exec", steady, "--", "sed", "-u", "s/^/heard /;q")
    with ended(start(ada, *words, stdin=follower, stdout=follower)) as process:
        os.close(follower)
        os.write(leader, b"hello\n")
        shown = b""
        while b"heard hello" not in shown:
            shown += os.read(leader, 1024)
        assert process.wait(240.0) == 0
    os.close(leader)


# --- steering -----------------------------------------------------------------------------


@pytest.mark.story
def test_a_job_is_suspended_and_resumed(scene, ada):
    scene.stage.submit("wavers", iterations=FOREVER, gpus={"options": [1]})
    scene.stage.wait_for_phase("wavers", "Running")
    assert ada("suspend", "wavers").stdout == "wavers suspended\n"
    scene.stage.wait_for_phase("wavers", "Suspended")
    assert ada("suspend", "wavers").stdout == "wavers is suspended already\n"
    refused = ada("exec", "wavers", "--", "true")
    assert "wavers has no GPUs now (Suspended); try again when it is Running" in refused.stderr
    assert ada("resume", "wavers").stdout == "wavers resumed\n"
    scene.stage.wait_for_phase("wavers", "Running")
    kinds = [entry["kind"] for entry in ada("history", "wavers", "-o", "json").data]
    assert [kind for kind in kinds if kind in ("start", "stop")] == ["start", "stop", "start"]
    assert ada("cancel", "wavers", "--wait").status == 0
    assert scene.stage.is_gone("wavers")


# --- who may what -------------------------------------------------------------------------


@pytest.mark.story
def test_viewer_learns_which_role_to_request(scene, as_user, steady):
    eve = as_user(scene.user("eve", "dljob-view"))
    assert steady in [row["NAME"] for row in table(eve("get").stdout)]
    assert eve("why", steady).status == 0
    who = f"system:serviceaccount:{scene.namespace}:eve"
    refused = eve("suspend", steady)
    assert (refused.status, refused.stdout) == (1, "")
    assert refused.stderr == (
        f"dljob: {who} may not update dljobs in namespace {scene.namespace};"
        " ask for a RoleBinding there to the ClusterRole dljob-edit\n"
    )
    assert (
        "may not create dljobs"
        in eve("submit", eve.file(scene.stage.make_job("x", iterations=1))).stderr
    )
    assert "may not delete dljobs" in eve("cancel", steady).stderr
    everywhere = eve("get", "-A")
    assert "may not list dljobs in all namespaces; ask for a ClusterRoleBinding to the" in (
        everywhere.stderr
    )
    assert "may not list pods in namespace" in eve("logs", steady).stderr
    described = eve("describe", steady)
    assert (described.status, "Phase:         Running" in described.stdout) == (0, True)
    assert "note: " in described.stderr
    assert "may not list events" in described.stderr
    history = eve("history", steady)
    assert (history.status, "start" in history.stdout) == (0, True)
    assert "other events of steady are left out" in history.stderr


def test_unknown_user_is_asked_to_log_in(scene, as_user, tmp_path):
    document = json.loads(scene.stage.plane.admin.read_text(encoding="utf-8"))
    document["users"][0]["user"] = {"token": "stale"}
    path = tmp_path / "stale.kubeconfig"
    path.write_text(json.dumps(document), encoding="utf-8")
    result = as_user(path)("get")
    assert result.status == 1
    assert "does not accept your credentials; log in again" in result.stderr

"""The verbs about jobs, as their users see them: the real command, the real server."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import yaml

from dljob.client.backend import JobList
from dljob.client.local import local_backend
from dljob.client.local.local_backend import LocalBackend
from dljob.control.situation.status import Condition, ConditionType
from dljob.core.documents.jobnames import full_name
from dljob.core.model import CauseCode, JobId, NodeName, Phase, Placement
from dljob.core.recording.record import Decided, Happened
from tests.ctl.running import LONGEST_S, Live, Result, run_apart
from tests.ctl.terminals import Terminal
from tests.local.stages import job_document, staged


def table(text):
    header, *rows = text.splitlines()
    starts = [match.start() for match in re.finditer(r"\S+", header)]
    ends = [*starts[1:], None]
    names = header.split()
    return [
        {name: row[start:end].strip() for name, start, end in zip(names, starts, ends, strict=True)}
        for row in rows
    ]


@pytest.fixture
def busy(played):
    """One job that trains on two GPUs and one that waits."""
    played.submit("runs", priority=2)
    played.submit("waits", gpus={"options": [4]})
    played.do("give", "runs", {"n1": (0, 1)}, speed=2.0, iteration=500, iterations_total=1000.0)
    played.do("take", "waits", CauseCode.NO_ROOM, message="waits: needs 4 GPUs")
    return played


# --- get ----------------------------------------------------------------------------------


def test_jobs_are_listed_as_kubectl_does(busy):
    result = busy("get")
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0].split() == [
        *("NAME", "PHASE", "GPUS", "PROGRESS", "SPEED", "ETA", "STARTS", "RESHAPES"),
        *("DURATION", "AGE"),
    ]
    runs, waits = table(result.stdout)
    assert runs.pop("ETA") in ("4m8s", "4m9s", "4m10s")
    assert runs.pop("AGE").endswith("s")
    assert runs.pop("DURATION").endswith("s")
    assert runs == {
        "NAME": "runs",
        "PHASE": "Running",
        "GPUS": "2",
        "PROGRESS": "50%",
        "SPEED": "2 it/s",
        "STARTS": "-",
        "RESHAPES": "0",
    }
    assert (waits["PHASE"], waits["GPUS"], waits["ETA"]) == ("Queued", "0", "-")


def test_wide_list_has_nodes_and_reasons(busy):
    runs, waits = table(busy("get", "-o", "wide").stdout)
    assert (runs["PRIORITY"], runs["ALLOCATION"]) == ("2", "n1[0-1]")
    assert re.fullmatch(r"3m4\ds-4m3\ds", runs["ETA"])
    assert waits["ETA"] == "-"
    assert waits["REASON"] == "waits: needs 4 GPUs"


def test_one_job_is_a_document_and_several_are_a_list(busy):
    one = busy("get", "runs", "-o", "json").data
    assert (one["kind"], one["metadata"]["name"]) == ("DLJob", "runs")
    several = busy("get", "-o", "json").data
    assert (several["kind"], len(several["items"])) == ("DLJobList", 2)
    same = yaml.safe_load(busy("get", "-o", "yaml").stdout)
    assert same.keys() == several.keys()
    for document in (same, several):
        # When its turn comes is foreseen once more after a while.
        document["items"][1]["status"].pop("queue", None)
    # The training has used more of its GPUs by then.
    assert same["items"][1] == several["items"][1]
    assert busy("get", "-o", "name").stdout == "dljob.dljob.io/runs\ndljob.dljob.io/waits\n"


def test_printed_yaml_can_be_submitted_again(busy):
    text = busy("get", "runs", "-o", "yaml").stdout.replace("name: runs", "name: again")
    (busy.folder / "again.yaml").write_text(text, encoding="utf-8")
    assert busy("submit", "again.yaml").stdout == "again submitted\n"
    assert busy("get", "again", "-o", "json").data["spec"]["priority"] == 2


def test_jobs_are_selected_by_name_and_by_label(played):
    documents = [job_document(name) for name in ("a", "b")]
    documents[0]["metadata"]["labels"] = {"team": "vision"}
    played("submit", played.file(*documents))
    assert [row["NAME"] for row in table(played("get", "-l", "team=vision").stdout)] == ["a"]
    result = played("get", "b", "x", "-o", "name")
    assert (result.status, result.stdout) == (1, "dljob.dljob.io/b\n")
    assert result.stderr == "dljob: x: there is no such job; dljob get lists the jobs\n"
    result = played("get", "-l", "team=speech")
    assert (result.status, result.stdout, result.stderr) == (0, "", "No job has these labels.\n")
    result = played("get", "-l", "a b")
    assert (result.status, "write such as team=vision" in result.stderr) == (1, True)
    assert played("get", "a", "-l", "team=vision").status == 2


def test_empty_list_has_a_sentence_for_people(played):
    result = played("get")
    assert (result.status, result.stdout, result.stderr) == (0, "", "There are no jobs.\n")
    assert played("get", "-o", "json").data["items"] == []


@pytest.mark.processes
@pytest.mark.story
def test_watch_prints_a_row_for_each_change(busy):
    with Live("get", "-w", "--state", busy.up.root) as live:
        rows = [live.line().split() for _ in range(3)]
        assert [row[:2] for row in rows] == [
            *(["NAME", "PHASE"], ["runs", "Running"], ["waits", "Queued"])
        ]
        busy.do("record", "waits", phase=Phase.SUSPENDED)
        assert live.line().split()[:2] == ["waits", "Suspended"]
        # A change that no column shows is no news.
        busy.do("record", "waits", booked=7)
        busy.do("record", "runs", iteration=750)
        assert live.line().split()[:4] == ["runs", "Running", "2", "75%"]
        busy.up.do(lambda stage: stage.registry.forget(JobId("waits")))
        assert live.line().split()[:2] == ["waits", "Removed"]
        live.interrupt()
        # The line break comes after the ^C of a terminal.
        assert live.rest() == Result(130, "", "\n")


def test_watching_goes_on_with_the_next_controller(busy, monkeypatch):
    monkeypatch.setattr(local_backend, "RETRY_S", 0.05)
    backend = LocalBackend(busy.up.stage.folders.socket)
    news = backend.watch_jobs("", backend.list_jobs().version)
    busy.up.stop()
    with ThreadPoolExecutor() as threads:
        heard = threads.submit(next, news)
        with staged(busy.up.root, n1=4):
            told = heard.result(LONGEST_S)
    assert told.complete
    assert [item["metadata"]["name"] for item in told.items] == ["runs", "waits"]


def test_job_gone_during_an_outage_is_removed(busy, monkeypatch):
    def watch(backend, selector, version):
        left = [item for item in backend.list_jobs().items if full_name(item) != "waits"]
        yield JobList(left, version, complete=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalBackend, "watch_jobs", watch)
    rows = table(busy("get", "-w").stdout)
    assert [row["PHASE"] for row in rows if row["NAME"] == "waits"] == ["Queued", "Removed"]
    # Who watches some jobs hears of no others.
    told = busy("get", "runs", "-w", "-o", "name").stdout
    assert set(told.splitlines()) == {"dljob.dljob.io/runs"}


# --- describe -----------------------------------------------------------------------------


def test_a_job_is_described_from_its_name_to_its_events(busy):
    busy.up.do(lambda stage: stage.events.add(JobId("runs"), "Running", "trains on n1[0,1]"))
    text = busy("describe", "runs").stdout
    for line in (
        "Name:          runs",
        "Phase:         Running",
        "  GPUs:        1, 2 or 4",
        "  Training:    1,000 iterations",
        "  Command:     sleep 60",
        "  Priority:    2",
        "  n1:          GPU 0-1",
        "Progress:      500 of 1,000 iterations (50%)",
        "  Speed:       2 it/s",
        "  Failures:    0 (limit 3)",
    ):
        assert f"{line}\n" in text
    assert re.search(r"^Submitted:     \d{4}-\d\d-\d\d .* \(\d+s ago\)$", text, re.MULTILINE)
    assert re.search(r"^  Normal +Running +\d+s +trains on n1\[0,1\]$", text, re.MULTILINE)
    assert "Why:           trains on 2 GPUs on n1 at 2 iterations/s; 50 % is done" in text
    told = busy("describe", "runs", "-o", "json").data
    assert (told["job"]["metadata"]["name"], told["events"][0]["reason"]) == ("runs", "Running")


def test_a_job_that_failed_is_described_with_why_and_the_end_of_its_log(played):
    played.submit("broken")
    why = "it failed 4 times; the last time rank 0 exited with status 7"
    finished = Condition(ConditionType.FINISHED, True, "BackoffLimitExceeded", why, since=1.0)
    facts = {"failures": 4, "exit_code": 7, "message": why, "conditions": (finished,)}
    played.do("record", "broken", phase=Phase.FAILED, **facts)
    logs = played.up.root / "jobs" / "broken"
    logs.mkdir()
    (logs / "n1.log").write_text("".join(f"line {n}\n" for n in range(50)), encoding="utf-8")
    told = played("describe", "broken", "-o", "json").data["log"]
    assert told == [f"line {n}" for n in range(40, 50)]
    (logs / "n2.log").write_bytes(b"\xff oh\n")
    text = played("describe", "broken").stdout
    assert f"Why:           {why}\n" in text
    assert "  Exit status: 7\n" in text
    assert re.search(rf"^  Finished +True +BackoffLimitExceeded +\w+ +{why}$", text, re.MULTILINE)
    assert "  [n1] line 49\n  [n2] \ufffd oh\n" in text


def test_a_job_whose_spec_cannot_be_read_is_shown_as_far_as_it_can_be(played):
    played.submit("odd", "fine")

    def spoil(stage):
        unread = {"metadata": {"name": "odd"}, "spec": {}}
        entry = stage.registry.entries[JobId("odd")]
        stage.registry._put(
            replace(entry, document=unread, problem="its spec can no longer be read")
        )

    played.up.do(spoil)
    rows = table(played("get", "-o", "wide").stdout)
    assert [row["NAME"] for row in rows] == ["odd", "fine"]
    assert rows[0]["REASON"] == "its spec can no longer be read"
    text = played("describe", "odd").stdout
    assert "Why:           its spec can no longer be read\n" in text
    assert "Spec:          cannot be read\n" in text
    assert played("get", "odd", "-o", "json").data["status"]["unreadable"] is True
    assert played("why", "odd").stdout == "its spec can no longer be read\n"
    assert played("cancel", "odd").status == 0


def test_every_wish_of_a_job_is_described(played):
    played.submit(
        "wide",
        gpus={"min": 2, "max": 4, "requested": 3, "types": ["V100"], "maxNodes": 2},
        framework="pytorch",
        training={
            "epochs": 3,
            "iterationsPerEpoch": 1000,
            "batchSize": 64,
            "target": {"metric": "top5", "value": 0.9},
        },
        batch={"elastic": True, "max": 512},
        progress={"log": r"step (?P<iteration>\d+) top5=(?P<top5>[\d.]+)"},
        checkpoint={"signal": "SIGUSR1", "confirm": "file", "path": "/ckpt", "shared": True},
        backoffLimit=1,
        activeDeadlineSeconds=60,
        ttlSecondsAfterFinished=5,
        suspend=True,
    )
    text = played("describe", "wide").stdout
    for line in (
        "  GPUs:        2 to 4, 3 requested, of type V100, on at most 2 nodes",
        "  Training:    3 epochs of 1,000, until top5 is 0.9, batch size 64 to 512",
        "  Framework:   pytorch, a process for each GPU",
        "  Checkpoint:  by signal SIGUSR1, in /ckpt (shared), complete by the marks that are recognised",
        "  Limits:      1 new attempt, 60 s at most, forgotten 5 s after its end",
        "  Suspended:   yes",
        "Allocation:    none",
        "Events:        <none>",
    ):
        assert f"{line}\n" in text


# --- why and history ----------------------------------------------------------------------


def test_why_is_one_sentence_with_the_numbers_of_now(busy):
    sentence, turn = busy("why", "waits").stdout.splitlines()
    assert sentence == (
        "waits: needs 4 GPUs on one node; the most free on one node is 2, and 2 more when runs ends"
    )
    assert turn.startswith("  it is the next of the jobs that wait; it is expected to start in")
    both = busy("why", "runs", "waits").stdout.splitlines()
    assert [line.split()[0] for line in both if line[0] != " "] == ["runs", "waits"]
    assert busy("why", "waits", "-o", "json").data["message"] == sentence


def test_waiting_job_shows_its_turn_and_start(busy):
    busy.submit("later", gpus={"options": [4]})
    busy.do("take", "later", CauseCode.NO_ROOM, message="waits: needs 4 GPUs")

    def starts():
        return {row["NAME"]: row["STARTS"] for row in table(busy("get").stdout)}

    told = starts()
    assert told["runs"] == "-"
    assert re.fullmatch(r"\d+m\d*s?, next|\d+s, next", told["waits"])
    assert re.fullmatch(r"\d+m\d*s?, 1 ahead", told["later"])
    queue = busy("get", "later", "-o", "json").data["status"]["queue"]
    assert (queue["ahead"], set(queue)) == (1, {"ahead", "expectedStart"})
    (turn,) = busy("why", "later").stdout.splitlines()[1:]
    assert turn.startswith("  1 of the jobs that wait starts before it; it is expected to start in")
    assert turn.endswith(", if running jobs end as predicted and no other job comes")
    assert busy("why", "later", "-o", "json").data["queue"]["ahead"] == 1
    assert "starts" in busy("top", "--once").stdout


def test_assumptions_follow_the_sentence(busy):
    target = {"metric": "top5", "value": 0.9}
    log = r"iteration (?P<iteration>\d+) top5 (?P<top5>[0-9.]+)"
    busy.submit("open", gpus={"options": [4]}, training={"target": target}, progress={"log": log})
    busy.do("take", "open", CauseCode.NO_ROOM, message="waits: needs 4 GPUs")
    told = (
        "its length is unknown; adaptive supposes that it needs as long again as it has trained,"
        " and at least an hour on its fewest GPUs"
    )
    sentence, _, assumption = busy("why", "open").stdout.splitlines()
    assert (sentence.split()[0], assumption) == ("waits:", f"  {told}")
    assert busy("why", "open", "-o", "json").data["assumptions"] == [told]
    assert f"\nAssumed:       {told}\n" in busy("describe", "open").stdout
    assert busy("describe", "open", "-o", "json").data["assumptions"] == [told]


def test_history_has_cause_and_cost_of_each_change(busy):
    two, four = (Placement.of({NodeName("n1"): range(n)}) for n in (2, 4))
    began = time.time()
    lines = (
        Decided(job="runs", at=began + 10.0, step="start", new=two, sentence="idle GPUs"),
        Decided(job="runs", at=began + 20.0, step="reshape", old=two, new=four, cost_seconds=1.53),
        Happened(job="runs", at=began + 30.0, name="Crashed", message="exited with status 1"),
        Decided(job="runs", at=began + 40.0, step="stop", old=four, sentence="outranked"),
    )
    busy.up.do(lambda stage: stage.keep(*lines))
    start, reshape, crash, stop = table_of_history(busy("history", "runs").stdout)
    assert start == ("start", "2", "-", "idle GPUs")
    assert reshape == ("reshape", "2 > 4", "1.5s", "-")
    assert crash == ("crashed", "-", "-", "exited with status 1")
    assert stop == ("stop", "4 > 0", "-", "outranked")
    wide = table_of_history(busy("history", "runs", "-o", "wide").stdout)
    assert wide[1][1] == "n1[0-1] > n1[0-3]"
    assert wide[3][1] == "n1[0-3] > nothing"
    assert busy("history", "runs", "-o", "json").data[0]["kind"] == "start"
    assert len(busy("history", "runs", "--limit", 2, "-o", "json").data) == 2


def table_of_history(text):
    return [tuple(re.split(r" {3,}", line)[1:]) for line in text.splitlines()[1:]]


# --- suspend, resume, cancel --------------------------------------------------------------


def test_jobs_are_suspended_and_resumed(busy):
    assert busy("suspend", "runs", "waits").stdout == "runs suspended\nwaits suspended\n"
    assert busy("get", "runs", "-o", "json").data["spec"]["suspend"] is True
    assert busy("suspend", "runs").stdout == "runs is suspended already\n"
    assert busy("resume", "runs").stdout == "runs resumed\n"
    assert busy("get", "runs", "-o", "json").data["spec"]["suspend"] is False
    assert busy("resume", "runs").stdout == "runs is not suspended\n"


def test_possible_changes_happen_and_others_are_reported(busy):
    busy.do("record", "runs", phase=Phase.COMPLETED)
    result = busy("suspend", "x", "runs", "waits")
    assert (result.status, result.stdout) == (1, "waits suspended\n")
    assert result.stderr.splitlines() == [
        "dljob: x: there is no such job; dljob get lists the jobs",
        "dljob: runs is Completed already; submit it under another name to train it again",
    ]


def test_a_job_is_cancelled(busy, monkeypatch):
    read, looks = LocalBackend.get_job, []

    def look_twice(self, name):
        looks.append(name)
        if len(looks) == 2:
            busy.up.do(lambda stage: stage.registry.forget(JobId("runs")))
        return read(self, name)

    assert busy("cancel", "runs").stdout == "runs cancelled\n"
    assert table(busy("get", "runs").stdout)[0]["PHASE"] == "Cancelling"
    # Not after some time, in which a machine that stalls would not have come to the cancelling.
    monkeypatch.setattr(LocalBackend, "get_job", look_twice)
    assert busy("cancel", "--wait", "runs").status == 0
    assert looks == ["runs", "runs"]
    assert busy("get", "runs").status == 1


# --- exec ---------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.story
def test_a_command_sees_the_gpus_of_the_job_and_its_status_is_passed_on(busy):
    script = "echo $CUDA_VISIBLE_DEVICES; pwd; exit 3"
    result = run_apart("exec", "runs", "--state", busy.up.root, "--", "sh", "-c", script)
    assert (result.status, result.stdout.splitlines()) == (
        3,
        ["GPU-n1-0,GPU-n1-1", str(busy.folder)],
    )
    result = run_apart("exec", "runs", "--state", busy.up.root, "--", "sh", "-c", "kill -9 $$")
    assert result.status == 128 + 9


def test_missing_command_is_reported(busy):
    result = busy("exec", "runs", "--", "no-such-command")
    assert result.status == 127
    assert "no-such-command: cannot be run (No such file or directory); check" in result.stderr
    result = busy("exec", "runs", "--", "/etc/passwd")
    assert (result.status, "(Permission denied); check the command" in result.stderr) == (126, True)
    assert busy("exec", "waits", "--", "true").stderr.startswith("dljob: waits has no GPUs now (Q")
    assert busy("exec", "runs", "--node", "n2", "--", "true").stderr == (
        "dljob: runs has no GPUs on n2; name one of n1\n"
    )
    assert busy("exec", "runs").status == 2


# --- the rest -----------------------------------------------------------------------------


def test_silent_place_is_named_with_a_remedy(dljob, tmp_path):
    for verb in (["get"], ["why", "a"], ["top", "--once"], ["gpu", "list"], ["config", "show"]):
        result = dljob(*verb, "--state", tmp_path)
        assert (result.status, result.stdout) == (1, "")
        assert result.stderr.startswith("dljob: no dljob up answers at /")
        assert result.stderr.endswith("or name the folder of another one with --state\n")
        assert result.stderr.count("\n") == 1


def test_the_state_folder_may_come_from_the_environment(busy, dljob, monkeypatch):
    monkeypatch.setenv("DLJOB_STATE", str(busy.up.root))
    assert len(dljob("get", "-o", "name").stdout.splitlines()) == 2


def test_gpus_are_listed_taken_out_and_given_back(busy):
    assert busy("gpu", "cordon", "n1/3", "n1/0", "--reason", "hot").stdout == (
        "n1/3 cordoned\nn1/0 cordoned\n"
    )
    first, *_, last = table(busy("gpu", "list").stdout)
    assert (first["GPU"], first["STATE"], first["JOB"], first["REASON"]) == (
        *("n1/0", "in use", "runs", "hot"),
    )
    assert (last["GPU"], last["STATE"], last["REASON"]) == ("n1/3", "unavailable", "hot")
    assert table(busy("gpu", "list", "-o", "wide").stdout)[1]["UUID"] == "GPU-n1-1"
    (node,) = busy("gpu", "list", "n1/3", "n1/1", "-o", "json").data
    assert [gpu["index"] for gpu in node["gpus"]] == [1, 3]
    missing = busy("gpu", "list", "n1/3", "n9/0")
    assert (missing.status, missing.stdout) == (1, "")
    assert missing.stderr == "dljob: no GPU or node n9/0; dljob gpu list names all\n"
    assert busy("gpu", "uncordon", "n1/3", "n1/2").stdout == (
        "n1/3 uncordoned\nn1/2 was not cordoned\n"
    )


def test_jobs_are_held_and_released(busy):
    assert busy("hold", "--all", "--reason", "an upgrade").stdout == "all jobs: on hold\n"
    assert busy("hold", "lab").stdout == "the jobs of lab: on hold\n"
    assert table(busy("hold").stdout) == [
        {"NAMESPACE": "*", "REASON": "an upgrade"},
        {"NAMESPACE": "lab", "REASON": "-"},
    ]
    assert busy("hold", "--all", "--release").stdout == "all jobs: released\n"
    assert busy("hold", "--all", "--release").stdout == "all jobs: not on hold\n"
    wrong = busy("hold", "No_Namespace")
    assert (wrong.status, wrong.stderr) == (
        1,
        "dljob: No_Namespace: is no name of a namespace; * means all jobs\n",
    )
    for words in (("--all", "lab"), ("--release",)):
        assert "name namespaces, or give --all" in busy("hold", *words).stderr


def test_wrong_gpu_is_wrong_usage(dljob, tmp_path):
    for gpu in ("n1", "n1/", "/3", "n1/x", "n1/-1", "n1/99999999"):
        result = dljob("gpu", "cordon", gpu, "--state", tmp_path)
        assert result.status == 2
        assert "is not a GPU; write NODE/NUMBER, such as n1/3" in result.stderr


def test_settings_are_shown_as_a_table_and_as_a_file(played):
    rows = {row["SETTING"]: row for row in table(played("config", "show").stdout)}
    assert (rows["seed"]["VALUE"], rows["seed"]["FROM"]) == ("3", "settings.yaml")
    assert rows["policy"]["FROM"] == "default"
    tree = yaml.safe_load(played("config", "show", "-o", "yaml").stdout)
    assert (tree["seed"], tree["pace"]["periodSeconds"]) == (3, 15.0)
    assert (
        "The seed of the policies that draw random numbers."
        in played("config", "show", "-o", "wide").stdout
    )


@pytest.mark.processes
def test_colours_are_for_a_terminal_only(busy):
    def seen(**environment):
        words = ("get", "--state", busy.up.root)
        with Terminal(*words, cwd=busy.folder, TERM="xterm", **environment) as terminal:
            assert terminal.status() == 0
        return terminal.seen

    assert "\x1b[32mRunning" in seen()
    assert "\x1b" not in seen(NO_COLOR="1")
    assert "\x1b" not in busy("get").stdout


def test_completion_scripts_exist_for_each_shell(dljob):
    for shell in ("bash", "zsh", "fish"):
        assert "_DLJOB_COMPLETE" in dljob("completion", shell).stdout
    assert dljob("completion", "csh").status == 2

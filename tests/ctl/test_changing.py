"""Changes of existing jobs: the selection of jobs, set, apply, edit, and waiting for them."""

import stat
import threading
from shlex import quote

import pytest
import yaml

from dljob.cli.inputs.spans import read_span
from dljob.client.demands import Demand
from dljob.client.jobviews import PHASES
from dljob.client.local.local_backend import LocalBackend
from dljob.core.model import CauseCode, JobId, Phase
from tests.ctl.terminals import Terminal
from tests.local.stages import job_document


@pytest.fixture
def several(played):
    """Two jobs of one team, and another one."""
    documents = [job_document(name) for name in ("a", "b", "c")]
    for document in documents[:2]:
        document["metadata"]["labels"] = {"team": "vision"}
    assert played("submit", played.file(*documents)).status == 0
    return played


def spec_of(played, name):
    return played("get", name, "-o", "json").data["spec"]


# --- which jobs are meant -----------------------------------------------------------------


def test_every_verb_takes_names_as_get_prints_them(several):
    named = several("get", "a", "-o", "name").stdout.strip()
    assert named == "dljob.dljob.io/a"
    assert several("suspend", named).stdout == "a suspended\n"
    for verb in (["why"], ["describe"], ["history"], ["get"], ["logs"], ["wait", "--for=queued"]):
        assert several(*verb, named, *(["--timeout=0"] if verb[0] == "wait" else [])).status != 1
    assert several("resume", "dljobs.dljob.io/a").stdout == "a resumed\n"
    assert several("cancel", named).stdout == "a cancelled\n"


def test_labels_and_all_choose_the_jobs_that_a_verb_applies_to(several):
    assert several("suspend", "-l", "team=vision", "-y").stdout == "a suspended\nb suspended\n"
    assert several("suspend", "--all", "-y").stdout == "c suspended\n"
    result = several("suspend", "--all", "-y")
    assert (result.status, result.stdout, result.stderr) == (0, "", "There is no job to suspend.\n")
    assert several("resume", "-l", "team!=vision", "-y").stdout == "c resumed\n"
    several.do("record", "c", phase=Phase.COMPLETED)
    assert several("resume", "--all", "-y").stdout == "a resumed\nb resumed\n"
    assert several("cancel", "--all", "-y").stdout == "a cancelled\nb cancelled\nc cancelled\n"


def test_guessed_target_needs_a_confirmation(several):
    result = several("cancel", "--all")
    assert (result.status, result.stdout) == (2, "")
    assert "cancel 3 jobs (a, b, c), and standard input is not a terminal" in result.stderr
    assert several("get", "-o", "name").stdout.count("\n") == 3


@pytest.mark.processes
def test_question_says_if_checkpoints_stay(several):
    folder = several.up.stage.folders.checkpoints("a")
    folder.mkdir(parents=True)
    (folder / "latest.pt").write_bytes(b"weights")
    words = ("cancel", "-l", "team=vision", "--state", several.up.root)
    for answer, status, left in (("n", 1, 3), ("y", 0, 1)):
        with Terminal(*words, cwd=several.folder) as terminal:
            terminal.until("Cancel 2 jobs (a, b)? [y/N]")
            assert "those of Completed jobs are kept." in terminal.seen
            terminal.type(f"{answer}\n")
            assert terminal.status() == status
        jobs = several("get", "-o", "json").data["items"]
        assert sum("cancelled" not in job["status"] for job in jobs) == left


def test_cancel_says_if_checkpoints_stay(several):
    folders = several.up.stage.folders
    for name in ("a", "b"):
        folders.checkpoints(name).mkdir(parents=True)
        (folders.checkpoints(name) / "latest.pt").write_bytes(b"weights")
    several.do("record", "b", phase=Phase.COMPLETED)
    kept = f"b cancelled; its checkpoints are kept in {folders.checkpoints('b')}\n"
    lines = f"a cancelled; its checkpoints are removed\n{kept}c cancelled\n"
    assert several("cancel", "--all", "-y").stdout == lines

    # A user can correct the choice while the job ends.
    kept = f"a cancelled; its checkpoints are kept in {folders.checkpoints('a')}\n"
    assert several("cancel", "a", "--keep-checkpoints").stdout == kept
    assert several("cancel", "a", "--remove-checkpoints").stdout == kept
    both = several("cancel", "a", "--keep-checkpoints", "--remove-checkpoints")
    assert (both.status, "exclude each other" in both.stderr) == (2, True)


def test_jobs_are_named_in_one_way(dljob, tmp_path):
    for words in ([], ["a", "--all"], ["a", "-l", "x"], ["--all", "-l", "x"]):
        assert dljob("suspend", *words, "--state", tmp_path).status == 2


# --- set ----------------------------------------------------------------------------------


def test_gpus_and_priority_of_a_job_are_set(several):
    result = several("set", "a", "--gpus", "1-3", "--priority", 5)
    assert result.stdout == "a changed: spec.gpus 1-2,4 -> 1-3, spec.priority 0 -> 5\n"
    assert spec_of(several, "a")["gpus"] == {"min": 1, "max": 3}
    assert several("set", "a", "--max-gpus", 2).stdout == "a changed: spec.gpus 1-3 -> 1-2\n"
    assert several("set", "a", "--priority", 5).stdout == "a is unchanged\n"
    result = several("set", "-l", "team=vision", "-y", "--min-gpus", 2)
    assert result.stdout == ("a changed: spec.gpus 1-2 -> 2\nb changed: spec.gpus 1-2,4 -> 2,4\n")
    assert several("set", "a").status == 2
    assert several("set", "x", "--priority", 1).status == 1


def test_gpu_demand_is_written_as_in_a_file():
    gpus = {"options": [1, 2, 4], "requested": 4, "types": ["A100"]}
    assert Demand(counts={"options": [1, 2]}).changed(gpus) == {
        "options": [1, 2],
        "types": ["A100"],
    }
    assert Demand(least=2).changed(gpus) == {"options": [2, 4], "requested": 4, "types": ["A100"]}
    assert Demand(least=2).of_new_job() == {"min": 2, "max": 2}
    assert Demand(most=4).of_new_job() == {"min": 1, "max": 4}
    assert Demand().of_new_job() == {"options": [1]}


def test_wrong_number_of_gpus_is_wrong_usage(dljob, tmp_path):
    for counts in ("0", "4-1", "x", "1,,2", "-1", "1.5", "1-2-3"):
        result = dljob("set", "a", "--gpus", counts, "--state", tmp_path)
        assert result.status == 2
        assert "is not a number of GPUs; write 4, or 1,2,4 for one of these" in result.stderr


# --- apply --------------------------------------------------------------------------------


def test_apply_submits_new_and_changes_existing_jobs(played):
    document = job_document("a")
    path = played.file(document, job_document("b"))
    assert played("apply", path).stdout == "a submitted\nb submitted\n"
    assert played("apply", path).stdout == "a is unchanged\nb is unchanged\n"
    played("suspend", "a")
    document["spec"] |= {"gpus": {"options": [1, 2]}, "priority": 7}
    document["metadata"]["labels"] = {"team": "vision"}
    path = played.file(document, job_document("c"))
    told = "changed: spec.gpus 1-2,4 -> 1-2, spec.priority 0 -> 7, metadata.labels\n"
    dry = played("apply", path, "--dry-run")
    assert dry.stdout == f"a would be {told}c would be submitted\n"
    assert played("apply", path).stdout == f"a {told}c submitted\n"
    job = played("get", "a", "-o", "json").data
    # The file does not say that it is suspended, so it stays so.
    assert (job["spec"]["suspend"], job["spec"]["priority"]) == (True, 7)
    assert job["metadata"]["labels"] == {"team": "vision"}
    assert played("apply", path, "-o", "name").stdout.splitlines() == [
        *("dljob.dljob.io/a", "dljob.dljob.io/c")
    ]


def test_a_change_that_may_not_be_is_refused_by_field_and_nothing_is_done(played):
    played.submit("a", "b")
    document = job_document("a", priority=3, training={"iterations": 2000})
    result = played("apply", played.file(job_document("new"), document))
    assert (result.status, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert ": spec.training.iterations: it cannot change while the job runs, because" in line
    assert played("get", "-o", "name").stdout == "dljob.dljob.io/a\ndljob.dljob.io/b\n"
    assert spec_of(played, "a").get("priority", 0) == 0
    played.do("record", "a", phase=Phase.COMPLETED)
    result = played("apply", played.file(job_document("a", priority=3)))
    assert result.stderr.endswith(
        "a: a is Completed already; submit it under another name to train it again\n"
    )


# --- edit ---------------------------------------------------------------------------------


@pytest.fixture
def editor(played, monkeypatch, tmp_path):
    """Make an editor of a script of sed, and keep the texts that it was shown."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("VISUAL", raising=False)

    def become(*scripts):
        """Each time it is opened, the next script is run, the last one again and again."""
        path = tmp_path / "editor"
        cases = [f"{n}) sed -i {quote(each)} $1;;" for n, each in enumerate(scripts[:-1])]
        path.write_text(
            f"#!/bin/bash\nn=$(ls {tmp_path}/shown.* 2>/dev/null | wc -l)\n"
            f"cp $1 {tmp_path}/shown.$n\n"
            f"case $n in {' '.join(cases)} *) sed -i {quote(scripts[-1])} $1;; esac\n",
            encoding="utf-8",
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("EDITOR", str(path))

    return become


def test_error_returns_as_a_comment_above_the_edit(several, editor):
    editor("s/^spec:/spec: # mine\\n  priority: high/", "s/priority: high/priority: 4/")
    assert several("edit", "a").stdout == "a changed: spec.priority 0 -> 4\n"
    first, second = ((several.folder / f"shown.{n}").read_text(encoding="utf-8") for n in (0, 1))
    assert first.startswith("#| Change the job, save and leave the editor.")
    assert "status" not in yaml.safe_load(first)
    assert list(several.folder.glob("dljob-*")) == []
    assert "#| Not done: text:" in second
    assert 'spec.priority: "high" is a string, not a whole number' in second
    assert "spec: # mine\n" in second


def test_a_text_that_is_given_up_is_kept(several, editor):
    editor("s/iterations: 1000/iterations: 5/", "s/name: a$/name: z/", "s/^spec: *$/spec: [/")
    result = several("edit", "a")
    assert result.status == 1
    (kept,) = several.folder.glob("dljob-a-*.yaml")
    assert f"what you wrote is in {kept}" in result.stderr
    told = [path.read_text(encoding="utf-8") for path in sorted(several.folder.glob("shown.*"))]
    complaints = ("iterations: it cannot change", "a job cannot be renamed", "is not YAML")
    for text, complaint in zip(told[1:4], complaints, strict=True):
        assert complaint in text
    assert spec_of(several, "a")["training"] == {"iterations": 1000}


def test_nothing_is_changed_where_nothing_is_written_or_the_editor_fails(several, editor):
    editor("s/x/x/")
    result = several("edit", "a")
    assert (result.status, result.stderr) == (0, "Nothing is changed.\n")
    assert list(several.folder.glob("dljob-*")) == []
    (several.folder / "editor").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    result = several("edit", "a")
    assert result.status == 1
    assert "editor: Editing failed; nothing" in result.stderr
    assert "is changed, and the text is in" in result.stderr


def test_a_change_of_another_is_not_written_over_unseen(several, editor, monkeypatch):
    read, reads = LocalBackend.get_job, []

    def read_and_be_overtaken(self, name):
        reads.append(name)
        if len(reads) == 2:
            document = read(self, name)
            self.replace_job({**document, "spec": {**document["spec"], "backoffLimit": 9}})
        return read(self, name)

    monkeypatch.setattr(LocalBackend, "get_job", read_and_be_overtaken)
    editor("s/^spec:/spec:\\n  priority: 4/", "s/priority: 4/priority: 5/")
    assert several("edit", "a").stdout == (
        "a changed: spec.priority 0 -> 5, spec.backoffLimit 9 -> 3\n"
    )
    second = (several.folder / "shown.1").read_text(encoding="utf-8")
    assert "changed meanwhile by another command: spec.backoffLimit 3 -> 9" in second


def test_a_change_that_the_operator_overtakes_is_made_once_more(several, monkeypatch):
    read = LocalBackend.get_job
    overtaken: list[str] = []

    def read_too_early(self, name):
        document = read(self, name)
        if len(overtaken) < 4:
            overtaken.append(name)
            annotations = {"times": str(len(overtaken))}
            self.replace_job(
                {**document, "metadata": {**document["metadata"], "annotations": annotations}}
            )
        return document

    document = job_document("a", priority=4)
    document["metadata"]["labels"] = {"team": "vision"}
    path = several.file(document, name="changed.yaml")
    monkeypatch.setattr(LocalBackend, "get_job", read_too_early)
    result = several("apply", path)
    assert result.stdout == "a changed: spec.priority 0 -> 4\n", result.stderr
    assert len(overtaken) == 4


# --- wait ---------------------------------------------------------------------------------


def test_it_is_waited_for_a_phase(several):
    several.do("give", "a", {"n1": (0, 1)})
    assert several("wait", "a", "--for", "running").stdout == "a is Running\n"
    threading.Timer(
        0.3, several.do, ["record", "a"], {"phase": Phase.COMPLETED, "message": "done"}
    ).start()
    assert several("wait", "a").stdout == "a is Completed\n"
    # A job that has ended reaches no other phase any more.
    result = several("wait", "a", "--for", "phase=Running", "--timeout", "1h")
    assert (result.status, result.stderr) == (
        1,
        "dljob: a is Completed (done), and will not be Running any more\n",
    )


def test_exit_status_says_how_waiting_ended(several):
    several.do("record", "b", phase=Phase.FAILED, message="broke")
    result = several("wait", "b")
    assert (result.status, result.stdout) == (1, "b is Failed\n")
    assert several("wait", "b", "--for", "failed").status == 0
    result = several("wait", "a", "c", "--for", "Completed", "--timeout", 0)
    assert result.status == 124
    assert result.stderr == (
        "dljob: a is not Completed within the time\ndljob: c is not Completed within the time\n"
    )
    assert several("wait", "x", "--for", "running").status == 1
    assert several("wait", "x", "--for", "deleted").status == 0


def test_it_is_waited_for_a_condition_and_for_the_end_of_all_of_it(several):
    several.do("take", "a", CauseCode.NO_ROOM)
    result = several("wait", "a", "--for", "condition=Scheduled=False", "--timeout", 0)
    assert result.status == 124
    several("cancel", "a")
    threading.Timer(0.3, several.up.do, [lambda stage: stage.registry.forget(JobId("a"))]).start()
    assert several("wait", "a", "--for", "deleted").stdout == "a is deleted\n"


def test_unknown_goal_is_wrong_usage(dljob, tmp_path):
    for goal in ("", "done", "condition=", "condition=X=maybe", "phase=x"):
        result = dljob("wait", "a", "--for", goal, "--state", tmp_path)
        assert result.status == 2
        assert "is not a goal to wait for; write finished, deleted" in result.stderr


def test_the_phases_are_those_of_the_core():
    assert tuple(phase.value for phase in Phase) == PHASES


def test_lengths_of_time_are_read():
    spans = {"90": 90, "1.5s": 1.5, "5m": 300, "1h30m": 5400, "2d": 172800}
    assert {text: read_span(text) for text in spans} == spans


# --- get ----------------------------------------------------------------------------------


def test_jobs_are_listed_by_phase_with_their_ends(several):
    several.do("record", "b", phase=Phase.COMPLETED, started_at=1e9, finished_at=1e9 + 90.0)
    result = several("get", "--phase", "completed", "-o", "wide")
    header, row = result.stdout.splitlines()
    assert header.split()[8:11] == ["DURATION", "AGE", "FINISHED"]
    cells = row.split("   ")
    assert row.startswith("b ")
    assert "90s" in [cell.strip() for cell in cells]
    assert several("get", "--phase", "queued").stderr == "No job is Queued.\n"
    both = several("get", "--phase", "queued", "--phase", "completed", "-o", "name")
    assert both.stdout == "dljob.dljob.io/b\n"

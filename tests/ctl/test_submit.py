"""Jobs are refused before anything happens, each with the place, the field, what is wrong and what to do."""

import io
import re
from pathlib import Path

import pytest
import yaml

from dljob.cli.main import run
from tests.local.stages import job_document

WRONG_JOBS = sorted((Path(__file__).parents[1] / "core" / "data" / "wrong_jobs").glob("*.yaml"))
WRONG = "# wrong: "
EXAMPLES = Path(__file__).parents[2] / "examples"
IN_A_CONTAINER = EXAMPLES / "container" / "job.yaml"


def names(played):
    return played("get", "-o", "name").stdout.splitlines()


def test_a_wrong_file_is_refused_in_its_own_words_before_a_server_is_asked(dljob, tmp_path):
    # What is told of each of them is in tests/core.
    for path in WRONG_JOBS[::20]:
        text = path.read_text(encoding="utf-8")
        expected = [
            line.removeprefix(WRONG) for line in text.splitlines() if line.startswith(WRONG)
        ]
        # No server answers in this folder.
        result = dljob("submit", path, "--state", tmp_path)
        assert (result.status, result.stdout) == (1, "")
        told = result.stderr.splitlines()
        assert all(line.startswith(f"dljob: {path}:") for line in told)
        for line in expected:
            assert any(each.endswith(f": {line}") for each in told), (line, told)


def test_a_file_of_several_jobs_is_taken_in_whole(played):
    result = played("submit", played.file(*(job_document(name) for name in "abc")))
    assert (result.status, result.stdout, result.stderr) == (
        0,
        "a submitted\nb submitted\nc submitted\n",
        "",
    )
    assert len(names(played)) == 3
    assert played.up.do(lambda stage: stage.wakes) == 1


def test_problem_of_the_place_names_the_line_of_the_file(played):
    needy = job_document("needy")
    needy["spec"]["template"]["spec"]["volumes"] = [{"name": "data"}]
    needy["spec"]["template"]["spec"]["containers"][0]["image"] = "python:3.11"
    path = played.file(job_document("a"), needy)
    result = played("submit", path)
    assert result.status == 1
    (line,) = result.stderr.splitlines()
    assert line.endswith(
        ": spec.template.spec.volumes: needs a cluster; remove it, or run the job on a cluster"
    )
    assert line.startswith(f"dljob: {path}:")
    assert names(played) == []
    del needy["spec"]["template"]["spec"]["volumes"]
    result = played("submit", played.file(needy))
    assert result.stdout == "needy submitted\n"
    assert result.stderr == (
        "note: spec.template.spec.containers[0].image has no effect on one machine\n"
    )


def test_a_name_that_is_taken_is_refused_with_both_ways_out(played):
    path = played.file(job_document("a"))
    played("submit", path)
    result = played("submit", path)
    assert (result.status, result.stdout) == (1, "")
    assert result.stderr == (
        f'dljob: {path}:4: metadata.name: "a" is a job already (Submitted);'
        " choose another name, or remove that one first: dljob cancel a\n"
    )
    assert played(
        "submit", played.file(job_document("b")), played.file(job_document("b"))
    ).stderr.endswith('metadata.name: "b" is submitted twice; give every job a name of its own\n')


def test_jobs_come_from_several_files_from_folders_and_from_standard_input(played, monkeypatch):
    folder = played.folder / "jobs"
    folder.mkdir()
    for name in ("b", "a"):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(job_document(name)), encoding="utf-8")
    (folder / "notes.txt").write_text("no job", encoding="utf-8")
    typed = io.BytesIO(yaml.safe_dump(job_document("c")).encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(typed))
    done = played("submit", "-", folder)
    assert done.stdout.splitlines() == ["c submitted", "a submitted", "b submitted"], done.stderr


def test_file_without_jobs_is_refused(played):
    for text, error in (
        (None, "jobs.yaml: cannot be read (No such file or directory); check the path"),
        ("a: [", "jobs.yaml:1: is not YAML ("),
        ("---\n---\n", "jobs.yaml: holds no DLJob; put at least one DLJob into it"),
        ("a: 2020-02-30", "jobs.yaml: is not YAML that can be read ("),
        ("- 1", "jobs.yaml:1: the document is a list, not a DLJob; begin with apiVersion"),
    ):
        if text is not None:
            (played.folder / "jobs.yaml").write_text(text, encoding="utf-8")
        result = played("submit", "jobs.yaml")
        assert (result.status, result.stdout) == (1, "")
        assert result.stderr.startswith(f"dljob: {error}")
        assert result.stderr.count("\n") == 1


def test_relative_paths_of_a_job_begin_where_it_was_submitted(played):
    played("submit", played.file(job_document("a")))
    elsewhere = job_document("b")
    elsewhere["metadata"]["annotations"] = {"dljob.io/working-directory": "/usr"}
    played("submit", played.file(elsewhere))
    annotation = "dljob.io/working-directory"
    there = {
        item["metadata"]["name"]: item["metadata"]["annotations"][annotation]
        for item in played("get", "-o", "json").data["items"]
    }
    assert there == {"a": str(played.folder), "b": "/usr"}


def test_submitted_jobs_are_printed_in_each_format(played):
    def submit(name, output):
        return played("submit", played.file(job_document(name)), "-o", output)

    assert submit("a", "name").stdout == "dljob.dljob.io/a\n"
    assert submit("b", "json").data["status"]["phase"] == "Submitted"
    assert yaml.safe_load(submit("c", "yaml").stdout)["metadata"]["name"] == "c"
    both = played("submit", played.file(job_document("d"), job_document("e")), "-o", "json").data
    assert [item["metadata"]["name"] for item in both["items"]] == ["d", "e"]


# --- what would become of it --------------------------------------------------------------


@pytest.fixture
def busy(played):
    """One job that has all GPUs and would lose little by giving two away."""
    played.submit("wide", gpus={"options": [2, 4]})
    played.do(
        "give", "wide", {"n1": (0, 1, 2, 3)}, speed=3.0, iteration=400, iterations_total=1000.0
    )
    return played


def test_dry_run_shows_the_decision_and_its_victims(busy):
    result = busy("submit", busy.file(job_document("new", gpus={"options": [2]})), "--dry-run")
    assert (result.status, result.stderr) == (0, "")
    own, gap, title, other = result.stdout.splitlines()
    assert own.startswith("new starts on 2 GPUs on n1: ")
    assert (
        "it begins once wide has released them; about 1.74 it/s (100 % sure); done in about" in own
    )
    assert (gap, title) == ("", "Effects on other jobs:")
    assert other.startswith(
        "  wide goes from 4 to 2 GPUs on n1: it makes room for new, which starts up to 3 min"
    )
    assert other.endswith(" instead of 3m20s")
    assert names(busy) == ["dljob.dljob.io/wide"]


def test_dry_run_of_a_waiting_job_shows_its_turn(busy):
    result = busy("submit", busy.file(job_document("new", gpus={"options": [4]})), "--dry-run")
    (line, *_) = result.stdout.splitlines()
    assert line.startswith("new waits: needs 4 GPUs")
    assert "; it is the next of the jobs that wait; it is expected to start in" in line
    assert "if running jobs end as predicted and no other job comes" in line


def test_a_dry_run_is_also_a_document(busy):
    path = busy.file(job_document("new", gpus={"options": [2]}))
    own, other = busy("submit", path, "--dry-run", "-o", "json").data
    assert (own["job"], own["submitted"], other["job"]) == ("new", True, "wide")
    assert yaml.safe_load(busy("submit", path, "--dry-run", "-o", "yaml").stdout)[0]["job"] == "new"
    assert busy("submit", path, "--dry-run", "-o", "name").stdout == "new\nwide\n"


def test_the_examples_can_be_submitted_as_they_are(played):
    for path in sorted(EXAMPLES.glob("*/job.yaml")):
        if path != IN_A_CONTAINER:
            dry_run = ["submit", str(path), "--dry-run", "--state", str(played.up.root)]
            assert run(dry_run) == 0, path


def test_container_example_needs_only_an_engine(played):
    result = played("submit", IN_A_CONTAINER, "--dry-run")
    lacking = r"dljob: .*job\.yaml:\d+: spec\.environment\.container\.(engine|image): .+; .+"
    for line in result.stderr.splitlines():
        assert re.fullmatch(lacking, line), line
    assert result.status == (1 if result.stderr else 0)

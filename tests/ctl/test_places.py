"""Errors name the line of the field, keys are given once, many errors are counted, shells complete."""

from click.shell_completion import ShellComplete

from dljob.cli.main import cli
from dljob.cli.output.messages import MOST_LINES
from dljob.core import policies as offered
from dljob.sim import policies as simulated
from tests.local.stages import job_document

WRONG = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata:
  name: wrong
spec:
  gpus:
    options:
    - 1
    - 0
  training:
    iterations: 10
  priority: high
  progress:
    log: step (?P<iteration>[0-9]+)
  template:
    spec:
      containers:
      - name: trainer
        command: python train.py
---
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: second}
spec:
  gpus: {options: [1], watts: 3}
  progress: {log: 'step (?P<iteration>[0-9]+)'}
  template: {spec: {containers: [{name: trainer, command: [x]}]}}
"""


def lines_of(result):
    told = [line.split(": ") for line in result.stderr.splitlines()]
    return [(int(place.rpartition(":")[2]), field) for _, place, field, *_ in told]


def test_each_error_names_the_line_of_its_field(played):
    path = played.folder / "wrong.yaml"
    path.write_text(WRONG, encoding="utf-8")
    for verb in (["submit"], ["submit", "--dry-run"], ["apply"], ["render"]):
        words = (*verb, path)
        result = played(*words) if verb != ["render"] else played._dljob(*words)
        assert lines_of(result) == [
            (9, "spec.gpus.options[1]"),
            (12, "spec.priority"),
            (19, "spec.template.spec.containers[0].command"),
            (25, "spec.gpus.watts"),
            # A missing field has the line of the object that lacks it.
            (24, "spec.training"),
        ], verb
    assert played("get").stderr == "There are no jobs.\n"


def test_problem_found_by_the_server_has_a_line(played):
    document = job_document("a")
    document["spec"]["template"]["spec"]["volumes"] = [{"name": "data"}]
    path = played.file(document)
    text = path.read_text(encoding="utf-8").splitlines()
    line = next(n for n, each in enumerate(text, start=1) if "volumes" in each)
    assert lines_of(played("submit", path)) == [(line, "spec.template.spec.volumes")]
    played.submit("b")
    path = played.file(job_document("b", training={"iterations": 5}))
    text = path.read_text(encoding="utf-8").splitlines()
    line = next(n for n, each in enumerate(text, start=1) if "iterations: 5" in each)
    assert lines_of(played("apply", path)) == [(line, "spec.training.iterations")]


def test_of_a_list_the_line_is_that_of_the_item(played):
    document = {"kind": "DLJobList", "items": [job_document("a"), job_document("b", priority="x")]}
    path = played.file(document)
    text = path.read_text(encoding="utf-8").splitlines()
    line = next(n for n, each in enumerate(text, start=1) if "priority: x" in each)
    assert lines_of(played("submit", path)) == [(line, "spec.priority")]


def test_a_key_that_is_given_twice_is_refused_with_both_lines(played):
    path = played.folder / "twice.yaml"
    for text, told in (
        ("a: 1\nb: 2\na: 3\n", ':3: "a" is given twice, on lines 1 and 3; keep one of them'),
        ("x:\n- {k: 1, k: 2}\n", ':2: "k" is given twice, on lines 2 and 2; keep one of them'),
        ("a: 1\n---\nb: &b {c: 1}\nd: *b\nb: 2\n", ':5: "b" is given twice, on lines 3 and 5'),
        # An anchor that contains itself is not followed for ever.
        ("a: &a {b: *a}\n", ":1: "),
    ):
        path.write_text(text, encoding="utf-8")
        result = played("submit", path)
        assert result.status == 1
        assert f"{path}{told}" in result.stderr


def test_many_errors_are_shown_in_part_and_counted(played):
    path = played.file(*(job_document(f"j{n}", priority="x") for n in range(MOST_LINES + 30)))
    told = played("submit", path).stderr.splitlines()
    assert len(told) == MOST_LINES + 1
    assert told[-1] == "dljob: and 30 more problems; fix these first"


def complete(*words, incomplete=""):
    shell = ShellComplete(cli, {}, "dljob", "_DLJOB_COMPLETE")
    return [(each.value, each.type) for each in shell.get_completions(list(words), incomplete)]


def test_shells_complete_files_policies_gpus_and_jobs(played, tmp_path, monkeypatch):
    monkeypatch.setenv("DLJOB_STATE", str(played.up.root))
    played.submit("bert", "resnet")
    assert complete(incomplete="sus") == [("suspend", "plain")]
    for verb in ("submit", "apply", "render"):
        assert [kind for _, kind in complete(verb, incomplete="jo")] == ["file"]
    assert complete("gpu", "cordon", incomplete="n1/") == [(f"n1/{n}", "plain") for n in range(4)]
    assert ("n1", "plain") in complete("gpu", "list")
    for verb, names in (
        ("simulate", simulated.NAMES),
        ("compare", simulated.NAMES),
        ("up", offered.NAMES),
    ):
        assert [name for name, _ in complete(verb, "--policy")] == list(names)
    for verb in ("why", "cancel", "set", "wait", "edit", "logs"):
        assert complete(verb, incomplete="be") == [("bert", "plain")], verb
    # What is away completes nothing.
    assert complete("gpu", "cordon", "--state", str(tmp_path)) == []

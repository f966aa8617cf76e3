"""The verbs that change jobs, wait for them and run them, and the queue, against a real control plane."""

import re
import sys

import pytest

from tests.ctl.test_jobs import table
from tests.operator.test_kubectl import cells_of

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

FOREVER = 10**6
UNSAVED = (
    "no checkpoint: it keeps the GPUs it starts with, unless a job of a higher priority needs them"
)


@pytest.fixture(scope="module")
def pair(scene):
    """Two suspended jobs of one team, which hold no GPUs of others, and one without labels."""
    stage = scene.stage
    for name in ("one", "two", "other"):
        document = stage.make_job(name, iterations=FOREVER)
        if name != "other":
            document["metadata"]["labels"] = {"team": "vision"}
        document["spec"]["suspend"] = True
        stage.api.post(stage.path(), document)
    for name in ("one", "two", "other"):
        stage.wait_for_phase(name, "Suspended")
    return ("one", "two")


def spec_of(scene, name):
    return scene.stage.job(name)["spec"]


# --- changes ------------------------------------------------------------------------------


def test_apply_submits_new_jobs_and_changes_known_ones(scene, ada):
    document = scene.stage.make_job("applied", iterations=FOREVER)
    document["spec"]["suspend"] = True
    path = ada.file(document)
    assert ada("apply", path, "--dry-run").stdout == "applied would be submitted\n"
    assert scene.stage.is_gone("applied")
    assert ada("apply", path).stdout == "applied submitted\n"
    assert ada("apply", path).stdout == "applied is unchanged\n"
    document["spec"]["priority"] = 7
    changed = "spec.priority 0 -> 7"
    assert ada("apply", ada.file(document)).stdout == f"applied changed: {changed}\n"
    assert spec_of(scene, "applied")["priority"] == 7
    other = scene.stage.make_job("other-one", iterations=10)
    other["spec"]["priority"] = 10**12
    refused = ada("apply", ada.file(document | {"spec": document["spec"] | {"priority": 8}}, other))
    assert (refused.status, refused.stdout) == (1, "")
    assert "spec.priority" in refused.stderr
    assert spec_of(scene, "applied")["priority"] == 7
    assert ada("cancel", "applied", "--wait").status == 0


def test_set_changes_gpus_and_priority_of_named_and_of_labelled_jobs(scene, ada, pair):
    result = ada("set", "one", "--gpus", "1,2", "--priority", 3)
    assert result.stdout == "one changed: spec.gpus 1-2,4 -> 1-2, spec.priority 0 -> 3\n"
    result = ada("set", "-l", "team=vision", "-y", "--max-gpus", 2)
    assert result.stdout == "one is unchanged\ntwo changed: spec.gpus 1-2,4 -> 1-2\n"
    assert spec_of(scene, "two")["gpus"]["options"] == [1, 2]
    assert ada("set", "nothing", "--priority", 1).status == 1


def test_edit_writes_the_edited_text(scene, ada, pair, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/priority: [0-9]*/priority: 9/" "$1"\n')
    editor.chmod(0o755)
    ada("set", "two", "--priority", 1)
    result = ada("edit", "two", env={"EDITOR": str(editor), "VISUAL": ""})
    assert result.stdout == "two changed: spec.priority 1 -> 9\n", result.stderr
    assert spec_of(scene, "two")["priority"] == 9
    again = ada("edit", "two", env={"EDITOR": str(editor), "VISUAL": ""})
    assert (again.status, again.stderr) == (0, "Nothing is changed.\n")


def test_wait_ends_when_it_is_so_or_cannot_be_any_more_or_the_time_is_over(scene, ada, pair):
    assert ada("wait", "two", "--for", "suspended").stdout == "two is Suspended\n"
    late = ada("wait", "two", "--for", "running", "--timeout", "0")
    assert (late.status, late.stderr) == (124, "dljob: two is not Running within the time\n")
    scene.stage.submit("ends", iterations=40, gpus={"options": [1]})
    done = ada("wait", "ends", "--timeout", "240s")
    assert (done.status, done.stdout) == (0, "ends is Completed\n")
    never = ada("wait", "ends", "--for", "running", "--timeout", "240s")
    assert never.status == 1
    assert "will not be Running any more" in never.stderr
    condition = ada("wait", "ends", "--for", "condition=Scheduled=False", "--timeout", "240s")
    assert condition.stdout == "ends is Scheduled=False\n"


def test_run_submits_a_command_shows_its_output_and_ends_as_it_does(scene, ada):
    words = (sys.executable, "-c", "print('step 5'); raise SystemExit(3)")
    options = ("--name", "ran", "--image", "training:1")
    result = ada("run", *options, "--", *words)
    # The command finds the pod although the training ended before Kubernetes reported that it runs.
    assert "step 5\n" in result.stdout, result.stderr
    assert (result.status, "ran is Failed" in result.stderr) == (3, True)
    drafted = ada("run", *options, "--dry-run", "-o", "yaml", "--", *words)
    assert drafted.stdout.startswith("apiVersion: dljob.io/v1alpha1\n")


# --- the queue ----------------------------------------------------------------------------


@pytest.fixture
def queue(scene, pair):
    """All GPUs taken by a job that ends some time, and two that wait behind it."""
    stage = scene.stage
    stage.submit("holds", iterations=FOREVER, gpus={"options": [2]}, priority=5)
    stage.submit("holds-more", iterations=FOREVER, gpus={"options": [4]}, priority=5)
    for name in ("holds", "holds-more"):
        stage.wait_for_phase(name, "Running")
    for name, priority in (("next", 2), ("later", 1)):
        # As long as the others, because a short one would be worth more in spite of its priority.
        stage.submit(name, iterations=FOREVER, gpus={"options": [4]}, priority=priority)
    yield ("next", "later")
    for name in ("holds", "holds-more", "next", "later"):
        if not stage.is_gone(name):
            stage.api.delete(stage.path(name))
    for name in ("holds", "holds-more", "next", "later"):
        stage.wait(lambda name=name: stage.is_gone(name))


def test_the_operator_says_when_waiting_jobs_start_and_the_command_and_kubectl_show_it(
    scene, ada, queue
):
    stage = scene.stage

    def shown(name):
        return stage.status(name).get("queue", {})

    stage.wait(lambda: shown("next").get("ahead") == 0 and "expectedStart" in shown("next"))
    stage.wait(lambda: shown("later").get("ahead") == 1 and "expectedStart" in shown("later"))
    assert shown("next")["expectedStart"] < shown("later")["expectedStart"]
    rows = {row["NAME"]: row for row in table(ada("get").stdout)}
    assert re.fullmatch(r"\S+, next", rows["next"]["STARTS"])
    assert re.fullmatch(r"\S+, 1 ahead", rows["later"]["STARTS"])
    assert "queue" not in stage.status("holds")
    why = ada("why", "later").stdout
    assert "1 of the jobs that wait starts before it; it is expected to start in about" in why
    table_of = stage.plane.kubectl.in_namespace(scene.namespace)
    printed = table_of("get", "dljobs", "-o", "wide")
    assert [cells_of(printed, name)["AHEAD"] for name in queue] == ["0", "1"]

    def prints_what_is_shown():
        cells = cells_of(table_of("get", "dljobs", "-o", "wide"), "later")
        return cells["STARTS"] == shown("later")["expectedStart"]

    # The operator may write another expectation between both.
    stage.wait(prints_what_is_shown)
    maybe = ada.file(stage.make_job("maybe", iterations=10))
    told = ada("submit", maybe, "--dry-run").stderr
    assert "2 jobs that you may see wait now; the last is expected to start in about" in told

    # A job that starts is in the queue no longer.
    ada("suspend", "next")
    stage.wait_for_phase("next", "Suspended")
    stage.wait(lambda: "queue" not in stage.status("next") and shown("later").get("ahead") == 0)
    ada("cancel", "holds-more")
    stage.wait_for_phase("later", "Running")
    stage.wait(lambda: "queue" not in stage.status("later"))

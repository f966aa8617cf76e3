"""The examples are what they say, and their programs are programs."""

import ast
import re
from pathlib import Path

import pytest

from dlcore import jobfile
from dlcore.model import Framework
from dlcore.podrules import TRAINER
from tests.operator.manifests import EXAMPLES, read_jobs
from tests.servers.api import Json

each_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def trainer_of(job: Json) -> Json:
    containers = job["spec"]["template"]["spec"]["containers"]
    [trainer] = [each for each in containers if each["name"] == TRAINER]
    return dict(trainer)


def program_of(job: Json) -> str:
    """The source that ``python -c`` is given."""
    *words, program = trainer_of(job)["command"]
    assert words == ["python", "-c"]
    return str(program)


def test_there_is_one_for_each_framework():
    shown = {path.stem.removeprefix("framework-") for path in EXAMPLES if "framework-" in path.stem}
    assert shown == {framework.value for framework in Framework}


@each_example
def test_an_example_is_named_for_what_it_shows(path: Path):
    [job] = read_jobs(path)
    kind, _, shown = path.stem.partition("-")
    assert job["metadata"] == {"name": shown}
    assert kind in {"feature", "framework"}
    if kind == "framework":
        assert job["spec"].get("framework", "none") == shown
    assert path.read_text(encoding="utf-8").startswith("# ")


@each_example
def test_an_example_says_what_its_program_prints(path: Path):
    [job] = read_jobs(path)
    parsed = jobfile.parse(job, require_template=True)
    tree = ast.parse(program_of(job))
    if not parsed.progress.log:
        return
    printed = [
        "".join(
            str(part.value) if isinstance(part, ast.Constant) else "1"
            for part in node.args[0].values
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "print"
        and isinstance(node.args[0], ast.JoinedStr)
    ]
    assert any(re.search(parsed.progress.log, line) for line in printed)


@each_example
def test_an_example_goes_on_where_it_was_saved(path: Path):
    [job] = read_jobs(path)
    parsed = jobfile.parse(job, require_template=True)
    assert parsed.checkpoint.path == "/ckpt"
    mounts = {mount["mountPath"] for mount in trainer_of(job)["volumeMounts"]}
    assert "/ckpt" in mounts
    assert "/ckpt" in program_of(job)
    total = parsed.training.iterations
    assert total is not None
    assert f"{total + 1})" in program_of(job), "the program trains as long as the job says"

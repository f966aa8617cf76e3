"""The examples do what their names and comments say, and their programs run."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dljob.core.documents import jobfile
from dljob.core.documents.rules.podrules import TRAINER
from dljob.core.model import Checkpoint, Framework, Progress
from tests.operator.manifests import EXAMPLES, read_jobs
from tests.servers.api import Json
from tests.sidecar.drivers import wait_until

each_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def trainer_of(job: Json) -> Json:
    containers = job["spec"]["template"]["spec"]["containers"]
    [trainer] = [each for each in containers if each["name"] == TRAINER]
    return dict(trainer)


def program_of(job: Json) -> str:
    *words, program = trainer_of(job)["command"]
    assert words == ["python", "-c"]
    return str(program)


def test_each_framework_has_an_example():
    shown = {path.stem.removeprefix("framework-") for path in EXAMPLES if "framework-" in path.stem}
    assert shown == {framework.value for framework in Framework}


@each_example
def test_example_is_named_for_its_subject(path: Path):
    [job] = read_jobs(path)
    kind, _, shown = path.stem.partition("-")
    assert job["metadata"] == {"name": shown}
    assert kind in {"feature", "framework"}
    if kind == "framework":
        assert job["spec"].get("framework", "none") == shown
    assert path.read_text(encoding="utf-8").startswith("# ")


@each_example
def test_progress_pattern_matches_the_output(path: Path):
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
def test_example_resumes_from_its_checkpoint(path: Path):
    [job] = read_jobs(path)
    parsed = jobfile.parse(job, require_template=True)
    assert parsed.checkpoint.path == "/ckpt"
    assert "/ckpt" in {mount["mountPath"] for mount in trainer_of(job)["volumeMounts"]}
    assert "/ckpt" in program_of(job)
    total = parsed.training.iterations
    assert total is not None
    ends = (f"{total + 1})", f"while done < {total}:")
    assert any(end in program_of(job) for end in ends), "the program trains as long as the job"


NEEDS_OTHERS = {"feature-auxiliaries": "its parameter server"} | {
    f"framework-{framework.value}": "its framework"
    for framework in Framework
    if framework is not Framework.NONE
}
ALONE = [path for path in EXAMPLES if path.stem not in NEEDS_OTHERS]


def placed(text: str, folder: Path) -> str:
    return re.sub(r"(?<![\w.])/(ckpt|tmp)/", rf"{folder}/\1/", text)


@contextmanager
def trained(program: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run an example's program with small folders and short steps."""
    for name in ("ckpt", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    small = placed(program, folder).replace("time.sleep(0.5)", "time.sleep(0.01)")
    assert small.count("time.sleep(0.01)") == 1
    command = [sys.executable, "-c", small]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        yield training
        training.kill()


def first_iteration(training: subprocess.Popen[str], progress: Progress, folder: Path) -> int:
    if progress.file:
        file = Path(placed(progress.file, folder))
        wait_until(lambda: file.exists() and "\n" in file.read_text(), what="its progress")
        return int(json.loads(file.read_text().splitlines()[0])["iteration"])
    assert training.stdout is not None
    for line in training.stdout:
        if found := re.search(progress.log, line):
            return int(found["iteration"])
    pytest.fail("it ended without any progress")


@pytest.mark.processes
@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
def test_program_saves_and_resumes(path: Path, tmp_path: Path):
    [job] = read_jobs(path)
    parsed = jobfile.parse(job, require_template=True)
    saved = tmp_path / "ckpt" / "iteration"
    with trained(program_of(job), tmp_path) as training:
        assert first_iteration(training, parsed.progress, tmp_path) == 1
        ask_for_checkpoint(parsed.checkpoint, training, tmp_path)
        wait_until(saved.exists, what="its checkpoint")
    for file in (tmp_path / "tmp").iterdir():
        file.unlink()
    with trained(program_of(job), tmp_path) as training:
        goes_on = first_iteration(training, parsed.progress, tmp_path)
    assert goes_on == int(saved.read_text()) + 1


def ask_for_checkpoint(
    checkpoint: Checkpoint, training: subprocess.Popen[str], folder: Path
) -> None:
    if checkpoint.signal:
        os.kill(training.pid, signal.Signals[checkpoint.signal])
    else:
        subprocess.run(
            [placed(word, folder) for word in checkpoint.command], check=True, timeout=240.0
        )

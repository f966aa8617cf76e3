"""Six ordinary programs with a few lines for DLJob, on changing numbers of GPUs."""

from __future__ import annotations

import ast
import difflib
import re

import pytest
import yaml

from dljob.core.documents import jobfile
from dljob_wire.messages import Phase
from tests.sidecar.drivers import ROOT
from tests.sidecar.ordinary import (
    EXAMPLES,
    LAUNCHER,
    WIDTHS,
    begin,
    find_python,
    has_passed,
    wait_for,
    walk,
)

NAMES = ("torchrun", "huggingface", "accelerate", "lightning", "fsdp", "deepspeed")
UNKNOWING = ("digits", "replay", "pytorch", "tensorflow")
LIVE = ("live", "fsdp2")
MOST_LINES = {"live": 14}
PAGE = ROOT / "docs" / "training.md"
LOSS = re.compile(r"step (\d+) loss=([\d.]+)|'loss': '?([\d.]+)")


def read(name, file):
    return (EXAMPLES / name / file).read_text()


def difference(name):
    before, after = (read(name, file).splitlines() for file in ("before.py", "train.py"))
    lines = list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]
    return "\n".join("..." if line.startswith("@@") else line.rstrip() for line in lines)


@pytest.mark.parametrize("name", [*NAMES, "live"])
def test_ten_lines_are_enough(name):
    added = [line for line in difference(name).splitlines() if re.match(r"\+\s*\S", line)]
    assert 0 < len(added) <= MOST_LINES.get(name, 10)
    shown = re.search(rf"<!-- diff: {name} -->\n```diff\n(.*?)\n?```", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    assert shown.group(1) == difference(name)
    assert "dljob" not in read(name, "before.py").lower()


def test_job_files_are_valid():
    for name in (*NAMES, *LIVE, *UNKNOWING):
        job = jobfile.parse(yaml.safe_load(read(name, "job.yaml")), require_template=True)
        assert job.id == name
        if name not in UNKNOWING:
            assert job.processes == "perGpu", name
        else:
            assert "dljob" not in read(name, "train.py").lower(), name


def test_documented_calls_exist():
    from dljob import training

    named = set(re.findall(r"training\.(\w+)\(", PAGE.read_text()))
    assert named <= {*training.__all__}
    assert {*training.__all__} <= named | {"local_world_size", "is_leader", "process_batch_size"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for block in blocks:
        ast.parse(block)


def need_python(name):
    if not find_python(name).exists():
        pytest.skip(f"the packages of {name} are not installed; `make test-frameworks` says how")


def losses_of(log):
    """Return all losses in the order in which they were printed."""
    return [float(match[2] or match[3]) for match in LOSS.finditer(log)]


@pytest.mark.processes
@pytest.mark.frameworks
@pytest.mark.timeout(4500)
@pytest.mark.parametrize(
    ("name", "launcher"),
    [*((name, ()) for name in NAMES), ("torchrun", LAUNCHER)],
    ids=[*NAMES, "torchrun-itself"],
)
def test_training_continues_over_one_two_four_one(tmp_path, token, name, launcher):
    need_python(name)
    with begin(tmp_path, token, name, launcher=launcher) as sidecar:
        changes = walk(sidecar, launcher=bool(launcher))
        log = sidecar.read_log()

    for change in changes:
        ranks = sorted(int(each["RANK"]) for each in change.processes)
        # PyTorch's compiler, which DeepSpeed loads, forks processes that inherit the rank.
        ranks = sorted({*ranks}) if name == "deepspeed" else ranks
        assert ranks == list(range(change.width)), change
        worlds = {each["WORLD_SIZE"] for each in change.processes}
        assert worlds == {str(change.width)}
    # It goes on: the first step that is seen lies behind the last one that was.
    for change in changes[1:]:
        assert change.steps > change.reached > 0, change
    losses = losses_of(log)
    assert sum(losses[-3:]) < sum(losses[:3])
    if name in ("torchrun", "fsdp", "deepspeed"):
        begun = re.findall(r"rank 0 of (\d) begins at step (\d+)", log)
        assert [int(world) for world, _ in begun] == list(WIDTHS)
        steps = [int(step) for _, step in begun]
        assert steps == sorted(set(steps))


STEPS = 2000


@pytest.mark.processes
@pytest.mark.frameworks
@pytest.mark.timeout(4500)
@pytest.mark.parametrize("name", NAMES)
def test_final_step_matches_an_uninterrupted_run(tmp_path, token, name):
    need_python(name)
    final = {}
    for kind, widths in {"uninterrupted": (1,), "changed": (1, 2, 1)}.items():
        (tmp_path / kind).mkdir()
        with begin(tmp_path / kind, token, name, steps=STEPS) as sidecar:
            for generation, width in enumerate(widths, start=1):
                reached = sidecar.state().progress.iteration
                sidecar.run(generation, *map(str, range(width)), processes=width)
                wait_for(sidecar, has_passed(reached + 20, generation), "some steps")
            sidecar.wait_phase(Phase.EXITED)
            final[kind] = sidecar.state().progress.iteration
    assert final == {"uninterrupted": STEPS, "changed": STEPS}

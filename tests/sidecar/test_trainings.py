"""Six programs that were written for no scheduler, with their few lines more, on changing numbers of GPUs."""

from __future__ import annotations

import ast
import difflib
import re
from functools import partial

import pytest
import yaml

from dljob.core.documents import jobfile
from dljob_wire.messages import Phase
from tests.sidecar.drivers import ROOT
from tests.sidecar.ordinary import EXAMPLES, LAUNCHER, WIDTHS, begin, find_python, wait_for, walk

NAMES = ("torchrun", "huggingface", "accelerate", "lightning", "fsdp", "deepspeed")
UNKNOWING = ("digits", "replay", "pytorch", "tensorflow")
MOST_LINES = 10
PAGE = ROOT / "docs" / "training.md"
LOSS = re.compile(r"step (\d+) loss=([\d.]+)|'loss': '?([\d.]+)")


def read(name, file):
    return (EXAMPLES / name / file).read_text()


def difference(name):
    before, after = (read(name, file).splitlines() for file in ("before.py", "train.py"))
    lines = list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]
    return "\n".join("..." if line.startswith("@@") else line.rstrip() for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_ten_lines_are_enough_and_the_page_shows_them(name):
    added = [line for line in difference(name).splitlines() if re.match(r"\+\s*\S", line)]
    assert 0 < len(added) <= MOST_LINES
    shown = re.search(rf"<!-- diff: {name} -->\n```diff\n(.*?)\n?```", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    assert shown.group(1) == difference(name)
    assert "dljob" not in read(name, "before.py").lower()


def test_the_job_files_are_right_and_those_who_need_no_lines_of_ours_do_not_know_us():
    for name in (*NAMES, *UNKNOWING):
        job = jobfile.parse(yaml.safe_load(read(name, "job.yaml")), require_template=True)
        assert job.id == name
        if name in NAMES:
            assert job.processes == "perGpu", name
        else:
            assert "dljob" not in read(name, "train.py").lower(), name


def test_all_calls_that_the_page_names_are_there():
    from dljob import training

    named = set(re.findall(r"training\.(\w+)\(", PAGE.read_text()))
    assert named <= {*training.__all__}
    assert {*training.__all__} <= named | {"local_world_size", "is_leader", "process_batch_size"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for block in blocks:
        ast.parse(block)


@pytest.fixture
def train(tmp_path, token):
    started = []

    def start(name, **how):
        if not find_python(name).exists():
            pytest.skip(f"what {name} needs is not installed; `make test-frameworks` says how")
        started.append(begin(tmp_path, token, name, **how))
        return started[-1]

    yield start
    for sidecar in started:
        sidecar.close()


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
def test_training_goes_on_over_one_two_four_and_one(train, name, launcher):
    sidecar = train(name, launcher=launcher)
    changes = walk(sidecar, launcher=bool(launcher))

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
    losses = losses_of(sidecar.told())
    assert sum(losses[-3:]) < sum(losses[:3])
    if name in ("torchrun", "fsdp", "deepspeed"):
        begun = re.findall(r"rank 0 of (\d) begins at step (\d+)", sidecar.told())
        assert [int(world) for world, _ in begun] == list(WIDTHS)
        steps = [int(step) for _, step in begun]
        assert steps == sorted(set(steps))


STEPS = 2000


@pytest.mark.processes
@pytest.mark.frameworks
@pytest.mark.timeout(4500)
@pytest.mark.parametrize("name", NAMES)
def test_the_final_step_is_that_of_an_uninterrupted_run(tmp_path, token, name):
    if not find_python(name).exists():
        pytest.skip(f"what {name} needs is not installed; `make test-frameworks` says how")
    final = {}
    for kind, widths in {"uninterrupted": (1,), "changed": (1, 2, 1)}.items():
        (tmp_path / kind).mkdir()
        sidecar = begin(tmp_path / kind, token, name, steps=STEPS)
        try:
            sidecar.wait_ready()
            for generation, width in enumerate(widths, start=1):
                reached = sidecar.state().progress.iteration
                sidecar.run(generation, *map(str, range(width)), processes=width)
                wait_for(sidecar, partial(has_passed, reached + 20, generation), "some steps")
            sidecar.wait_for(lambda state: state.phase is Phase.EXITED)
            final[kind] = sidecar.state().progress.iteration
        finally:
            sidecar.close()
    assert final == {"uninterrupted": STEPS, "changed": STEPS}


def has_passed(step, generation, state):
    return state.held_generation == generation and state.progress.iteration > step

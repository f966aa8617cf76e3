"""The workflows: they call targets that exist, with few rights, and name actions that no tag can move."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packages.distributions import ROOT
from tests.running.parts import DEEP

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request) -> Any:
    return yaml.safe_load(Path(request.param).read_text(encoding="utf-8"))


def steps_of(workflow: Any) -> list[Any]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def make_targets(workflow: Any) -> set[str]:
    """Return the targets that a workflow calls, a matrix of them written out."""
    text = "\n".join(step.get("run", "") for step in steps_of(workflow))
    called = set(re.findall(r"^make ([a-z][\w-]*)", text, flags=re.MULTILINE))
    for job in workflow["jobs"].values():
        called |= set(job.get("strategy", {}).get("matrix", {}).get("part", ()))
    return called


def test_each_target_that_a_workflow_calls_exists(workflow):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, flags=re.MULTILINE))
    targets |= {part.name for part in DEEP}
    assert make_targets(workflow) <= targets


def test_every_part_of_the_deep_tests_runs_by_night():
    deep = yaml.safe_load((ROOT / ".github/workflows/deep.yml").read_text(encoding="utf-8"))
    assert {part.name for part in DEEP} <= make_targets(deep)


def test_a_workflow_has_no_right_that_its_jobs_do_not_name(workflow):
    assert workflow["permissions"] in ({}, {"contents": "read"})
    writing = [job for job in workflow["jobs"].values() if "write" in str(job.get("permissions"))]
    # The job with the rights to publish runs nothing of the checkout.
    assert all("checkout" not in str(job["steps"]) for job in writing)


def test_each_action_is_pinned_by_its_commit(workflow):
    used = [step["uses"] for step in steps_of(workflow) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", each) for each in used)


def test_the_python_matrix_is_that_of_the_package():
    tests = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    versions = tests["jobs"]["python"]["strategy"]["matrix"]["python"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={versions[0]}"' in project

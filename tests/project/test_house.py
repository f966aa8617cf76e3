"""
How easily the code can be read, held by numbers: ``scripts/measure-house`` counts them.

Each number of ``house.yaml`` may only become better. The script is held here as well: it has to
find each fault that it counts.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "measure-house"

PROJECT = """
[tool.importlinter]
root_packages = ["dlcell", "dlfree"]
[[tool.importlinter.contracts]]
type = "layers"
containers = ["dlcell"]
exhaustive = true
layers = ["cells"]
"""
PLAIN = (
    '''"""The operator reports the failure; an engineer says who reads it and what it means."""\n'''
)
MANNERED = '''"""Somebody is told."""

# What stands in the file is read anew by whoever comes.
GREETING = "nobody may know"


def held(one, two, *, three):
    """Who comes. Who comes?"""
'''


def measure(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project with limits that its plain module keeps."""
    (tmp_path / "operator" / "dlcell").mkdir(parents=True)
    (tmp_path / "tests" / "project").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (tmp_path / "operator" / "dlcell" / "cells.py").write_text(PLAIN, encoding="utf-8")
    assert measure("--root", str(tmp_path), "--lower").returncode == 0
    return tmp_path


def measured(tree: Path) -> Any:
    return json.loads(measure("--root", str(tree), "-o", "json").stdout)


def test_no_measure_of_the_code_is_worse_than_its_limit():
    checked = measure("--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_plain_words_pass(tree: Path):
    assert measured(tree)["words"] == {}
    assert measure("--root", str(tree), "--check").returncode == 0


def test_words_of_the_old_manner_are_found_in_docstrings_comments_and_strings(tree: Path):
    (tree / "operator" / "dlcell" / "more.py").write_text(MANNERED, encoding="utf-8")
    [words] = measured(tree)["words"].values()
    assert words == {
        "somebody": 2,
        "is told": 1,
        "what": 1,
        "stands in": 1,
        "anew": 1,
        "whoever": 1,
        "who": 1,
    }
    checked = measure("--root", str(tree), "--check")
    assert checked.returncode == 1
    assert "dlcell: 8, and the limit is 0" in checked.stdout
    listed = measure("--root", str(tree), "--words", "dlcell").stdout
    assert "operator/dlcell/more.py:4: somebody: nobody may know" in listed


def test_words_are_found_in_the_chart(tree: Path):
    chart = tree / "manifests" / "chart"
    chart.mkdir(parents=True)
    (chart / "values.yaml").write_text("# Plain.\n# for whoever installs it\n", encoding="utf-8")
    assert measured(tree)["words"] == {"manifests/chart": {"whoever": 1}}


def test_a_long_class_and_a_crowded_folder_pass_their_limits(tree: Path):
    package = tree / "operator" / "dlcell"
    body = "".join(f"    # Why.\n    field_{number}: int\n" for number in range(160))
    (package / "long.py").write_text(f'"""Long."""\nclass Long:\n{body}', encoding="utf-8")
    house = measured(tree)
    assert house["where"]["long classes"] == {"operator/dlcell/long.py:Long": 161}
    checked = measure("--root", str(tree), "--check").stdout
    assert "classes over 150 lines without comments: 1, and the limit is 0" in checked
    assert "modules in the largest folder: 2, and the limit is 1" in checked


def test_packages_comments_and_parameters_are_counted(tree: Path):
    (tree / "operator" / "dlcell" / "more.py").write_text(MANNERED, encoding="utf-8")
    house = measured(tree)
    assert house["packages without layers"] == 1
    assert house["keyword-only percent"] == 33.3
    assert house["comments per 1000 lines"] == 111.1


def test_limits_only_fall(tree: Path):
    before = (tree / "tests" / "project" / "house.yaml").read_text(encoding="utf-8")
    (tree / "operator" / "dlcell" / "more.py").write_text(MANNERED, encoding="utf-8")
    assert measure("--root", str(tree), "--lower").returncode == 0
    after = yaml.safe_load((tree / "tests/project/house.yaml").read_text(encoding="utf-8"))
    assert after["largest folder"] == yaml.safe_load(before)["largest folder"] == 1
    assert after["words"] == {}
    shutil.rmtree(tree / "operator")
    assert measure("--root", str(tree), "--lower").returncode == 0
    after = yaml.safe_load((tree / "tests/project/house.yaml").read_text(encoding="utf-8"))
    assert after["largest folder"] == 0

"""
How easily the code can be read, held by numbers: ``scripts/measure-house`` counts them.

Each number of ``house.yaml`` may only become better. The script is held here as well: it has to
find each fault that it counts.
"""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import loaded

ROOT = Path(__file__).resolve().parents[2]

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


def count(one):
    """Say one."""
'''


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with loaded("measure-house") as module:
        yield module


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "operator" / "dlcell"
    folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (folder / "cells.py").write_text(PLAIN, encoding="utf-8")
    return folder


def test_words_of_the_old_manner_are_found(script, package, tmp_path):
    [plain, _] = script.measure(tmp_path)
    limits = script.lower(plain, {})
    assert script.find_worse(plain, limits) == []
    (package / "more.py").write_text(MANNERED, encoding="utf-8")
    chart = tmp_path / "manifests" / "chart"
    chart.mkdir(parents=True)
    (chart / "values.yaml").write_text("# Plain.\n# for whoever installs it\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("It `tells` so much.\n", encoding="utf-8")
    [measures, places] = script.measure(tmp_path)
    assert [each.split(": ")[1] for each in places["words in dlcell"]] == [
        *("what", "stands in", "anew", "whoever", "somebody", "told", "somebody", "who", "say")
    ]
    assert measures["words in manifests/chart"] == measures["words in docs"] == 1
    assert measures["packages without layers"] == 1
    assert any("code and chart: 10, and" in each for each in script.find_worse(measures, limits))


def test_a_function_passes_its_limit_and_limits_only_fall(script, package, tmp_path):
    [plain, _] = script.measure(tmp_path)
    limits = script.lower(plain, {})
    (package / "late.py").write_text('"""Late."""\n\n\ndef look():\n    pass\n', encoding="utf-8")
    [measures, places] = script.measure(tmp_path)
    assert places["functions named look"] == ["operator/dlcell/late.py:4: def look():"]
    worse = "\n".join(script.find_worse(measures, limits))
    assert "functions named look: 1, and the limit is 0" in worse
    assert "modules in the largest folder: 2, and the limit is 1" in worse
    assert script.lower(measures, limits) == limits

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
'''


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with loaded("measure-house") as module:
        yield module


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package of a small project."""
    folder = tmp_path / "operator" / "dlcell"
    folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (folder / "cells.py").write_text(PLAIN, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_no_measure_of_the_code_is_worse_than_its_limit(script):
    assert script.find_worse(script.measure_house(ROOT), script.read_limits(ROOT)) == []


def test_words_of_the_old_manner_are_found(script, package, tmp_path):
    limits = script.lowered(script.measure_house(tmp_path), {})
    assert script.find_worse(script.measure_house(tmp_path), limits) == []
    (package / "more.py").write_text(MANNERED, encoding="utf-8")
    chart = tmp_path / "manifests" / "chart"
    chart.mkdir(parents=True)
    (chart / "values.yaml").write_text("# Plain.\n# for whoever installs it\n", encoding="utf-8")
    house = script.measure_house(tmp_path)
    assert house["words"]["manifests/chart"] == {"whoever": 1}
    assert house["words"]["dlcell"] == {
        "somebody": 2,
        "is told": 1,
        "what": 1,
        "stands in": 1,
        "anew": 1,
        "whoever": 1,
        "who": 1,
    }
    assert any("dlcell: 8, and the limit is 0" in each for each in script.find_worse(house, limits))
    assert house["packages without layers"] == 1
    assert house["keyword-only percent"] == 33.3


def test_a_long_class_passes_its_limit_and_limits_only_fall(script, package, tmp_path):
    limits = script.lowered(script.measure_house(tmp_path), {})
    body = "".join(f"    # Why.\n    field_{number}: int\n" for number in range(160))
    (package / "long.py").write_text(f'"""Long."""\nclass Long:\n{body}', encoding="utf-8")
    house = script.measure_house(tmp_path)
    assert house["where"]["long classes"] == {"operator/dlcell/long.py:Long": 161}
    worse = "\n".join(script.find_worse(house, limits))
    assert "classes over 150 lines without comments: 1, and the limit is 0" in worse
    assert "modules in the largest folder: 2, and the limit is 1" in worse
    assert script.lowered(house, limits)["long classes"] == 0

"""
How large the product is and how easily it can be read, held by numbers: ``scripts/measure-house`` counts them.

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
[project.scripts]
dljob = "cell.main:main"
[tool.hatch.build.targets.wheel]
only-include = ["operator/cell", "sidecar/wire", "profiles"]
force-include = { "sidecar/start" = "cell/_start" }
[tool.hatch.build.targets.wheel.sources]
"operator" = ""
"sidecar" = ""
"profiles" = "cell/_profiles"
"""
MAIN = '''"""The operator reports the failure; an engineer says who reads it and what it means."""

import wire
from cell.shown import show


def main() -> None:
    for _ in range(2):
        show()
    _once()


def _once() -> None:
    """Six lines
    with
    their
    docstring."""
    show()
'''
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
    folder = tmp_path / "operator" / "cell"
    for each in (folder, tmp_path / "sidecar" / "wire", tmp_path / "tests"):
        each.mkdir(parents=True)
        (each / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (folder / "main.py").write_text(MAIN, encoding="utf-8")
    (folder / "shown.py").write_text('"""Imported once."""\n\nshow = print\n', encoding="utf-8")
    return folder


@pytest.mark.processes
@pytest.mark.story
def test_submission_runs_few_functions(script):
    measures = script.measure_submission(ROOT)
    assert script.find_worse(measures, script.read_limits(ROOT)) == []


def test_words_of_the_old_manner_are_found(script, package, tmp_path):
    [plain, _] = script.measure(tmp_path)
    limits = script.lower(plain, {})
    assert script.find_worse(plain, limits) == []
    (package / "more.py").write_text(MANNERED, encoding="utf-8")
    chart = tmp_path / "manifests" / "chart"
    chart.mkdir(parents=True)
    (chart / "values.yaml").write_text("# Plain.\n# for whoever installs it\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("It `tells` so much.\n", encoding="utf-8")
    names = "def test_nobody_is_told():\n    pass\n\n\ndef test_whole(): pass\n"
    (tmp_path / "tests" / "test_more.py").write_text(names, encoding="utf-8")
    [measures, places] = script.measure(tmp_path)
    assert [each.split(": ")[1] for each in places["words in code"]] == [
        *("what", "stands in", "anew", "whoever", "somebody", "told", "somebody", "who", "say"),
        "whoever",
    ]
    assert places["words in test names"] == ["tests/test_more.py: test_nobody_is_told"]
    assert measures["words in docs"] == 1
    assert any("words in code: 10, and" in each for each in script.find_worse(measures, limits))


def test_pieces_and_their_users_are_counted(script, package, tmp_path):
    [measures, places] = script.measure(tmp_path)
    assert places["short functions with one caller"] == ["operator/cell/main.py:13: _once"]
    assert places["small modules with one importer"] == [
        "operator/cell/shown.py: 3 lines, imported by operator/cell/main.py"
    ]
    assert places["import names of the wheel"] == ["cell", "wire"]
    assert places["modules that `dljob up --help` runs"] == [
        *("operator/cell/main.py", "operator/cell/shown.py")
    ]
    assert (measures["lines of the product"], measures["lines of add-ons"]) == (21, 0)


def test_addons_are_no_part_of_the_product(script, package, tmp_path):
    [before, _] = script.measure(tmp_path)
    limits = script.lower(before, {"lines of add-ons": 9})
    for folder in ("dljob_lab", "tests"):
        addon = tmp_path / "addons" / "lab" / folder
        addon.mkdir(parents=True)
        (addon / "more.py").write_text("def test_once():\n    _once(0)\n", encoding="utf-8")
    [after, _] = script.measure(tmp_path)
    assert after["lines of add-ons"] == 2
    assert after["lines of tests"] == before["lines of tests"] + 2
    assert after["lines of the product"] == before["lines of the product"]
    # The add-on is a second caller.
    assert after["short functions with one caller"] == 0
    lowered = script.lower(after, limits)
    assert lowered == {**limits, "lines of add-ons": 2, "short functions with one caller": 0}
    assert script.lower(before, lowered) == lowered

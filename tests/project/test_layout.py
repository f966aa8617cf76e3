"""
The laws of the project as a whole: what its folders, files and names may be.

No tool checks these for us, and each was written because breaking it hurts far from the
place where it is broken.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripts import loaded

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "operator"
SIDECAR = ROOT / "sidecar"


# The SideCar runs in other people's images and must not bring a world with it.
SIDECAR_NEEDS = {"dljob_wire", "dljob_sidecar", "pynvml", "tornado"}

# Put together here, so that this file does not name them itself.
HOME_PATHS = ["/" + name + "/" for name in ("work", "root", "opt/wheels")]
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("proxy", "golang", "org"),
        ("registry", "npmjs"),
    )
]

PACKAGES = sorted(
    path
    for root in (OPERATOR, SIDECAR, *(ROOT / "addons").iterdir())
    for path in root.iterdir()
    if (path / "__init__.py").exists()
)
MODULES = sorted(module for package in PACKAGES for module in package.rglob("*.py"))
LOCKS = sorted(ROOT.glob("requirements*.lock"))


def parsed(module: Path, *, feature_version: tuple[int, int] | None = None) -> ast.Module:
    source = module.read_text(encoding="utf-8")
    return ast.parse(source, filename=str(module), feature_version=feature_version)


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Yield the name and text of every file that git tracks or is about to."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60.0
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        try:
            yield name, (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            # A picture, or a file that was just removed.
            continue


def lines_with(words: list[str]) -> list[str]:
    """Return the tracked lines in which one of the words stands, as ``file:line: text``."""
    pattern = re.compile("|".join(rf"(?<![\w.~}}-]){re.escape(word)}" for word in words))
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_texts()
        if any(word in text for word in words)
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_the_folders_of_packages_are_no_packages():
    # `python -m anything` from the root would take an `operator` package for Python's own.
    assert not (OPERATOR / "__init__.py").exists()
    assert not (SIDECAR / "__init__.py").exists()


@pytest.mark.slow
def test_every_module_has_a_docstring():
    for module in MODULES:
        assert (ast.get_docstring(parsed(module)) or "").strip(), module


def test_the_sidecar_is_written_for_old_pythons_and_needs_next_to_nothing():
    for module in sorted(SIDECAR.rglob("*.py")):
        needed = set()
        for node in ast.walk(parsed(module, feature_version=(3, 9))):
            assert not isinstance(node, ast.Match), f"{module}: match needs Python 3.10"
            if isinstance(node, ast.Import):
                needed |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                needed.add((node.module or "").partition(".")[0])
        allowed = {"dljob_wire"} if "dljob_wire" in module.parts else SIDECAR_NEEDS
        assert needed - set(sys.stdlib_module_names) <= allowed, module


def test_contracts_hold_every_package():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]
    [arrows] = [rule for rule in contracts["contracts"] if rule["id"] == "arrows"]
    layers = set(re.findall(r"\w+", " ".join(arrows["layers"])))
    assert {package.name for package in PACKAGES} == set(contracts["root_packages"]) == layers


def test_picture_of_the_house_is_current():
    with loaded("draw-house") as script:
        drawn = script.draw()
    assert script.PICTURE.read_text(encoding="utf-8") == drawn, "run scripts/draw-house"


def test_no_file_names_a_place_on_one_machine_or_a_package_registry():
    assert lines_with([*HOME_PATHS, *REGISTRIES]) == []


def test_a_lock_has_hashes_and_no_addresses():
    known = re.compile(r"# |[\w.-]+==\S+|\s+--hash=sha256:[0-9a-f]{64}( \\)?$")
    for lock in LOCKS:
        lines = lock.read_text(encoding="utf-8").splitlines()
        packages = [number for number, line in enumerate(lines) if "==" in line]
        assert packages, "nothing is locked"
        assert [lines[at] for at in packages if "--hash=sha256:" not in lines[at + 1]] == []
        assert [line for line in lines if not known.match(line)] == []
        assert not any(re.search(r"://|--(extra-)?index|--find-links", line) for line in lines)

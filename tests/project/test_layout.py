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

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "operator"
SIDECAR = ROOT / "sidecar"

LONGEST_FUNCTION_LINES = 60

# The SideCar runs in other people's images and must not bring a world with it.
SIDECAR_NEEDS = {"dlwire", "dlsidecar", "pynvml", "tornado"}

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

FOUND_MODULES = sorted([*OPERATOR.rglob("*.py"), *SIDECAR.rglob("*.py")])
PACKAGES = sorted(
    path for root in (OPERATOR, SIDECAR) for path in root.iterdir() if any(path.glob("*.py"))
)

LOCKS = sorted(ROOT.glob("requirements*.lock"))

each_module = pytest.mark.parametrize(
    "module", FOUND_MODULES, ids=lambda path: str(path.relative_to(ROOT))
)
each_sidecar_module = pytest.mark.parametrize(
    "module", sorted(SIDECAR.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
each_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)


def parsed(module: Path, *, feature_version: tuple[int, int] | None = None) -> ast.Module:
    source = module.read_text(encoding="utf-8")
    return ast.parse(source, filename=str(module), feature_version=feature_version)


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Yield the name and text of every file that git tracks or is about to."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
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
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_the_folders_of_packages_are_no_packages():
    # `python -m anything` from the root would take an `operator` package for Python's own.
    assert not (OPERATOR / "__init__.py").exists()
    assert not (SIDECAR / "__init__.py").exists()


def test_python_finds_its_own_operator_module_from_the_root():
    program = "import operator; print(operator.add(1, 2), operator.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    added, file = ran.stdout.split(maxsplit=1)
    assert added == "3"
    assert not Path(file.strip()).is_relative_to(ROOT / "operator")


def test_there_are_modules_to_check():
    # Otherwise every test below would pass on nothing.
    assert {"dlcore", "dlwire"} <= {package.name for package in PACKAGES}
    assert len(FOUND_MODULES) > len(PACKAGES)


@each_module
def test_no_module_bears_the_name_of_a_standard_one(module: Path):
    name = module.parent.name if module.stem in {"__init__", "__main__"} else module.stem
    assert name not in sys.stdlib_module_names


@each_module
def test_every_module_says_what_it_is(module: Path):
    assert (ast.get_docstring(parsed(module)) or "").strip()


@each_module
def test_functions_are_short(module: Path):
    long = [
        f"{node.name} has {lines} lines"
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION_LINES
    ]
    assert long == []


@each_sidecar_module
def test_the_sidecar_is_written_for_old_pythons(module: Path):
    tree = parsed(module, feature_version=(3, 9))
    matches = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Match)]
    assert matches == [], "match needs Python 3.10"


@each_sidecar_module
def test_the_sidecar_needs_next_to_nothing(module: Path):
    needed = set()
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Import):
            needed |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            needed.add((node.module or "").partition(".")[0])
    allowed = {"dlwire"} if "dlwire" in module.parts else SIDECAR_NEEDS
    assert needed - set(sys.stdlib_module_names) <= allowed


@each_package
def test_every_package_is_held_by_the_contracts_and_put_into_the_wheel(package: Path):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]
    [arrows] = [rule for rule in contracts["contracts"] if rule["id"] == "arrows"]
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert package.name in contracts["root_packages"]
    assert package.name in re.findall(r"\w+", " ".join(arrows["layers"]))
    assert str(package.relative_to(ROOT)) in wheel["only-include"]


def test_the_types_of_benchmarks_are_checked_as_soon_as_there_are_any():
    # mypy refuses to look into a folder without Python files, so it cannot be named before.
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    is_checked = "benchmarks" in settings["tool"]["mypy"]["files"]
    assert is_checked == any((ROOT / "benchmarks").glob("*.py"))


def test_no_file_names_a_place_on_somebodys_machine():
    assert lines_with(HOME_PATHS) == []


def test_no_file_names_a_package_registry():
    assert lines_with(REGISTRIES) == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_has_hashes_and_no_addresses(lock: Path):
    lines = lock.read_text(encoding="utf-8").splitlines()
    packages = [number for number, line in enumerate(lines) if "==" in line]
    assert packages, "nothing is locked"
    assert [lines[at] for at in packages if "--hash=sha256:" not in lines[at + 1]] == []
    known = re.compile(r"# |[\w.-]+==\S+|\s+--hash=sha256:[0-9a-f]{64}( \\)?$")
    assert [line for line in lines if not known.match(line)] == []
    assert [line for line in lines if re.search(r"://|--(extra-)?index|--find-links", line)] == []

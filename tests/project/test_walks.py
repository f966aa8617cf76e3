"""Each file and each function that docs/walks.md and docs/words.md name exists."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WALKS = ROOT / "docs" / "walks.md"
WORDS = ROOT / "docs" / "words.md"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
STEP = re.compile(r"^\| .+ \| `(?P<file>[^`]+)` \| `(?P<name>[^`]+)` \|$", re.MULTILINE)


@cache
def definitions(file: Path) -> frozenset[str]:
    """The functions, classes and constants of a module, and the methods as ``Class.method``."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.ClassDef():
                found.add(node.name)
                methods = (each for each in node.body if isinstance(each, FUNCTIONS))
                found |= {f"{node.name}.{method.name}" for method in methods}
    return frozenset(found)


def steps(text: str) -> list[tuple[str, str]]:
    return [(found["file"], found["name"]) for found in STEP.finditer(text)]


def rows_of(page: Path, title: str) -> list[list[str]]:
    """The cells of the table below a title, without its head."""
    below = page.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in below.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_each_step_of_a_walk_names_a_function_that_is_there():
    walked = steps(WALKS.read_text(encoding="utf-8"))
    assert walked
    missing = [
        f"{file}: {name}"
        for file, name in walked
        if not (ROOT / file).is_file() or name not in definitions(ROOT / file)
    ]
    assert missing == []


def test_each_word_says_in_which_module_it_lives():
    rows = rows_of(WORDS, "Words of the product")
    assert len(rows) > 20
    missing = []
    for word, _, where in rows:
        named = re.findall(r"`([\w.]+)`", where)
        if not named or not all(map(is_module, named)):
            missing.append(f"{word}: {where}")
    assert missing == []


def is_module(name: str) -> bool:
    path = Path(*name.split("."))
    return any(
        (ROOT / half / path).is_dir() or (ROOT / half / path).with_suffix(".py").is_file()
        for half in (
            "operator",
            "sidecar",
            "addons/gangs",
            "addons/lab",
            "addons/mcp",
            "addons/web",
        )
    )

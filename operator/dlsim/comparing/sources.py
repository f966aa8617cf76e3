"""
Which files of the program determine what a policy does in a simulation.

:mod:`dlsim.comparing.tasks` digests them. They are found by following the imports from the
simulator and from the policy's own module, so a policy that is a package counts with all of its
modules, and a module that several policies share counts for each of these and for no other. Imports
are read from the sources, because loaded modules do not say where their names
come from. That finds everything: no module of the brain imports by any other means
(``pure-core`` in ``pyproject.toml``).

Docstrings, comments and blank lines are left out, so that better words make no result stale.
"""

import ast
import io
import tokenize
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeGuard

import dlcore
import dlsim
import dlwire

REGISTRY = "dlcore.policies"
"""It imports all policies, and none depends on it: its imports are not followed."""

_FOLDERS = {
    package.__name__: Path(str(package.__file__)).parent for package in (dlcore, dlsim, dlwire)
}


def read_sources(*modules: str, left_out: Collection[str]) -> list[tuple[str, bytes]]:
    """
    Read the files that the simulator and the modules of a policy consist of, by their names, without words.

    Modules of others do not count. ``left_out`` are parts of the simulator that do not count.
    """
    simulator = map(_name_of, sorted(_FOLDERS["dlsim"].rglob("*.py")))
    return [
        (module, leave_out_words(path.read_bytes()))
        for module in sorted(_follow([*simulator, *modules], left_out))
        if (path := _find_file(module)) is not None
    ]


@cache
def leave_out_words(source: bytes) -> bytes:
    """
    Leave docstrings, comments and blank lines out of a source, on which no result depends.

    The text is cut, not made again from a tree, because the page of the suite holds a digest of it, and that has to
    be the same in every version of Python.
    """
    lines = source.decode().split("\n")
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if _is_text(node) and _is_alone(node, lines):
            rows = range(node.lineno - 1, node.end_lineno or node.lineno)
            for row in rows:
                lines[row] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip()).encode()


def _is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Whether this is a docstring of a module, class or function, or of a field."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_alone(node: ast.Expr, lines: Sequence[str]) -> bool:
    """Whether nothing else is on its lines."""
    first, last = lines[node.lineno - 1], lines[(node.end_lineno or node.lineno) - 1]
    return not (
        first.encode()[: node.col_offset].strip() or last.encode()[node.end_col_offset :].strip()
    )


def _follow(modules: Iterable[str], left_out: Collection[str]) -> set[str]:
    """Add what these modules import, and what that imports, and so on."""
    unread, known = list(modules), set[str]()
    while unread:
        module = unread.pop()
        inside = f"{module.removeprefix('dlsim.')}."
        is_out = any(inside.startswith(f"{part}.") for part in left_out)
        if module not in known and module != REGISTRY and not is_out:
            known.add(module)
            unread += _find_imports(module)
    return known


@cache
def _find_imports(module: str) -> frozenset[str]:
    """The modules of ours that a module imports, with the packages that they are in."""
    path = _find_file(module)
    if path is None:
        return frozenset()
    # Once for a process: thousands of tasks may differ in nothing but their policies.
    tree = ast.parse(path.read_bytes(), filename=str(path))
    return frozenset(
        ".".join(parts[:length])
        for name in _iter_names(tree)
        if (parts := name.split("."))[0] in _FOLDERS
        for length in range(1, len(parts) + 1)
    )


def _iter_names(tree: ast.Module) -> Iterator[str]:
    """Everything that may be a module; of ``from a import b`` that is a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _find_file(module: str) -> Path | None:
    """The file of a module; ``None`` if the name is that of something inside a module."""
    package, *inside = module.split(".")
    if package not in _FOLDERS:
        return None
    path = _FOLDERS[package].joinpath(*inside)
    files = (path / "__init__.py", path.with_suffix(".py") if inside else path)
    return next((file for file in files if file.is_file()), None)


def _name_of(path: Path) -> str:
    folder = _FOLDERS["dlsim"]
    inside = path.relative_to(folder).with_suffix("").parts
    return ".".join(("dlsim", *(part for part in inside if part != "__init__")))

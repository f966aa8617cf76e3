"""
The problems of a document or a message, one line each.

:mod:`dljob_wire.kinds` finds them. A reader of messages raises the first one, :mod:`dljob.core.documents.jobfile` all of them at
once. The platforms print the lines or put them into a condition.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 64
MAX_VALUES = 20_000
"""
A hundred times as many as a job needs; reading them takes a tenth of a second.

A few YAML anchors can make millions of values.
"""

MAX_PROBLEMS = 100
"""The most problems that are reported of a document. The user sees the others after fixing these."""

_LONGEST_NAME = 100
"""In characters. The time to compare words grows with the square of their length."""

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a document, and what to do about it."""

    path: str
    value: object
    message: str
    remedy: str

    def line(self, source: str = "") -> str:
        """Write the problem in one line that begins with the file (if given) and the path in it."""
        where = "".join(f"{part}: " for part in (source, self.path) if part)
        return f"{where}{self.message}; {self.remedy}"

    def __str__(self) -> str:
        return self.line()


class WrongDocument(Exception):
    """A document cannot be used, for all of ``problems``."""

    def __init__(self, problems: tuple[Problem, ...], source: str = "") -> None:
        self.problems = problems
        self.source = source
        """The file, as its reader names it; may be empty."""
        super().__init__("\n".join(self.lines()))

    def lines(self) -> tuple[str, ...]:
        """Return each problem in one line."""
        return tuple(problem.line(self.source) for problem in self.problems)


def shown(value: object) -> str:
    """Show a value as the subject of a sentence: short, on one line, and as in a file."""
    if value is None or isinstance(value, (Mapping, list, tuple)):
        return "it"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int) and value.bit_length() > 64:
        # Python refuses to print a very long number.
        return f"a number of {value.bit_length()} bits"
    return printable(str(value))


def kind_of(value: object) -> str:
    """Name the type of a value in the words of YAML."""
    if value is None:
        return "empty"
    for types, name in _KINDS:
        if isinstance(value, types):
            return name
    return f"a {type(value).__name__}"


_KINDS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool,), "a boolean"),
    ((int, float), "a number"),
    ((str,), "a string"),
    ((Mapping,), "a mapping"),
    ((list, tuple), "a list"),
)


def join(path: str, key: object) -> str:
    """Extend a path by a field; names that are no plain words are put in brackets."""
    if (
        isinstance(key, str)
        and len(key) <= _LONGEST_NAME
        and key.replace("-", "").replace("_", "").isalnum()
    ):
        return f"{path}.{key}" if path else key
    return f"{path}[{shown(key)}]"


def listed(words: Iterable[object], conjunction: str) -> str:
    """List words as a sentence does: ``a, b or c``."""
    *most, last = (str(word) for word in words)
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def nearest(word: str, known: Iterable[str]) -> str:
    """Guess the known word that was meant; empty if none is near."""
    if len(word) > _LONGEST_NAME:
        return ""
    # The words are compared without their style (max_nodes, MAXNODES).
    plain = {name.replace("-", "").lower(): name for name in known}
    flat = word.replace("_", "").replace("-", "").lower()
    found = difflib.get_close_matches(flat, plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else ""


def foreign_values(value: Any, path: str) -> Iterator[Problem]:
    """Yield the parts of a value that cannot be JSON."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            where = join(path, key)
            if isinstance(key, str):
                yield from foreign_values(inner, where)
            else:
                wrong = f"{shown(key)} is {kind_of(key)}, not a field name"
                yield Problem(where, key, wrong, "write it in quotes")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from foreign_values(inner, f"{path}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, value, f"{shown(value)} is not a finite number", "give a finite one")
    elif not isinstance(value, (bool, int, float, str, type(None))):
        wrong = f"{shown(value)} is {kind_of(value)}, which Kubernetes does not know"
        yield Problem(path, value, wrong, "write it in quotes")


_LEAVES = (str, int, float, type(None))
"""The types of most values, which need no slower test for a mapping."""


def too_large(document: object, *, most: int = MAX_VALUES) -> Problem | None:
    """
    Refuse a document that contains itself or is huge.

    All other functions recurse, so this one is called first and has a stack of its own.
    """
    stack = [(document, 0)]
    seen = 0
    while stack:
        value, depth = stack.pop()
        seen += 1
        if depth > MAX_DEPTH:
            deep = f"it is nested more than {MAX_DEPTH} levels deep"
            return Problem("", document, deep, "look for a YAML anchor that contains itself")
        if seen > most:
            huge = f"it holds more than {most:,} values"
            return Problem("", document, huge, "look for YAML anchors that repeat each other")
        if isinstance(value, _LEAVES):
            continue
        if isinstance(value, Mapping):
            stack.extend((inner, depth + 1) for inner in value.values())
        elif isinstance(value, (list, tuple)):
            stack.extend((inner, depth + 1) for inner in value)
    return None


def plain(value: Any) -> Any:
    """Copy a document into dicts and lists of its own, so that no caller can change it later."""
    if isinstance(value, _LEAVES):
        return value
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


def _quoted(text: str) -> str:
    short = text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
    return f'"{printable(short)}"'


def printable(text: str) -> str:
    """Write invisible characters, such as control characters and changes of direction, as escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
